"""Writes tests/lua/layer_cases.safetensors: norms, pooling, transposed convolutions, recurrent stacks,
bags of embeddings and losses of torch.nn, and torch.distributions, with gradients.

    python tests/tools/make_layer_cases.py tests/lua/layer_cases.safetensors

Names: CASE.in.NAME inputs, CASE.p.NAME parameters, CASE.out.N the outputs, CASE.r.N what each output
is multiplied with before everything is added up to the scalar whose gradients are CASE.g.in.NAME and
CASE.g.p.NAME; CASE.after.NAME the state of a module after training. Needs torch and safetensors.
"""

import sys

import torch
import torch.distributions as D
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20261123)
cases = {}


def case(name, inputs, forward, params=None):
    """Stores a case; forward(inputs, params) returns a tensor or a tuple of tensors."""
    leaves = {f"in.{k}": v.detach().clone() for k, v in inputs.items()}
    leaves |= {f"p.{k}": v.detach().clone() for k, v in (params or {}).items()}
    cases.update({f"{name}.{k}": v.clone() for k, v in leaves.items()})
    trained = {k: v.requires_grad_() for k, v in leaves.items() if v.is_floating_point()}
    outputs = forward({k: leaves[f"in.{k}"] for k in inputs},
                      {k: leaves[f"p.{k}"] for k in params or {}})
    total = 0
    for i, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        cases[f"{name}.out.{i + 1}"] = value.detach().clone()
        cases[f"{name}.r.{i + 1}"] = r = torch.randn(value.shape)
        total = total + (value * r).sum()
    for key, gradient in zip(trained, torch.autograd.grad(total, list(trained.values()),
                                                          allow_unused=True)):
        if gradient is not None:
            cases[f"{name}.g.{key}"] = gradient.clone()


def module(name, layer, x, *states):
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape) * 0.4 + 0.1)
    buffers = {k: b.clone() for k, b in layer.named_buffers() if b.is_floating_point()}
    cases.update({f"{name}.before.{k}": b for k, b in buffers.items()})
    inputs = {"x": x} | {f"s{i + 1}": s for i, s in enumerate(states)}

    def forward(i, p):
        given = [i[f"s{n + 1}"] for n in range(len(states))]
        extra = [] if not given else [given[0] if len(given) == 1 else tuple(given)]
        out = torch.func.functional_call(layer, p, (i["x"], *extra))
        if not isinstance(out, tuple):
            return out
        return (out[0], *(out[1] if isinstance(out[1], tuple) else (out[1],)))

    case(name, inputs, forward, dict(layer.named_parameters()))
    cases.update({f"{name}.after.{k}": b.clone() for k, b in layer.named_buffers() if k in buffers})


nn = torch.nn
module("batch_norm", nn.BatchNorm2d(3), torch.randn(4, 3, 2, 2) * 2 + 1)
module("batch_norm_1d", nn.BatchNorm1d(3, momentum=0.3, eps=0.1), torch.randn(5, 3))
module("batch_norm_eval", nn.BatchNorm1d(3).eval(), torch.randn(5, 3, 2))
module("batch_norm_plain", nn.BatchNorm1d(3, affine=False, track_running_stats=False),
       torch.randn(5, 3, 2))
module("group_norm", nn.GroupNorm(2, 4), torch.randn(3, 4, 5))
module("instance_norm", nn.InstanceNorm1d(3, affine=True), torch.randn(2, 3, 6))
module("instance_norm_plain", nn.InstanceNorm2d(3), torch.randn(2, 3, 3, 2))
module("conv3d", nn.Conv3d(2, 3, 2, padding=1), torch.randn(1, 2, 3, 3, 2))
module("conv_transpose1d", nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1,
                                              groups=2), torch.randn(2, 4, 5))
module("conv_transpose2d", nn.ConvTranspose2d(2, 3, (2, 3), stride=(2, 1), dilation=2, bias=False),
       torch.randn(2, 2, 3, 3))
module("conv_transpose3d", nn.ConvTranspose3d(2, 2, 2), torch.randn(1, 2, 2, 2, 2))
module("rnn", nn.RNN(3, 4, 2, batch_first=True, nonlinearity="relu"), torch.randn(2, 5, 3),
       torch.randn(2, 2, 4))
