"""AdamW with moments of 8 bits takes the steps of bitsandbytes' AdamW8bit: the same bytes.

adamw8bit_peer.py REDCO_LUA SOURCE [SEED]

Its library for CPUs rounds small numbers coarsely: its implementation for any device takes its place.
"""
import subprocess
import sys
import tempfile

import bitsandbytes as bnb
import torch
from bitsandbytes.backends.cpu import ops
from safetensors.torch import load_file, save_file

program, source, *rest = sys.argv[1:]
torch.manual_seed(int(rest[0]) if rest else 1)



def quantize(values, code, absmax_out, out, blocksize):
    operator = torch.ops.bitsandbytes.quantize_blockwise.default
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    numbers, absmax = operator._op_dk(key, values, code, blocksize)
    out.copy_(numbers)
    absmax_out.copy_(absmax)


ops._quant_blockwise_fp32_direct = quantize

N_STEPS = 12
SIZES = {"small": (60, 60), "wide": (64, 80), "odd": (37, 113), "flat": (5003,), "tall": (4096, 3)}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

with tempfile.TemporaryDirectory() as folder:
    start = {f"{name}_{kind}": torch.randn(size).to(dtype)
             for name, size in SIZES.items() for kind, dtype in TYPES.items()}
    params = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    save_file(start, f"{folder}/start.safetensors")
    gradients = []
    for i in range(N_STEPS):
        # Some rows have no gradient, and sizes differ between steps.
        grads = {name: (torch.randn(value.shape) * 10.0 ** torch.randint(-6, 2, ())).to(value.dtype)
                 for name, value in start.items()}
        for grad in grads.values():
            grad[::7] = 0
        gradients.append(grads)
        save_file(grads, f"{folder}/grad{i + 1}.safetensors")
    subprocess.run([program, f"{source}/tests/peers/adamw8bit.lua", folder, str(N_STEPS)],
                   check=True)
    optimizer = bnb.optim.AdamW8bit(params.values(), lr=0.01, betas=(0.8, 0.95), eps=1e-6,
                                    weight_decay=0.1)
    n_bytes = n_differ = 0
    for i, grads in enumerate(gradients):
        for name, param in params.items():
            param.grad = grads[name].clone()
        optimizer.step()
        found = load_file(f"{folder}/step{i + 1}.safetensors")
        for name, param in params.items():
            state = optimizer.state[param]
            is_narrow = param.dtype == torch.bfloat16
            off = (found[name].double() - param.double()).abs() / (0.01 + param.double().abs())
            assert off.max() <= (8e-3 if is_narrow else 2e-5), (name, i, float(off.max()))
            assert (off > 1e-6).double().mean() < 1e-3, (name, i)
            for ours, theirs in ("exp_avg", "state1"), ("exp_avg_sq", "state2"):
                own = found[f"{name}.{ours}"]
                assert own.dtype == state[theirs].dtype, (name, own.dtype)
                if own.dtype == torch.uint8:
                    differs = own != state[theirs].view(own.shape)
                    n_bytes += differs.numel()
                    n_differ += int(differs.sum())
                    # A value on a bound between two numbers goes either way.
                    off = (own.int() - state[theirs].view(own.shape).int()).abs()
                    assert off.max() <= 1, (name, i, ours, off.max(), off.gt(1).sum(),
                                            own[off > 1], state[theirs].view(own.shape)[off > 1])
                else:
                    torch.testing.assert_close(own, state[theirs], rtol=1e-5,
                                               atol=1e-6 * float(own.abs().max()))
            if "absmax1" in state:
                own = found[f"{name}.absmax"]
                for row, key in enumerate(("absmax1", "absmax2")):
                    torch.testing.assert_close(own[row], state[key], rtol=1e-5, atol=1e-30)
    assert n_differ < 1e-4 * n_bytes, (n_differ, n_bytes)
print(f"{n_bytes} bytes of moments, {n_differ} differ by one number")
