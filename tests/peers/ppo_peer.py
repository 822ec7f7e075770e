"""PPO of language models beside that of trl 0.24: advantages, loss, metrics and the gradients of the
policy and the critic, of tiny models on fixed samples, in float64.

ppo_peer.py REDCO_LUA SOURCE
"""
import copy
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from trl.trainer import ppo_trainer

program, source = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(3)

# trl counts padding behind a completion as a step, so all completions have one length.
n, n_prompt, n_completion = 6, 4, 7
config = transformers.GPT2Config(
    vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
    pad_token_id=0, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
)

# name: options of trl's PPOConfig, and whether the critic is a head of the policy
defaults = {"kl_coef": 0.05, "gamma": 1.0, "lam": 0.95, "cliprange": 0.2, "vf_coef": 0.1,
            "cliprange_value": 0.2, "whiten_rewards": False, "kl_estimator": "k1"}
cases = {
    "separate": ({}, False),
    "head": ({"vf_coef": 0.5}, True),
    "discounted": ({"gamma": 0.9, "lam": 0.7, "kl_coef": 0.3, "kl_estimator": "k3"}, True),
    "whitened": ({"whiten_rewards": True, "cliprange": 0.1, "cliprange_value": 0.05}, False),
    "greedy": ({"gamma": 0.0, "lam": 0.0, "kl_coef": 0.0}, False),
}


class Critic(torch.nn.Module):
    base_model_prefix = "transformer"

    def __init__(self, backbone, score):
        super().__init__()
        self.transformer, self.score = backbone, score


def of_trl(options, policy, reference, critic, given):
    """Returns the metrics of one update of trl's PPO, which leaves gradients in the models."""
    args = SimpleNamespace(
        **{**defaults, **options}, response_length=n_completion, temperature=1 - 1e-7,
        num_ppo_epochs=1, num_mini_batches=1, gradient_accumulation_steps=1, num_total_batches=1,
        total_episodes=n, batch_size=n, local_batch_size=n, local_mini_batch_size=n,
        per_device_train_batch_size=n, local_rollout_forward_batch_size=n, logging_steps=None,
        eval_steps=None, save_steps=None, missing_eos_penalty=None, num_sample_generations=0,
        ds3_gather_for_generation=False)
    trainer = ppo_trainer.PPOTrainer.__new__(ppo_trainer.PPOTrainer)
    reward = object()
    metrics = {}
    trainer.__dict__.update(
        args=args, accelerator=Accelerator(cpu=True), optimizer=MagicMock(), ref_model=reference,
        model=ppo_trainer.PolicyAndValueWrapper(policy, critic), reward_model=reward,
        processing_class=SimpleNamespace(pad_token_id=0, eos_token_id=98), stop_token_id=None,
        dataloader=[{"input_ids": given["ids"][:, :n_prompt]}], is_deepspeed_enabled=False,
        state=SimpleNamespace(), train_dataset_len=n, callback_handler=MagicMock(), control=None,
        lr_scheduler=MagicMock(), log=metrics.update)
    for event in ("on_step_end", "on_train_end"):
        getattr(trainer.callback_handler, event).return_value = SimpleNamespace(should_save=False)

    def get_reward(model, *others):
        if model is reward:
            return None, given["scores"], None
        values = original(model, *others)[0]
        given["old_values"] = (values.squeeze(-1) + given["noise"]).detach()
        return given["old_values"].unsqueeze(-1), None, None

    original = ppo_trainer.get_reward
    ppo_trainer.get_reward = get_reward
    ppo_trainer.batch_generation = lambda *_: (given["ids"], given["logits"])
    ppo_trainer.unwrap_model_for_generation = lambda model, *_, **__: nullcontext(model)
    trainer.train()
    ppo_trainer.get_reward = original
    return metrics


failures = 0


def expect(name, what, found, expected, tolerance):
    global failures
    difference = (found - expected).abs().max().item()
    size = max(expected.abs().max().item(), 1e-2)
    if not difference <= tolerance * size:
        failures += 1
        print(f"{name}: {what} differs by {difference:.2g} of {size:.2g}")


def number(value):
    return torch.tensor(value, dtype=torch.float64)


with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    models = {}
    for kind in ("policy", "reference", "critic"):
        models[kind] = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        models[kind].save_pretrained(folder / kind)
    score = torch.nn.Linear(config.n_embd, 1, bias=False).double()
    ids = torch.randint(3, 98, (n, n_prompt + n_completion))
    with torch.no_grad():
        logits = models["policy"](ids).logits[:, n_prompt - 1 : -1]
    expected = {}
    for name, (options, is_head) in cases.items():
        policy, critic = copy.deepcopy(models["policy"]), copy.deepcopy(models["critic"])
        given = {
            "ids": ids, "logits": logits + 0.3 * torch.randn_like(logits),
            "scores": torch.randn(n, dtype=torch.float64),
            "noise": 0.3 * torch.randn(ids.shape, dtype=torch.float64),
        }
        own = copy.deepcopy(score)
        critic.score = own
        backbone = policy.transformer if is_head else critic.transformer
        metrics = of_trl(options, policy, copy.deepcopy(models["reference"]),
                         Critic(backbone, own), given)
        grads = {f"policy.{k}": p.grad for k, p in policy.named_parameters()}
        grads["value.weight"] = own.weight.grad
        if not is_head:
            grads.update({f"critic.{k}": p.grad for k, p in critic.transformer.named_parameters(
                prefix="transformer")})
        assert metrics["policy/clipfrac_avg"] > 0 and metrics["val/clipfrac_avg"] > 0
        expected[name] = metrics, grads
        old_logps = given["logits"].log_softmax(-1).gather(
            2, ids[:, n_prompt:].unsqueeze(-1)).squeeze(-1)
        save_file({"ids": ids, "scores": given["scores"], "old_values": given["old_values"],
                   "old_logps": old_logps, "weight": score.weight.detach()},
                  folder / f"{name}.given.safetensors")
    (folder / "jobs.json").write_text(json.dumps({
        "n_prompt": n_prompt,
        "cases": [{"name": name, "options": {**defaults, **options}, "is_head": is_head}
                  for name, (options, is_head) in cases.items()],
    }))
    subprocess.run([program, f"{source}/tests/peers/ppo.lua", scratch], check=True)
    for name, (metrics, grads) in expected.items():
        found = load_file(folder / f"{name}.safetensors")
        expect(name, "the loss", found["loss"], number(
            metrics["loss/policy_avg"] + {**defaults, **cases[name][0]}["vf_coef"]
            * metrics["loss/value_avg"]), 1e-6)
        for theirs, ours in {
            "loss/policy_avg": "loss/policy_avg", "loss/value_avg": "loss/value_avg",
            "val/clipfrac_avg": "val/clipfrac_avg", "val/ratio": "val/ratio",
            "policy/approxkl_avg": "policy/approxkl_avg", "policy/entropy_avg": "entropy",
            "policy/clipfrac_avg": "clip_ratio/region_mean", "objective/kl": "objective/kl",
        }.items():
            ours = found[f"metrics.{ours}"].double()
            # trl collects metrics in float32.
            expect(name, theirs, ours[0] / ours[1], number(metrics[theirs]), 1e-5)
        for key, grad in grads.items():
            # The temperature of trl is 1e-7 from another.
            expect(name, f"the gradient of {key}", found[f"grads.{key}"], grad, 1e-6)

print(f"{len(cases)} losses, {failures} differences")
sys.exit(failures > 0)