module("gru", nn.GRU(3, 4, bias=False, batch_first=True, bidirectional=True), torch.randn(2, 5, 3))
module("lstm", nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), torch.randn(2, 5, 3),
       torch.randn(4, 2, 4), torch.randn(4, 2, 4))
module("rnn_cell", nn.RNNCell(3, 4), torch.randn(2, 3), torch.randn(2, 4))

image = torch.randn(2, 3, 5, 6)
for name, f in {
    "max_pool2d": lambda x: F.max_pool2d(x, (2, 3), stride=1, padding=1),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 3, dilation=2),
    "max_pool3d": lambda x: F.max_pool3d(x, 2, ceil_mode=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 4)),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[0], 4),
}.items():
    case(name, {"x": image}, lambda i, _, f=f: f(i["x"]))

ids, weight = torch.tensor([[0, 3, 3], [2, 5, 5], [5, 5, 5]]), torch.randn(6, 4)
for mode in "sum", "mean", "max":
    case(f"embedding_bag_{mode}", {"ids": ids},
         lambda i, p, mode=mode: F.embedding_bag(i["ids"], p["weight"], mode=mode, padding_idx=5),
         {"weight": weight})
case("embedding_bag_weighted", {"ids": ids, "w": torch.rand(3, 3)},
     lambda i, p: F.embedding_bag(i["ids"], p["weight"], mode="sum", per_sample_weights=i["w"]),
     {"weight": weight})

x, y = torch.randn(4, 3), torch.randn(4, 3)
sign, classes = torch.tensor([1., -1, 1, -1]), torch.tensor([0, 2, 1, 2])
chance = torch.rand(4, 3) * 0.8 + 0.1
pairs = {"x": x, "y": y}
losses = {
    "l1_loss": (pairs, lambda i, r: F.l1_loss(i["x"], i["y"], reduction=r)),
    "mse_loss": (pairs, lambda i, r: F.mse_loss(i["x"], i["y"], reduction=r)),
    "smooth_l1_loss": (pairs, lambda i, r: F.smooth_l1_loss(i["x"], i["y"], reduction=r, beta=0.7)),
    "huber_loss": (pairs, lambda i, r: F.huber_loss(i["x"], i["y"], reduction=r, delta=0.6)),
    "soft_margin_loss": ({"x": x, "y": y.sign()},
                         lambda i, r: F.soft_margin_loss(i["x"], i["y"].detach(), reduction=r)),
    "binary_cross_entropy": ({"x": chance, "y": chance.flip(0), "w": chance + 1},
                             lambda i, r: F.binary_cross_entropy(
                                 i["x"], i["y"].detach(), i["w"].detach(), reduction=r)),
    "binary_cross_entropy_with_logits": (
        {"x": x, "y": chance, "w": torch.rand(3)},
        lambda i, r: F.binary_cross_entropy_with_logits(i["x"], i["y"].detach(), reduction=r,
                                                        pos_weight=i["w"].detach())),
    "nll_loss": ({"x": x, "y": classes, "w": torch.rand(3)},
                 lambda i, r: F.nll_loss(i["x"], i["y"], i["w"].detach(), reduction=r,
                                         ignore_index=1)),
    "kl_div": ({"x": x, "y": chance}, lambda i, r: F.kl_div(i["x"], i["y"].detach(), reduction=r)),
    "poisson_nll_loss": ({"x": x, "y": y.abs() * 3},
                         lambda i, r: F.poisson_nll_loss(i["x"], i["y"].detach(), full=True,
                                                         reduction=r)),
    "gaussian_nll_loss": ({"x": x, "y": y, "v": torch.tensor([1e-9, 1., 2, 3])[:, None] * chance},
                          lambda i, r: F.gaussian_nll_loss(i["x"], i["y"], i["v"], full=True,
                                                           reduction=r)),
    "hinge_embedding_loss": ({"x": x, "y": y.sign()},
                             lambda i, r: F.hinge_embedding_loss(i["x"], i["y"].detach(), 0.8,
                                                                 reduction=r)),
    "margin_ranking_loss": ({"x": x[:, 0], "y": y[:, 0], "t": sign},
                            lambda i, r: F.margin_ranking_loss(i["x"], i["y"], i["t"].detach(), 0.2,
                                                               reduction=r)),
    "cosine_embedding_loss": ({"x": x, "y": y, "t": sign},
                              lambda i, r: F.cosine_embedding_loss(i["x"], i["y"], i["t"].detach(),
                                                                   -0.9, reduction=r)),
    "triplet_margin_loss": ({"x": x, "y": y, "t": x.flip(0)},
                            lambda i, r: F.triplet_margin_loss(i["x"], i["y"], i["t"], 1.5, 1,
                                                               swap=True, reduction=r)),
    "multi_margin_loss": ({"x": x, "y": classes, "w": torch.rand(3)},
                          lambda i, r: F.multi_margin_loss(i["x"], i["y"], 2, 0.7,
                                                           i["w"].detach(), reduction=r)),
    "multilabel_margin_loss": ({"x": x, "y": torch.tensor([[0, 2, -1], [1, -1, 0], [-1, 0, 1],
                                                           [2, 1, 0]])},
                               lambda i, r: F.multilabel_margin_loss(i["x"], i["y"], reduction=r)),
    "multilabel_soft_margin_loss": ({"x": x, "y": (y > 0).float(), "w": torch.rand(3)},
                                    lambda i, r: F.multilabel_soft_margin_loss(
                                        i["x"], i["y"].detach(), i["w"].detach(), reduction=r)),
    "ctc_loss": ({"x": torch.randn(6, 3, 4), "y": torch.randint(1, 4, (3, 2))},
                 lambda i, r: F.ctc_loss(i["x"].log_softmax(-1), i["y"], (6, 5, 6), (2, 1, 2),
                                         reduction=r)),
}
for name, (inputs, f) in losses.items():
    for reduction in "mean", "sum", "none":
        case(f"{name}_{reduction}", inputs, lambda i, _, f=f, r=reduction: f(i, r))
