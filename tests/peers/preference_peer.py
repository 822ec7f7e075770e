"""Losses of preferences and distillation beside those of trl (0.24 or 1.16): loss, metrics and the
gradients of all parameters, of tiny models on fixed batches, in float64.

preference_peer.py REDCO_LUA SOURCE
"""
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

try:  # newer versions of trl compute log-probabilities in the model's forward pass
    from trl.experimental.cpo.cpo_trainer import CPOTrainer
    from trl.experimental.gkd.gkd_trainer import GKDTrainer
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer
    from trl.trainer.utils import add_fused_lm_head
except ImportError:
    from trl.trainer.cpo_trainer import CPOTrainer
    from trl.trainer.dpo_config import FDivergenceType
    from trl.trainer.gkd_trainer import GKDTrainer
    from trl.trainer.orpo_trainer import ORPOTrainer

    add_fused_lm_head = None

program, source = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(3)
accelerator = Accelerator(cpu=True)

sizes = dict(
    vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    initializer_range=0.3, pad_token_id=0,
)
# Whose head is the embedding (gpt2), is not (llama), and whose logits have a cap (gemma2).
models = {
    "llama": transformers.LlamaConfig(**sizes),
    "gpt2": transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
        pad_token_id=0, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
    ),
    "gemma2": transformers.Gemma2Config(**sizes, head_dim=8, sliding_window=64),
}


def random_tokens(n):
    return torch.randint(3, 99, (n,)).tolist()


examples = [
    {"prompt": random_tokens(n), "chosen": random_tokens(a), "rejected": random_tokens(b)}
    for n, a, b in ((3, 4, 6), (5, 2, 1), (1, 7, 3), (4, 3, 8))
]
margins = [0.25, 1.25, 0.0, 2.0]
unpaired = [
    {"prompt": e["prompt"], "completion": e["rejected" if i % 3 == 0 else "chosen"],
     "kl_completion": examples[i - 1]["rejected" if (i - 1) % 3 == 0 else "chosen"],
     "desirable": i % 3 != 0}
    for i, e in enumerate(examples)
]

# name: function, options, model
cases = {
    "dpo": ("dpo", {}, "gpt2"),
    "dpo_untied": ("dpo", {"beta": 0.3}, "llama"),
    "dpo_capped": ("dpo", {}, "gemma2"),
    "cdpo": ("dpo", {"label_smoothing": 0.2}, "gpt2"),
    "rpo": ("dpo", {"rpo_alpha": 0.7}, "gpt2"),
    "dpo_hinge": ("dpo", {"loss_type": "hinge"}, "gpt2"),
    "dpo_ipo": ("dpo", {"loss_type": "ipo", "beta": 0.2}, "gpt2"),
    "dpo_robust": ("dpo", {"loss_type": "robust", "label_smoothing": 0.1}, "gpt2"),
    "dpo_exo_pair": ("dpo", {"loss_type": "exo_pair"}, "gpt2"),
    "dpo_nca_pair": ("dpo", {"loss_type": "nca_pair"}, "gpt2"),
    "dpo_sppo_hard": ("dpo", {"loss_type": "sppo_hard"}, "gpt2"),
    "dpo_apo_zero": ("dpo", {"loss_type": "apo_zero"}, "gpt2"),
    "dpo_apo_down": ("dpo", {"loss_type": "apo_down"}, "gpt2"),
    "dpo_sigmoid_norm": ("dpo", {"loss_type": "sigmoid_norm", "beta": 2}, "gpt2"),
    "cpo": ("cpo", {}, "gpt2"),
    "cpo_hinge": ("cpo", {"loss_type": "hinge", "cpo_alpha": 0.5}, "gpt2"),
    "cpo_ipo": ("cpo", {"loss_type": "ipo", "cpo_alpha": 0}, "llama"),
    "simpo": ("cpo", {"loss_type": "simpo", "cpo_alpha": 0, "beta": 2.0, "simpo_gamma": 0.9},
              "gpt2"),
    "orpo": ("orpo", {"beta": 0.3}, "gpt2"),
    "kto": ("kto", {}, "gpt2"),
    "kto_weighted": ("kto", {"desirable_weight": 1.3, "undesirable_weight": 0.6, "beta": 0.5},
                     "llama"),
    "kto_apo": ("kto", {"loss_type": "apo_zero_unpaired"}, "gpt2"),
    "reward": ("reward", {}, "gpt2"),
    "reward_margin": ("reward", {"with_margin": True}, "gpt2"),
    "reward_centred": ("reward", {"center_rewards_coefficient": 0.05}, "gpt2"),
    "distillation": ("distillation", {}, "gpt2"),
    "forward_kl": ("distillation", {"beta": 0}, "gpt2"),
    "reverse_kl": ("distillation", {"beta": 1, "temperature": 2}, "llama"),
    "jsd": ("distillation", {"beta": 0.3, "temperature": 1.5}, "gpt2"),
}


