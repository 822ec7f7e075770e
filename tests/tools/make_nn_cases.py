"""Writes tests/lua/nn_cases.safetensors: layers of torch.nn with their inputs, parameters, outputs
and gradients, and five steps of each optimizer of torch.optim; beside it script_module.pt and
script_dropout.pt, TorchScript modules.

    python tests/tools/make_nn_cases.py tests/lua/nn_cases.safetensors

Names: CASE.in.NAME inputs, CASE.p.NAME parameters, CASE.out.NAME outputs, CASE.r.NAME what each
output is multiplied with before everything is added up to the scalar whose gradients are
CASE.g.in.NAME and CASE.g.p.NAME. Needs torch, transformers and safetensors.
"""

import os
import pathlib
import sys

import torch
import torch.nn.functional as F
import torchscript
from safetensors.torch import save_file

torch.manual_seed(20240817)
cases = {}


def case(name, inputs, params, forward):
    """Stores one case; `forward(inputs, params)` returns a dictionary of tensors."""
    inputs = {k: v.detach().clone() for k, v in inputs.items()}
    params = {k: v.detach().clone() for k, v in params.items()}
    leaves = {f"in.{k}": v for k, v in inputs.items()} | {f"p.{k}": v for k, v in params.items()}
    for key, value in leaves.items():
        cases[f"{name}.{key}"] = value.clone()
    trained = {k: v.requires_grad_() for k, v in leaves.items() if v.is_floating_point()}
    outputs = forward(inputs, params)
    total = 0
    for key, value in outputs.items():
        r = torch.randn(value.shape)
        cases[f"{name}.out.{key}"] = value.detach().clone()
        cases[f"{name}.r.{key}"] = r
        total = total + (value.float() * r).sum()
    gradients = torch.autograd.grad(total, list(trained.values()))
    for key, gradient in zip(trained, gradients):
        cases[f"{name}.g.{key}"] = gradient.clone()


def params_of(module):
    return dict(module.named_parameters())


def module_case(name, module, inputs, prefix_names=None):
    names = prefix_names or {}
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape) * 0.4 + 0.1)
    params = {names.get(k, k): v for k, v in params_of(module).items()}
    back = {names.get(k, k): k for k in params_of(module)}

    def forward(i, p):
        out = torch.func.functional_call(module, {back[k]: v for k, v in p.items()}, tuple(i.values()))
        if isinstance(out, tuple):
            return {f"y{n + 1}": o for n, o in enumerate(out)}
        return {"y": out}

    case(name, inputs, params, forward)


# ---- layers ----
module_case("linear", torch.nn.Linear(5, 3), {"x": torch.randn(2, 4, 5)})
module_case("linear_without_bias", torch.nn.Linear(5, 3, bias=False), {"x": torch.randn(4, 5)})
module_case("embedding", torch.nn.Embedding(7, 3), {"ids": torch.tensor([[0, 6, 2], [2, 2, 5]])})
module_case("layer_norm", torch.nn.LayerNorm(6), {"x": torch.randn(3, 4, 6) * 3 + 1})
module_case("layer_norm_2d_eps", torch.nn.LayerNorm([4, 6], eps=0.1), {"x": torch.randn(3, 4, 6)})
module_case("layer_norm_without_bias", torch.nn.LayerNorm(6, bias=False), {"x": torch.randn(4, 6)})
module_case("rms_norm", torch.nn.RMSNorm(6, eps=1e-6), {"x": torch.randn(3, 4, 6) * 2})
module_case("rms_norm_eps", torch.nn.RMSNorm([4, 6], eps=0.5), {"x": torch.randn(3, 4, 6)})
module_case("conv1d", torch.nn.Conv1d(4, 6, 3, stride=2, padding=1), {"x": torch.randn(2, 4, 9)})
module_case("conv1d_grouped", torch.nn.Conv1d(4, 6, 2, dilation=3, groups=2, bias=False),
            {"x": torch.randn(2, 4, 9)})
module_case("conv1d_same", torch.nn.Conv1d(2, 3, 3, padding="same", dilation=2), {"x": torch.randn(2, 2, 7)})
module_case("conv2d", torch.nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
            {"x": torch.randn(2, 3, 5, 6)})
module_case("conv2d_grouped", torch.nn.Conv2d(4, 4, 3, groups=4, dilation=2, padding=2),
            {"x": torch.randn(2, 4, 5, 5)})
module_case("gru_cell", torch.nn.GRUCell(4, 3), {"x": torch.randn(2, 4), "h": torch.randn(2, 3)})
module_case("gru_cell_without_bias", torch.nn.GRUCell(4, 3, bias=False),
            {"x": torch.randn(2, 4), "h": torch.randn(2, 3)})


class LSTM(torch.nn.LSTMCell):
    def forward(self, x, h, c):
        return super().forward(x, (h, c))


