"""PyTorch's autocast gives the losses and gradients of torch.autocast here, and the same types.

autocast_peer.py REDCO_LUA SOURCE

PyTorch on a CPU leaves softmax, layer norm and others in 16 bits, which it computes in float32 on a
GPU, and so does redco-lua everywhere. So they are given float32 here.
"""
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

program, source = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(3)


def normal(*sizes):
    return torch.randn(sizes) * 0.3


tensors = {
    "x": torch.randn(8, 16), "image": torch.randn(4, 3, 8, 8), "labels": torch.randint(6, (8,)),
    "tokens": torch.randint(11, (2, 7)), "next": torch.randint(11, (2, 7)),
    "mlp.w0": normal(24, 16), "mlp.b0": normal(24), "mlp.w1": normal(16, 24), "mlp.b1": normal(16),
    "mlp.w2": normal(6, 16), "mlp.b2": normal(6),
    "cnn.w0": normal(8, 3, 3, 3), "cnn.b0": normal(8), "cnn.scale": normal(8) + 1,
    "cnn.shift": normal(8), "cnn.w1": normal(12, 8, 3, 3), "cnn.w2": normal(6, 12),
    "transformer.table": normal(11, 16), "transformer.scale": normal(16) + 1,
    "transformer.shift": normal(16), "transformer.qkv": normal(48, 16),
    "transformer.out": normal(16, 16), "transformer.up": normal(32, 16),
    "transformer.down": normal(16, 32),
}


def mlp(p):
    y = F.gelu(F.linear(F.relu(F.linear(tensors["x"], p["w0"], p["b0"])), p["w1"], p["b1"]))
    return F.cross_entropy(F.linear(y, p["w2"], p["b2"]), tensors["labels"])


def cnn(p):
    y = F.conv2d(tensors["image"], p["w0"], p["b0"], padding=1)
    y = F.relu(F.batch_norm(y, None, None, p["scale"], p["shift"], True))
    y = F.conv2d(y, p["w1"], stride=2).mean((2, 3))
    return F.cross_entropy(F.linear(y, p["w2"]), tensors["labels"][:4])


def transformer(p):
    def norm(x):
        return F.layer_norm(x.float(), (16,), p["scale"], p["shift"])
    x = F.embedding(tensors["tokens"], p["table"])
    q, k, v = F.linear(norm(x), p["qkv"]).view(2, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) / 8 ** 0.5
    y = scores.float().softmax(-1) @ v
    x = x + F.linear(y.transpose(1, 2).reshape(2, 7, 16), p["out"])
    x = x + F.linear(F.gelu(F.linear(norm(x), p["up"])), p["down"])
    logits = F.linear(norm(x), p["table"])
    square = logits.float().pow(2).sum() * 1e-3
    return F.cross_entropy(logits.view(-1, 11), tensors["next"].view(-1)) + square


with tempfile.TemporaryDirectory() as folder:
    save_file(tensors, f"{folder}/tensors.safetensors")
    subprocess.run([program, f"{source}/tests/peers/autocast.lua", folder], check=True)
    for dtype in torch.bfloat16, torch.float16:
        for model in mlp, cnn, transformer:
            start = f"{model.__name__}."
            params = {name.removeprefix(start): value.clone().requires_grad_()
                      for name, value in tensors.items() if name.startswith(start)}
            with torch.autocast("cpu", dtype, cache_enabled=False):
                loss = model(params)
            loss.backward()
            name = f"{model.__name__}_{str(dtype).removeprefix('torch.')}"
            ours = load_file(f"{folder}/{name}.safetensors")
            theirs = {"loss": loss.detach().view(1)} | {
                f"grads.{key}": value.grad for key, value in params.items()}
            assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
            most = 0
            for key, value in theirs.items():
                assert ours[key].dtype == value.dtype == torch.float32, (name, key)
                off = (ours[key] - value).abs().max() / value.abs().max()
                most = max(most, off.item())
            print(f"{name}: loss {loss.item():.4f}, differs by up to {most:.1e}")
            assert most < 1e-6, name