if add_fused_lm_head:  # it has no conservative DPO
    del cases["cdpo"]


def padded(rows, value, left=False):
    n = max(map(len, rows))
    pads = [[value] * (n - len(row)) for row in rows]
    return torch.tensor([p + r if left else r + p for r, p in zip(rows, pads, strict=True)])


def trainer_of(cls, model, **attributes):
    """A trainer that only computes losses."""
    trainer = cls.__new__(cls)
    trainer.__dict__.update(
        accelerator=accelerator, model=model, aux_loss_enabled=False, is_encoder_decoder=False,
        label_pad_token_id=-100, padding_value=0, pad_token_id=0, label_smoothing=0,
        _peft_has_been_casted_to_bf16=False, _total_train_tokens=0, _tp_size=1, **attributes,
    )
    return trainer


def as_completions(rows, name, key):
    """The inputs of trainers whose sequences contain the prompt."""
    return {
        f"{key}_input_ids": padded([r["prompt"] + r[name] for r in rows], 0),
        f"{key}_attention_mask": padded([[1] * len(r["prompt"] + r[name]) for r in rows], 0),
        f"{key}_labels": padded([[-100] * len(r["prompt"]) + r[name] for r in rows], -100),
    }


def fused_trainer_of(cls, policy, reference, options, **attributes):
    for model in (policy, reference):
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    return trainer_of(
        cls, policy, ref_model=reference, beta=options.get("beta", 0.1), precompute_ref_logps=False,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)}, **attributes)


def as_masked(rows, name, prefix=""):
    """The inputs of newer trainers, whose masks say where completions are."""
    pairs = [(r["prompt"], r[name]) for r in rows]
    return {
        f"{prefix}input_ids": padded([p + c for p, c in pairs], 0),
        f"{prefix}attention_mask": padded([[1] * len(p + c) for p, c in pairs], 0),
        f"{prefix}completion_mask": padded([[0] * len(p) + [1] * len(c) for p, c in pairs], 0),
    }


def metrics_of(trainer, left_out=()):
    found = {k: v[0] for k, v in trainer._metrics["eval"].items()}
    return {k: v for k, v in found.items()
            if k not in ("entropy", "num_tokens", "mean_token_accuracy", *left_out)}


def fused_dpo(policy, reference, options):
    loss_type, alpha = options.get("loss_type", "sigmoid"), options.get("rpo_alpha")
    trainer = fused_trainer_of(
        DPOTrainer, policy, reference, options, loss_types=[loss_type, *["sft"] * bool(alpha)],
        loss_weights=[1.0, *[alpha] * bool(alpha)], f_divergence_type="reverse_kl",
        use_weighting=False, ld_alpha=None)
    trainer.label_smoothing = options.get("label_smoothing", 1e-3 if loss_type == "exo_pair" else 0)
    rows = [{**e, "completion": e[name]} for name in ("chosen", "rejected") for e in examples]
    loss = trainer._compute_loss(policy, as_masked(rows, "completion"), False)
    # Its metrics are of sums, ours of what these losses compare: means.
    is_mean = loss_type in ("ipo", "sigmoid_norm")
    return loss, {} if is_mean else metrics_of(trainer)


def fused_kto(policy, reference, options):
    loss_type = options.get("loss_type", "kto")
    trainer = fused_trainer_of(
        KTOTrainer, policy, reference, options, loss_type=loss_type,
        calculate_KL=loss_type == "kto", desirable_weight=options.get("desirable_weight", 1.0),
        undesirable_weight=options.get("undesirable_weight", 1.0))
    batch = as_masked(unpaired, "completion") | as_masked(unpaired, "kl_completion", "KL_")
    batch["label"] = torch.tensor([e["desirable"] for e in unpaired])
    loss = trainer._compute_loss(policy, batch, False)
    return loss, metrics_of(trainer, ["rewards/margins"])