lstm_inputs = {"x": torch.randn(2, 4), "h": torch.randn(2, 3), "c": torch.randn(2, 3)}
module_case("lstm_cell", LSTM(4, 3), lstm_inputs)
module_case("lstm_cell_without_bias", LSTM(4, 3, bias=False), lstm_inputs)
for name, activation in {"relu": torch.nn.ReLU(), "tanh": torch.nn.Tanh()}.items():
    mlp = torch.nn.Sequential(torch.nn.Linear(5, 6), activation, torch.nn.Linear(6, 4), activation,
                              torch.nn.Linear(4, 2))
    names = {f"{2 * i}.{p}": f"{i + 1}.{p}" for i in range(3) for p in ("weight", "bias")}
    module_case(f"mlp_{name}", mlp, {"x": torch.randn(3, 5)}, names)

# ---- attention ----
q, k, v = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 5, 3), torch.randn(2, 4, 5, 3)
bool_mask = torch.rand(2, 1, 5, 5) > 0.4
bool_mask[..., 0] = True
float_mask = torch.randn(4, 5, 5)
few = {"q": q, "k": torch.randn(2, 2, 5, 3), "v": torch.randn(2, 2, 5, 3)}


def attention_case(name, inputs, **kwargs):
    extra = {"mask": kwargs.pop("mask")} if "mask" in kwargs else {}

    def forward(i, _):
        return {"y": F.scaled_dot_product_attention(i["q"], i["k"], i["v"], i.get("mask"), **kwargs)}

    case(f"attention_{name}", inputs | extra, {}, forward)


full = {"q": q, "k": k, "v": v}
attention_case("plain", full)
attention_case("cross", {"q": q[:, :, :2], "k": k, "v": v})
attention_case("causal", full, is_causal=True)
attention_case("bool_mask", full, mask=bool_mask)
attention_case("float_mask", full, mask=float_mask)
attention_case("scale", full, scale=0.9)
attention_case("gqa", few, enable_gqa=True)
attention_case("gqa_causal", few, enable_gqa=True, is_causal=True)


def multihead_case(name, inputs, heads=2, **kwargs):
    size = inputs["x"].shape[-1]
    module = torch.nn.MultiheadAttention(size, heads, batch_first=True)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape) * 0.4)
    params = {}
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        params[f"{part}.weight"] = module.in_proj_weight[i * size:(i + 1) * size]
        params[f"{part}.bias"] = module.in_proj_bias[i * size:(i + 1) * size]
    params["out_proj.weight"] = module.out_proj.weight
    params["out_proj.bias"] = module.out_proj.bias

    def forward(i, p):
        weights = {
            "in_proj_weight": torch.cat([p[f"{n}_proj.weight"] for n in "qkv"]),
            "in_proj_bias": torch.cat([p[f"{n}_proj.bias"] for n in "qkv"]),
            "out_proj.weight": p["out_proj.weight"], "out_proj.bias": p["out_proj.bias"],
        }
        memory = i.get("memory", i["x"])
        y, _ = torch.func.functional_call(module, weights, (i["x"], memory, memory),
                                          dict(need_weights=False, **kwargs))
        return {"y": y}

    case(f"multihead_{name}", inputs, params, forward)


multihead_case("self", {"x": torch.randn(2, 5, 6)})
multihead_case("memory", {"x": torch.randn(2, 5, 6), "memory": torch.randn(2, 3, 6)}, heads=3)
multihead_case("causal", {"x": torch.randn(2, 5, 6)}, is_causal=True,
               attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))

# ---- losses ----
logits, labels = torch.randn(3, 4, 7) * 2, torch.randint(0, 7, (3, 4))
some = labels.clone()
some[0, 1] = some[2] = -100
other = labels.clone()
other[1, 0] = other[1, 3] = 3


def loss_case(name, the_logits, the_labels, **kwargs):
    def forward(i, _):
        return {"loss": F.cross_entropy(i["logits"].float().reshape(-1, 7), i["labels"].reshape(-1),
                                        **kwargs)}

    case(f"cross_entropy_{name}", {"logits": the_logits, "labels": the_labels}, {}, forward)


loss_case("plain", logits, labels)
loss_case("ignored", logits, some)
loss_case("ignore_index", logits, other, ignore_index=3)
loss_case("smoothing", logits, labels, label_smoothing=0.2)
loss_case("smoothing_ignored", logits, some, label_smoothing=0.1)
loss_case("bfloat16", logits.bfloat16(), some)
loss_case("rows", logits[0], labels[0])

# ---- optimizers: five steps on given gradients ----
start = {"a": torch.randn(4, 3), "b": torch.randn(5), "c": torch.randn(2, 3, 4)}
gradients = [{n: torch.randn(p.shape) * (1 + i) for n, p in start.items()} for i in range(5)]
for n, p in start.items():
    cases[f"optim.start.{n}"] = p.clone()
    for i, g in enumerate(gradients):
        cases[f"optim.grad{i + 1}.{n}"] = g[n].clone()


def optim_case(name, make, clip=None, schedule=None, decayed=None):
    params = {n: p.clone().requires_grad_() for n, p in start.items()}
    optimizer = make(params)
    for i, gradient in enumerate(gradients):
        for n, p in params.items():
            p.grad = gradient[n].clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
        for group in optimizer.param_groups:
            if schedule is not None:
                group["lr"] = schedule(i)
        optimizer.step()
    for n, p in params.items():
        cases[f"optim.{name}.{n}"] = p.detach().clone()