case("kl_div_batchmean", {"x": x, "y": y}, lambda i, _: F.kl_div(i["x"], i["y"], log_target=True,
                                                                 reduction="batchmean"))

# log_prob, entropy where there is one, and the divergence of the first two.
loc, scale = torch.randn(2, 4, 3), torch.rand(2, 4, 3) + 0.2


def distribution(name, params, value, make, entropy=True, kl=True):
    def forward(i, _):
        p, q = (make({k: v[n] for k, v in i.items() if k != "value"}) for n in range(2))
        results = [p.log_prob(i["value"].detach())]
        if entropy:
            results.append(p.entropy())
        if kl:
            results.append(D.kl_divergence(p, q))
        return tuple(results)

    case(f"distribution_{name}", params | {"value": value}, forward)


normal = {"loc": loc, "scale": scale}
distribution("normal", normal, torch.randn(4, 3), lambda i: D.Normal(**i))
distribution("independent", normal, torch.randn(4, 3),
             lambda i: D.Independent(D.Normal(**i), 1))
distribution("tanh_normal", normal, torch.rand(4, 3) * 1.8 - 0.9,
             lambda i: D.TransformedDistribution(D.Normal(**i), D.TanhTransform()), entropy=False)
distribution("categorical", {"logits": loc}, torch.randint(0, 3, (5, 4)),
             lambda i: D.Categorical(logits=i["logits"]))
distribution("categorical_probs", {"probs": scale}, torch.randint(0, 3, (4,)),
             lambda i: D.Categorical(probs=i["probs"]))
distribution("bernoulli", {"logits": loc}, torch.randint(0, 2, (4, 3)).float(),
             lambda i: D.Bernoulli(logits=i["logits"]))
distribution("bernoulli_probs", {"probs": scale / 2}, torch.randint(0, 2, (4, 3)).float(),
             lambda i: D.Bernoulli(probs=i["probs"]))

save_file({k: v.contiguous() for k, v in cases.items()}, sys.argv[1])
print(f"{len(cases)} tensors")