def dpo(policy, reference, options):
    if add_fused_lm_head:
        return fused_dpo(policy, reference, options)
    loss_type = options.get("loss_type", "sigmoid")
    trainer = trainer_of(
        DPOTrainer, policy, ref_model=reference, beta=options.get("beta", 0.1), reference_free=False,
        loss_type=["sigmoid" if loss_type == "sigmoid_norm" else loss_type], loss_weights=None,
        f_divergence_type=FDivergenceType.REVERSE_KL, f_divergence_params={}, use_weighting=False,
        use_logits_to_keep=False, padding_free=False, max_length=None,
        args=SimpleNamespace(use_liger_loss=False, rpo_alpha=options.get("rpo_alpha"), ld_alpha=None),
    )
    trainer.label_smoothing = options.get("label_smoothing", 0)
    if loss_type == "sigmoid_norm":  # the sums that "ipo" divides
        whole = trainer.concatenated_forward

        def normalised(*arguments, **named):
            trainer.loss_type = ["ipo"]
            output = whole(*arguments, **named)
            trainer.loss_type = ["sigmoid"]
            return output

        trainer.concatenated_forward = normalised
    batch = {
        "prompt_input_ids": padded([e["prompt"] for e in examples], 0, left=True),
        "prompt_attention_mask": padded([[1] * len(e["prompt"]) for e in examples], 0, left=True),
    }
    for name in ("chosen", "rejected"):
        batch[f"{name}_input_ids"] = padded([e[name] for e in examples], 0)
        batch[f"{name}_attention_mask"] = padded([[1] * len(e[name]) for e in examples], 0)
    with torch.no_grad():
        output = trainer.concatenated_forward(reference, dict(batch), is_ref_model=True)
    batch["ref_chosen_logps"] = output["chosen_logps"]
    batch["ref_rejected_logps"] = output["rejected_logps"]
    return trainer.get_batch_loss_metrics(policy, batch)


def cpo(policy, reference, options):
    trainer = trainer_of(
        CPOTrainer, policy, beta=options.get("beta", 0.1), alpha=0.0,
        loss_type=options.get("loss_type", "sigmoid"), cpo_alpha=options.get("cpo_alpha", 1.0),
        simpo_gamma=options.get("simpo_gamma", 0.5),
    )
    return trainer.get_batch_loss_metrics(
        policy, as_completions(examples, "chosen", "chosen")
        | as_completions(examples, "rejected", "rejected"))


def orpo(policy, reference, options):
    trainer = trainer_of(ORPOTrainer, policy, beta=options.get("beta", 0.1))
    return trainer.get_batch_loss_metrics(
        policy, as_completions(examples, "chosen", "chosen")
        | as_completions(examples, "rejected", "rejected"))


def kto(policy, reference, options):
    if add_fused_lm_head:
        return fused_kto(policy, reference, options)
    loss_type = options.get("loss_type", "kto")
    trainer = trainer_of(
        KTOTrainer, policy, ref_model=reference, beta=options.get("beta", 0.1), loss_type=loss_type,
        calculate_KL=loss_type == "kto", desirable_weight=options.get("desirable_weight", 1.0),
        undesirable_weight=options.get("undesirable_weight", 1.0),
        args=SimpleNamespace(use_liger_loss=False),
    )
    batch = as_completions(unpaired, "completion", "completion")
    batch |= as_completions(unpaired, "kl_completion", "KL_completion")
    batch["label"] = [e["desirable"] for e in unpaired]
    loss, found = trainer.get_batch_loss_metrics(policy, batch)
    metrics = {"kl": found["kl"]}
    for kind in ("chosen", "rejected"):  # as KTOTrainer.log divides them
        for name in ("rewards", "logps"):
            metrics[f"{name}/{kind}"] = found[f"{name}/{kind}_sum"] / found[f"count/{kind}"]
    return loss, metrics


