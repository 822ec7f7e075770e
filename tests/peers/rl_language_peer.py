"""Losses of reinforcement learning beside those of trl (0.24 or 1.16): loss, metrics and the
gradients of all parameters, of tiny models on fixed batches, in float64; and the advantages of
rewards.

rl_language_peer.py REDCO_LUA SOURCE
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
from safetensors.torch import load_file, save_file
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

try:  # newer versions of trl compute log-probabilities in the model's forward pass
    from trl.trainer.utils import add_fused_lm_head
except ImportError:
    add_fused_lm_head = None

program, source = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(5)
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

# Prompts are of one length: trl counts the padding before shorter ones as positions of GPT-2.
lengths = [(4, 4), (4, 6), (4, 2), (4, 7), (4, 5), (4, 8)]
prompts = [torch.randint(3, 99, (n,)).tolist() for n, _ in lengths]
completions = [torch.randint(3, 99, (n,)).tolist() for _, n in lengths]
is_counted = [True, True, True, True, True, False]  # the last is cut, and masked
longest = max(n for _, n in lengths)
max_completion_length = 10

# name: options, model, temperature, whether the samples are those of the policy
cases = {
    "grpo_on_policy": ({}, "gpt2", 1.0, True),
    "grpo": ({}, "gpt2", 1.0, False),
    "grpo_untied": ({"beta": 0.04}, "llama", 0.7, False),
    "grpo_capped": ({"beta": 0.1}, "gemma2", 1.3, False),
    "clip_higher": ({"epsilon": 0.1, "epsilon_high": 0.5, "loss_type": "dapo"}, "gpt2", 1.0, False),
    "two_sided": ({"delta": 1.5, "beta": 0.02}, "gpt2", 1.0, False),
    "dapo": ({"loss_type": "dapo", "beta": 0.3}, "gpt2", 0.9, False),
    "dr_grpo": ({"loss_type": "dr_grpo"}, "gpt2", 1.0, False),
    "gspo": ({"loss_type": "gspo", "epsilon": 0.03, "epsilon_high": 0.04, "beta": 0.1}, "gpt2", 1.0,
             False),
    "rloo": ({"loss_type": "rloo"}, "gpt2", 1.0, False),
    "correction": ({"importance_sampling_cap": 1.1, "beta": 0.2}, "gpt2", 1.0, False),
    "correction_dapo": ({"importance_sampling_cap": 2.0, "loss_type": "dapo"}, "llama", 1.0, False),
}
if add_fused_lm_head:  # trl 0.24 clips this loss otherwise
    cases["cispo"] = ({"loss_type": "cispo", "epsilon_high": 1.2}, "gpt2", 1.0, False)


def padded(rows, value, left=False):
    n = max(map(len, rows))
    pads = [[value] * (n - len(row)) for row in rows]
    return torch.tensor([p + r if left else r + p for r, p in zip(rows, pads, strict=True)])


prompt_ids, prompt_mask = padded(prompts, 0, True), padded([[1] * len(p) for p in prompts], 0, True)
completion_ids = padded(completions, 0)
completion_mask = padded(
    [[int(c)] * len(row) for row, c in zip(completions, is_counted, strict=True)], 0)


def prepared(model, temperature):
    if add_fused_lm_head:
        add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    return model


def logps_of(model, temperature):
    mask = torch.cat([prompt_mask, padded([[1] * len(c) for c in completions], 0)], 1)
    return GRPOTrainer._get_per_token_logps_and_entropies(
        SimpleNamespace(model_kwarg_keys=set(), temperature=temperature, accelerator=accelerator,
                        args=SimpleNamespace(report_to=[])), prepared(model, temperature),
        torch.cat([prompt_ids, completion_ids], 1), mask, longest)[0].detach()


def trainer_of(cls, model, temperature, options, **attributes):
    """A trainer that only computes losses."""
    trainer = cls.__new__(cls)
    epsilon = options.get("epsilon", 0.2)
    trainer.__dict__.update(
        accelerator=accelerator, model=prepared(model, temperature), temperature=temperature,
        model_kwarg_keys=set(), aux_loss_enabled=False, off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False, top_entropy_quantile=1.0, epsilon_low=epsilon,
        epsilon_high=options.get("epsilon_high", epsilon), beta=options.get("beta", 0.0),
        current_gradient_accumulation_steps=1, max_completion_length=max_completion_length,
        use_vllm="importance_sampling_cap" in options, vllm_importance_sampling_correction=True,
        args=SimpleNamespace(
            delta=options.get("delta"), report_to=[], use_bias_correction_kl=False),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)}, **attributes)
    return trainer


given = {
    "advantages": torch.randn(len(prompts), dtype=torch.float64),
    "rewards": torch.randn(3, 4, dtype=torch.float64),
}


def of_trl(name, policy, reference):
    options, _, temperature, is_on_policy = cases[name]
    loss_type = options.get("loss_type", "grpo")
    inputs = {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids,
        # trl's forward pass sees masked completions as padding: their labels do not matter.
        "completion_mask": completion_mask, "advantages": given["advantages"],
        "ref_per_token_logps": logps_of(reference, temperature),
        "num_items_in_batch": completion_mask.sum(),
    }
    old = given[f"{name}.old_logps"]
    if not is_on_policy:
        inputs["old_per_token_logps"] = old
    if "importance_sampling_cap" in options:
        inputs["importance_sampling_ratio"] = torch.exp(old - given[f"{name}.sampler_logps"]).clamp(
            max=options["importance_sampling_cap"])
    if loss_type == "rloo":
        inputs["old_logps"] = (old * completion_mask).sum(1)
        trainer = trainer_of(RLOOTrainer, policy, temperature, options)
    else:
        level = "sequence" if loss_type == "gspo" else "token"
        trainer = trainer_of(
            GRPOTrainer, policy, temperature, options, importance_sampling_level=level,
            loss_type="grpo" if loss_type == "gspo" else loss_type)
    loss = trainer._compute_loss(policy, inputs)
    if loss_type == "rloo":  # trl adds a constant for each masked completion
        loss = loss + given["advantages"][~torch.tensor(is_counted)].sum() / len(prompts)
    metrics = trainer._metrics["train" if policy.training else "eval"]
    # Those of trl 0.24 are over processes, not over sequences.
    left_out = () if add_fused_lm_head else ("_min", "_max")
    return loss, {k: v[0] for k, v in metrics.items() if not k.endswith(left_out)}


failures = 0


def expect(name, what, found, expected, tolerance):
    global failures
    difference = (found - expected).abs().max().item()
    size = max(expected.abs().max().item(), 1e-2)
    if not difference <= tolerance * size:
        failures += 1
        print(f"{name}: {what} differs by {difference:.2g} of {size:.2g}")


def expect_advantages(found):
    rewards = given["rewards"]
    centred = rewards - rewards.mean(1, keepdim=True)
    baselines = (rewards.sum(1, keepdim=True) - rewards) / (rewards.size(1) - 1)
    expected = {
        "grpo": centred / (rewards.std(1, keepdim=True) + 1e-4), "dr_grpo": centred,
        "grpo_batch": centred / (rewards.std() + 1e-4), "rloo": rewards - baselines,
    }
    for kind, values in expected.items():
        expect("advantages", kind, found[kind], values, 1e-12)


with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    # In float64, so that differences are not those of rounding. The policy is near the samples.
    for name, config in models.items():
        for kind in ("policy", "reference"):
            model = transformers.AutoModelForCausalLM.from_config(config).double()
            model.save_pretrained(folder / name / kind)
    policies = {
        name: [transformers.AutoModelForCausalLM.from_pretrained(
            folder / name / kind, dtype=torch.float64, attn_implementation="eager").eval()
            for kind in ("policy", "reference")] for name in models}
    for name, (_, kind, temperature, _) in cases.items():
        # Ratios are near 1: on both sides of the clip range.
        logps = logps_of(policies[kind][0], temperature)
        for key, distance in (("old_logps", 0.25), ("sampler_logps", 0.15)):
            logps = logps + distance * torch.randn_like(logps)
            given[f"{name}.{key}"] = logps
    save_file(given, folder / "given.safetensors")
    (folder / "jobs.json").write_text(json.dumps({
        "prompts": prompts, "completions": completions, "is_counted": is_counted,
        "max_completion_length": max_completion_length,
        "cases": [{"name": name, "options": case[0], "model": case[1], "temperature": case[2],
                   "is_on_policy": case[3]} for name, case in cases.items()],
    }))
    subprocess.run([program, f"{source}/tests/peers/rl_language.lua", scratch], check=True)
    expect_advantages(load_file(folder / "advantages.safetensors"))
    for name, (_, kind, _, is_on_policy) in cases.items():
        policy, reference = policies[kind]
        policy.zero_grad()
        # Norms other than GPT-2's are in float32 in transformers, and so is the head of newer trl.
        tolerance = 1e-9 if kind == "gpt2" and not add_fused_lm_head else 1e-5
        loss, metrics = of_trl(name, policy, reference)
        loss.backward()
        found = load_file(folder / f"{name}.safetensors")
        expect(name, "loss", found.pop("loss"), loss.detach(), tolerance)
        for key, value in metrics.items():
            ours = found.pop(f"metrics.{key}", None)
            if ours is None:
                failures += 1
                print(f"{name}: there is no metric {key}")
            else:
                expect(name, key, (ours[0] / ours[1]).double(),
                       torch.tensor(value, dtype=torch.float64), max(tolerance, 1e-6))
        compared = 0
        for key, parameter in policy.named_parameters():
            ours = found.pop(f"grads.{key}", None)
            if ours is not None:
                compared += 1
                expect(name, f"the gradient of {key}", ours, parameter.grad, tolerance)
        found = {k: v for k, v in found.items() if not k.startswith(
            ("metrics.sampling/", "metrics.logprob_difference", "metrics.clip_ratio/"))}
        if compared != len(list(policy.parameters())) or found:
            failures += 1
            print(f"{name}: compared {compared} gradients; left are {sorted(found)}")

print(f"{len(cases)} losses, {failures} differences")
sys.exit(failures > 0)
