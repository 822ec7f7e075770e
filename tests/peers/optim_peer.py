"""Optimizers and schedules give the parameters of torch.optim, step for step, over 20 steps.

optim_peer.py REDCO_LUA SOURCE [SEED]

Lion, LAMB and lookahead, which PyTorch lacks, are written out in float64 here. SEED also draws
options of the optimizers.
"""
import math
import random
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors.torch import load_file, save_file
from torch.optim import lr_scheduler

program, source, *rest = sys.argv[1:]
seed = int(rest[0]) if rest else 1
torch.set_num_threads(1)
torch.manual_seed(seed)
warnings.simplefilter("ignore")

N_STEPS, N_SCHEDULE_STEPS = 20, 60
SIZES = {"w": (5, 3), "v": (4, 6), "b": (7,), "c": (2, 3, 4)}
TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# Relative to the largest parameter. In bfloat16 both round after each operation, at other places:
# a few steps show that the formula is right.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 4e-2}

metrics = [float(x) for x in torch.rand(N_STEPS)]


class Lamb(torch.optim.Optimizer):
    """The algorithm of arXiv 1904.00962 with decoupled decay, as Optax has it."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                state["t"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                u = m / (v.sqrt() + group["eps"]) + group["decay"] * p
                ratio = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1
                p.sub_(group["lr"] * ratio * u)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                u = (beta1 * m + (1 - beta1) * p.grad).sign() + group["decay"] * p
                p.sub_(group["lr"] * u)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Then:
    """An optimizer followed by something at each step."""

    def __init__(self, optimizer, then):
        self.optimizer, self.then = optimizer, then

    def step(self):
        self.optimizer.step()
        self.then()


class Before:
    """An optimizer after a change of gradients."""

    def __init__(self, optimizer, change):
        self.optimizer, self.change = optimizer, change

    def step(self):
        self.change()
        self.optimizer.step()


def lookahead(params, optimizer, every, alpha):
    slow, count = [p.detach().clone() for p in params], [0]

    @torch.no_grad()
    def then():
        count[0] += 1
        if count[0] % every == 0:
            for p, s in zip(params, slow):
                s.lerp_(p, alpha)
                p.copy_(s)
    return Then(optimizer, then)


averages = {}


def ema(params, optimizer, decay):
    wide = [p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True) for p in params]
    averages[params[0].dtype] = wide

    @torch.no_grad()
    def then():
        for p, a in zip(params, wide):
            a.mul_(decay).add_(p.to(a.dtype), alpha=1 - decay)
    return Then(optimizer, then)


def plateau(params):
    optimizer = torch.optim.SGD(params, lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1,
                                               threshold=0.05)
    count = [0]

    def then():
        scheduler.step(metrics[count[0]])
        count[0] += 1
    return Then(optimizer, then)


def groups(params, decay):
    """Decay for w, v and c only."""
    return [{"params": [p for p in params if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in params if p.dim() == 1], "weight_decay": 0}]


o = torch.optim
# Name: the optimizer here, and in Lua.
optimizers = {
    "sgd": (lambda p: o.SGD(p, lr=0.05), "sgd { learning_rate = 0.05 }"),
    "sgd_momentum": (
        lambda p: o.SGD(groups(p, 0.1), lr=0.05, momentum=0.9, dampening=0.2),
        "sgd { learning_rate = 0.05, momentum = 0.9, dampening = 0.2, weight_decay = 0.1,"
        " mask = { 'w', 'v', 'c' } }"),
    "sgd_nesterov": (
        lambda p: o.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        "sgd { learning_rate = 0.05, momentum = 0.9, nesterov = true, weight_decay = 0.1 }"),
    "adam": (lambda p: o.Adam(groups(p, 0.1), lr=0.02),
             "adam { learning_rate = 0.02, weight_decay = 0.1,"
             " mask = function(_, param) return param.ndim > 1 end }"),
    "adamw": (lambda p: o.AdamW(p, lr=0.02, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.2),
              "adamw { learning_rate = 0.02, betas = { 0.8, 0.95 }, eps = 1e-5,"
              " weight_decay = 0.2 }"),
    "rmsprop": (lambda p: o.RMSprop(p, lr=0.02), "rmsprop { learning_rate = 0.02 }"),
    "rmsprop_options": (
        lambda p: o.RMSprop(groups(p, 0.1), lr=0.02, alpha=0.9, eps=1e-3, momentum=0.8,
                            centered=True),
        "rmsprop { learning_rate = 0.02, alpha = 0.9, eps = 1e-3, momentum = 0.8, centered = true,"
        " weight_decay = 0.1, mask = { 'w', 'v', 'c' } }"),
    "adagrad": (lambda p: o.Adagrad(p, lr=0.1), "adagrad { learning_rate = 0.1 }"),
    "adagrad_options": (
        lambda p: o.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.3, eps=1e-4,
                            weight_decay=0.1),
        "adagrad { learning_rate = 0.1, lr_decay = 0.1, initial_accumulator_value = 0.3,"
        " eps = 1e-4, weight_decay = 0.1 }"),
    "lamb": (lambda p: Lamb(p, lr=0.02), "lamb { learning_rate = 0.02 }"),
    "lamb_options": (
        lambda p: Lamb(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        "lamb { learning_rate = 0.02, betas = { 0.8, 0.95 }, eps = 1e-4, weight_decay = 0.1 }"),
    "lion": (lambda p: Lion(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.3),
             "lion { learning_rate = 0.02, betas = { 0.8, 0.95 }, weight_decay = 0.3 }"),
    "adafactor": (lambda p: o.Adafactor(p, lr=0.02), "adafactor { learning_rate = 0.02 }"),
    "muon": (lambda p: o.Muon(p, lr=0.02), "muon { learning_rate = 0.02 }"),
    "muon_options": (
        lambda p: o.Muon(p, lr=0.02, weight_decay=0.3, momentum=0.8, nesterov=False, ns_steps=4,
                         ns_coefficients=(3, -4, 2), adjust_lr_fn="match_rms_adamw"),
        "muon { learning_rate = 0.02, weight_decay = 0.3, momentum = 0.8, nesterov = false,"
        " ns_steps = 4, ns_coefficients = { 3, -4, 2 }, adjust_lr_fn = 'match_rms_adamw' }"),
    "multi": (
        lambda p: o.SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "lr": 0.01}]),
        "multi { { 'w', optim.sgd { learning_rate = 0.1 } },"
        " { '*', optim.sgd { learning_rate = 0.01 } } }"),
    "clip_value": (
        lambda p: Before(o.SGD(p, lr=0.1), lambda: torch.nn.utils.clip_grad_value_(p, 0.4)),
        "chain { optim.clip_by_value(0.4), optim.sgd { learning_rate = 0.1 } }"),
    "clip_norm": (
        lambda p: Before(o.AdamW(p, lr=0.1), lambda: torch.nn.utils.clip_grad_norm_(p, 0.4)),
        "chain { optim.clip_by_global_norm(0.4), optim.adamw { learning_rate = 0.1 } }"),
    "add_decayed": (
        lambda p: o.Adam(groups(p, 0.1), lr=0.02),
        "chain { optim.add_decayed_weights { weight_decay = 0.1, mask = { 'w', 'v', 'c' } },"
        " optim.adam { learning_rate = 0.02 } }"),
    "lookahead": (
        lambda p: lookahead(p, o.AdamW(p, lr=0.1), 3, 0.4),
        "chain { optim.adamw { learning_rate = 0.1 }, optim.lookahead { every = 3, alpha = 0.4 } }"),
    "ema": (lambda p: ema(p, o.SGD(p, lr=0.1), 0.8),
            "chain { optim.sgd { learning_rate = 0.1 }, optim.ema { decay = 0.8 } }"),
    "plateau": (plateau,
                "sgd { learning_rate = optim.on_plateau { value = 0.1, factor = 0.5, patience = 1,"
                " cooldown = 1, threshold = 0.05 } }"),
}


draw = random.Random(seed)


def part():
    return draw.choice([0.0, round(draw.uniform(0, 0.999), 3)])


def betas():
    return part(), round(draw.uniform(0.01, 0.999), 3)


def eps():
    return 10**draw.uniform(-12, -2)


def sometimes():
    return draw.random() < 0.5


# The options to draw of each optimizer.
options = {
    "sgd": (o.SGD, {"momentum": part, "dampening": part}),
    "adam": (o.Adam, {"betas": betas, "eps": eps}),
    "adamw": (o.AdamW, {"betas": betas, "eps": eps}),
    "rmsprop": (o.RMSprop, {"alpha": part, "eps": eps, "momentum": part, "centered": sometimes}),
    "adagrad": (o.Adagrad, {"lr_decay": part, "initial_accumulator_value": part, "eps": eps}),
    "lion": (Lion, {"betas": betas}),
    "lamb": (Lamb, {"betas": betas, "eps": eps}),
    "adafactor": (o.Adafactor, {
        "beta2_decay": lambda: -draw.uniform(0.1, 1), "eps": lambda: (eps(), eps()),
        "d": lambda: draw.uniform(1, 3)}),
    "muon": (o.Muon, {
        "momentum": part, "nesterov": sometimes, "eps": eps, "ns_steps": lambda: draw.randrange(1, 9),
        "adjust_lr_fn": lambda: draw.choice(["original", "match_rms_adamw"])}),
}


def lua_of(value):
    if isinstance(value, tuple):
        return "{ " + ", ".join(map(lua_of, value)) + " }"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def drawn(kind, values):
    """An optimizer with these options, here and in Lua."""
    names = {"learning_rate": values["lr"], **values}
    del names["lr"]
    if kind == "adafactor":
        names["eps1"], names["eps2"] = names.pop("eps")
    text = ", ".join(f"{name} = {lua_of(value)}" for name, value in names.items())
    return lambda p: options[kind][0](p, **values), f"{kind} {{ {text} }}"


for kind, (_, ranges) in options.items():
    for i in range(3):
        values = {name: value() for name, value in ranges.items()}
        optimizers[f"drawn_{kind}_{i}"] = drawn(
            kind, {"lr": draw.uniform(0.001, 0.2), "weight_decay": part(), **values})


def schedule(make):
    optimizer = o.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler, values = make(optimizer), []
    for _ in range(N_SCHEDULE_STEPS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def chained(optimizer, first, then, boundary):
    return lr_scheduler.SequentialLR(optimizer, [first(optimizer), then(optimizer)], [boundary])


schedules = {
    "constant": (
        lambda p: lr_scheduler.LambdaLR(p, lambda t: min(1, t / 10)),
        "constant_schedule { peak_value = 0.4, warmup_steps = 10 }"),
    "one_cycle": (
        lambda p: lr_scheduler.OneCycleLR(p, max_lr=0.4, total_steps=N_SCHEDULE_STEPS + 1),
        f"one_cycle_schedule {{ peak_value = 0.4, total_steps = {N_SCHEDULE_STEPS + 1} }}"),
    "one_cycle_linear": (
        lambda p: lr_scheduler.OneCycleLR(p, max_lr=0.4, total_steps=N_SCHEDULE_STEPS + 1,
                                          pct_start=0.4, anneal_strategy="linear", div_factor=7,
                                          final_div_factor=50),
        f"one_cycle_schedule {{ peak_value = 0.4, total_steps = {N_SCHEDULE_STEPS + 1},"
        " pct_start = 0.4, anneal_strategy = 'linear', div_factor = 7, final_div_factor = 50 }"),
    "polynomial": (
        lambda p: lr_scheduler.PolynomialLR(p, total_iters=40, power=1.7),
        "polynomial_schedule { peak_value = 0.4, power = 1.7, total_steps = 40 }"),
    "exponential": (
        lambda p: lr_scheduler.ExponentialLR(p, gamma=0.93),
        "exponential_schedule { peak_value = 0.4, decay_rate = 0.93 }"),
    "step": (
        lambda p: lr_scheduler.StepLR(p, step_size=7, gamma=0.5),
        "exponential_schedule { peak_value = 0.4, decay_rate = 0.5, decay_steps = 7,"
        " staircase = true }"),
    "multi_step": (
        lambda p: lr_scheduler.MultiStepLR(p, milestones=[10, 35], gamma=0.1),
        "piecewise_schedule { values = { 0.4, 0.04, 0.004 }, boundaries = { 10, 35 } }"),
    "cosine": (
        lambda p: lr_scheduler.LambdaLR(
            p, lambda t: (1 + math.cos(math.pi * min(t, 50) / 50)) / 2),
        "cosine_schedule { peak_value = 0.4, total_steps = 50 }"),
    "linear": (
        lambda p: lr_scheduler.LambdaLR(p, lambda t: t / 10 if t < 10 else max(0, (50 - t) / 40)),
        "linear_schedule { peak_value = 0.4, warmup_steps = 10, total_steps = 50 }"),
    "wsd": (
        lambda p: lr_scheduler.LambdaLR(
            p, lambda t: min(1, t / 10) if t < 30 else max(0, 1 - (t - 30) / 20)),
        "wsd_schedule { peak_value = 0.4, warmup_steps = 10, decay_steps = 20, total_steps = 50 }"),
}


def lua_cases():
    lines = ["return { optimizers = {"]
    lines += [f"{name} = function(optim) return optim.{text} end," for name, (_, text)
              in optimizers.items()]
    lines.append("}, schedules = {")
    lines += [f"{name} = function(optim) return optim.{text} end," for name, (_, text)
              in schedules.items()]
    numbers = ", ".join(f"{x!r}" for x in metrics)
    lines.append(f"}}, metrics = {{ {numbers} }}, n_schedule_steps = {N_SCHEDULE_STEPS} }}")
    return "\n".join(lines)


def check(what, actual, expected, tolerance):
    off = (actual.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert off <= tolerance, f"{what}: off by {off:.3g}, allowed are {tolerance}"
    return float(off)


with tempfile.TemporaryDirectory() as folder:
    stored = {}
    for name, dtype in TYPES.items():
        tensors = {f"start.{key}": torch.randn(size).to(dtype) for key, size in SIZES.items()}
        for i in range(N_STEPS):
            for key, size in SIZES.items():
                tensors[f"grad{i}.{key}"] = torch.randn(size).to(dtype)
        stored[name] = tensors
        save_file(tensors, f"{folder}/{name}.safetensors")
    with open(f"{folder}/cases.lua", "w") as file:
        file.write(lua_cases())
    subprocess.run([program, f"{source}/tests/peers/optim_steps.lua", folder], check=True)
    worst = dict.fromkeys(TYPES, 0.0)
    for name, (make, _) in optimizers.items():
        for type_name, dtype in TYPES.items():
            # Some options enlarge rounding errors.
            if name.startswith("drawn") and type_name != "float64":
                continue
            keys = ["w", "v"] if "muon" in name else list(SIZES)
            tensors = stored[type_name]
            params = [tensors[f"start.{key}"].clone().requires_grad_() for key in keys]
            optimizer = make(params)
            found = load_file(f"{folder}/{name}_{type_name}.safetensors")
            tolerance = TOLERANCE[type_name]
            if "muon" in name and type_name != "float64":
                tolerance = 4e-2  # the last bit of a gradient may round to another bfloat16
            for i in range(N_STEPS if type_name != "bfloat16" else 4):
                for key, param in zip(keys, params):
                    param.grad = tensors[f"grad{i}.{key}"].clone()
                optimizer.step()
                for key, param in zip(keys, params):
                    off = check(f"{name} in {type_name}, step {i}, {key}", found[f"{i}.{key}"],
                                param.detach(), tolerance)
                    worst[type_name] = max(worst[type_name], off)
            if name == "ema" and type_name != "bfloat16":
                for key, average in zip(keys, averages[dtype]):
                    check(f"averages in {type_name}", found[f"ema.{key}"], average, tolerance)
    expected = {name: schedule(make) for name, (make, _) in schedules.items()}
    with open(f"{folder}/schedules.txt") as file:
        for line in file:
            name, step, value = line.split()
            off = abs(float(value) - expected[name][int(step)])
            assert off < 1e-9, f"{name} at step {step}: {value}, expected {expected[name][int(step)]}"
print(f"{len(optimizers)} optimizers, {len(schedules)} schedules; worst relative differences {worst}")