def reward(policy, reference, options):
    metrics = {"train": {name: [] for name in (
        "min_reward", "mean_reward", "max_reward", "accuracy", "margin")}}
    trainer = trainer_of(
        RewardTrainer, policy.train(), _metrics=metrics,
        args=SimpleNamespace(
            center_rewards_coefficient=options.get("center_rewards_coefficient")),
    )
    rows = [e["prompt"] + e[name] for name in ("chosen", "rejected") for e in examples]
    batch = {"input_ids": padded(rows, 0), "attention_mask": padded([[1] * len(r) for r in rows], 0)}
    if options.get("with_margin"):
        batch["margin"] = torch.tensor(margins)
        forward = policy.forward
        policy.forward = lambda margin=None, **named: forward(**named)
    loss = trainer.compute_loss(policy, batch)
    return loss, {k: v[0] for k, v in metrics["train"].items() if k != "num_tokens"}


def distillation(policy, reference, options):
    batch = as_completions(examples, "chosen", "chosen")
    inputs = {"input_ids": batch["chosen_input_ids"], "attention_mask": batch["chosen_attention_mask"]}
    student = policy(**inputs).logits[:, :-1]
    with torch.no_grad():
        teacher = reference(**inputs).logits[:, :-1]
    return GKDTrainer.generalized_jsd_loss(
        student, teacher, batch["chosen_labels"][:, 1:], beta=options.get("beta", 0.5),
        temperature=options.get("temperature", 1.0)), {}


failures = 0
fused = ("dpo", "kto")
of_float32 = (*fused, "orpo")


def expect(name, what, found, expected):
    global failures
    difference = (found - expected).abs().max().item()
    size = max(expected.abs().max().item(), 1e-2)
    # Parts of the others are in float32: norms in transformers, the fused head and the odds in trl.
    is_exact = cases[name][2] == "gpt2" and not (add_fused_lm_head and cases[name][0] in of_float32)
    tolerance = 1e-9 if is_exact else 1e-5
    if add_fused_lm_head and cases[name][2] == "gemma2":  # the cap, too
        tolerance = 1e-4
    if not difference <= tolerance * size:
        failures += 1
        print(f"{name}: {what} differs by {difference:.2g} of {size:.2g}")


def of_ratio(value):
    return value[0] / value[1] if value.numel() == 2 else value.reshape(())


with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    # In float64, so that differences are not those of rounding.
    for name, config in models.items():
        for kind in ("policy", "reference"):
            model = transformers.AutoModelForCausalLM.from_config(config).double()
            model.save_pretrained(folder / name / kind)
        config.num_labels = 1
        model = transformers.AutoModelForSequenceClassification.from_config(config).double()
        model.save_pretrained(folder / name / "reward")
    (folder / "jobs.json").write_text(json.dumps({
        "examples": examples, "unpaired": unpaired, "margins": margins,
        "cases": [{"name": name, "function": case[0], "options": case[1], "model": case[2]}
                  for name, case in cases.items()],
    }))
    subprocess.run([program, f"{source}/tests/peers/preference.lua", scratch], check=True)
    for name, (function, options, kind) in cases.items():
        cls = transformers.AutoModelForCausalLM
        if function == "reward":
            cls = transformers.AutoModelForSequenceClassification
        path = folder / kind
        first = "reward" if function == "reward" else "policy"
        policy = cls.from_pretrained(
            path / first, dtype=torch.float64, attn_implementation="eager")
        reference = transformers.AutoModelForCausalLM.from_pretrained(
            path / "reference", dtype=torch.float64, attn_implementation="eager")
        loss, metrics = globals()[function](policy.eval(), reference.eval(), options)
        loss.backward()
        found = load_file(folder / f"{name}.safetensors")
        expect(name, "loss", found.pop("loss"), loss.detach())
        for key, value in metrics.items():
            if key.startswith("logits/"):  # the mean of all logits, which are not held here
                continue
            ours = found.pop(f"metrics.{key}", None)
            if ours is None:
                failures += 1
                print(f"{name}: there is no metric {key}")
            else:
                expect(name, key, of_ratio(ours).double(), torch.tensor(value, dtype=torch.float64))
        compared = 0
        for key, parameter in policy.named_parameters():
            ours = found.pop(f"grads.{key}", None)
            if ours is not None:
                compared += 1
                expect(name, f"the gradient of {key}", ours, parameter.grad)
        if add_fused_lm_head and function in fused:  # metrics that newer versions do not have
            found = {k: v for k, v in found.items() if not k.startswith("metrics.")}
        if compared != len(list(policy.parameters())) or found:
            failures += 1
            print(f"{name}: compared {compared} gradients; left are {sorted(found)}")

print(f"{len(cases)} losses, {failures} differences")
sys.exit(failures > 0)