def plain(kind, **kwargs):
    return lambda params: kind(list(params.values()), **kwargs)


def masked(kind, weight_decay, **kwargs):
    """Decay for all but vectors."""
    return lambda params: kind([
        {"params": [p for p in params.values() if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in params.values() if p.dim() <= 1], "weight_decay": 0}], **kwargs)


optim_case("adamw", plain(torch.optim.AdamW, lr=0.02))
optim_case("adamw_options", plain(torch.optim.AdamW, lr=0.02, betas=(0.8, 0.95), eps=1e-3,
                                  weight_decay=0.3))
optim_case("adamw_mask", masked(torch.optim.AdamW, 0.5, lr=0.02))
optim_case("adamw_schedule", plain(torch.optim.AdamW, lr=0.0), schedule=lambda i: 0.01 * (i + 1))
optim_case("adamw_clip", plain(torch.optim.AdamW, lr=0.02), clip=0.7)
optim_case("adam", plain(torch.optim.Adam, lr=0.02))
optim_case("adam_decay", plain(torch.optim.Adam, lr=0.02, weight_decay=0.1))
optim_case("sgd", plain(torch.optim.SGD, lr=0.02))
optim_case("sgd_momentum", plain(torch.optim.SGD, lr=0.02, momentum=0.9, dampening=0.5,
                                 weight_decay=0.1))
optim_case("sgd_nesterov", plain(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True))
optim_case("sgd_clip", plain(torch.optim.SGD, lr=0.02), clip=1.5)
optim_case("adafactor", plain(torch.optim.Adafactor, lr=0.02))
optim_case("adafactor_options", plain(torch.optim.Adafactor, lr=0.05, beta2_decay=-0.5, d=1.1,
                                      eps=(1e-6, 1e-2), weight_decay=0.1))


def lion(params, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1):
    """Chen et al., 2023, algorithm 2."""
    moments = {n: torch.zeros_like(p) for n, p in params.items()}
    for gradient in gradients:
        for n, p in params.items():
            m, g = moments[n], gradient[n]
            update = torch.sign(betas[0] * m + (1 - betas[0]) * g)
            p.sub_(lr * (update + weight_decay * p))
            m.mul_(betas[1]).add_(g, alpha=1 - betas[1])
    return params


for n, p in lion({n: p.clone() for n, p in start.items()}).items():
    cases[f"optim.lion.{n}"] = p

# ---- GPT-2 ----
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

config = GPT2Config(vocab_size=19, n_positions=8, n_embd=8, n_layer=2, n_head=2, n_inner=12,
                    embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                    attn_implementation="eager")
model = GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(torch.randn(p.shape) * 0.15)
ids = torch.randint(0, 19, (2, 7))
targets = ids.clone()
targets[1, 4:] = -100
out = model(input_ids=ids, labels=targets)  # the library shifts the labels itself
out.loss.backward()
buffers = {n for n in model.state_dict() if n.endswith((".attn.bias", ".attn.masked_bias"))}
for n, p in model.state_dict().items():
    if n != "lm_head.weight" and n not in buffers:
        cases[f"gpt2.p.{n}"] = p.clone()
for n, p in model.named_parameters():
    cases[f"gpt2.g.{n}"] = p.grad.clone()
cases["gpt2.in.input_ids"] = ids
cases["gpt2.in.labels"] = F.pad(targets, (0, 1), value=-100)[:, 1:].contiguous()
cases["gpt2.out.logits"] = out.logits.detach().clone()
cases["gpt2.out.loss"] = out.loss.detach().clone()

# ---- a TorchScript module ----


class Scripted(torch.nn.Module):
    """tanh(x w^T + b) * factor, with dropout in training, and the number of elements."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("n_calls", torch.tensor(7))

    def forward(self, x, factor: float = 1.0):
        y = self.dropout(torch.tanh(self.linear(x))) * factor
        return y, y.numel()


scripted = Scripted().eval()
x = torch.randn(4, 3)
scripted_outputs = {"in.x": x, "out.y": scripted(x)[0].detach()}
scripted_outputs |= {f"p.{n}": p.detach().clone() for n, p in scripted.state_dict().items()}
cases |= {f"scripted.{n}": t.clone() for n, t in scripted_outputs.items()}
torchscript.save(scripted, pathlib.Path(sys.argv[1]).parent / "script_module.pt")


class Dropped(torch.nn.Module):
    """Has what LibTorch's executor changes after the first calls, if it may."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)
        self.none, self.some = torch.nn.Dropout(0.0), torch.nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.none(self.a(x)))
        for i in range(2):
            h = self.some(h) * 2 + 1
        return self.b(h)


torchscript.save(Dropped(), pathlib.Path(sys.argv[1]).parent / "script_dropout.pt")

save_file({k: v.contiguous() for k, v in cases.items()}, sys.argv[1])
os.chmod(sys.argv[1], 0o644)
print(f"{len(cases)} tensors")
