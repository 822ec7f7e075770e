"""Compares what redco-lua wrote with what transformers did."""
import json
import re

import torch
import transformers
from safetensors.torch import load_file

from .families import ENCODER_DECODERS, FAMILIES
from .reference import as_in_files

ORDER = ["logits", "loss", "tokens", "scores", "grad", "after", "changed"]  # of what is told first


def difference(name, ours, theirs, in_double, inputs, case):
    """How far they are apart, in words; None where they agree as well as transformers does with
    itself in float64."""
    if ours.shape != theirs.shape:
        return f"has the shape {list(ours.shape)}, expected {list(theirs.shape)}"
    if name.startswith("tokens") or name.endswith(".tokens"):
        is_close_call = in_double is not None and not torch.equal(in_double, theirs)
        if is_close_call or torch.equal(ours, theirs):
            return None
        return f"{ours.tolist()}, expected {theirs.tolist()}"
    if name.endswith("logits"):  # what stands on padding is arbitrary
        decoder = "decoder_attention_mask" in inputs or case["family"] in ENCODER_DECODERS
        mask = inputs.get("decoder_attention_mask" if decoder else "attention_mask")
        if mask is not None and ours.dim() > 2 and mask.shape == ours.shape[:2]:
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
            in_double = in_double[mask.bool()] if in_double is not None else None
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().masked_fill(same, 0)
    finite = theirs[theirs.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 1
    most = apart.max().item() if apart.numel() else 0
    bound = 1e-6 if name.startswith("scores") else 5e-4 if name.startswith("grad") else 2e-4
    if name.startswith("after"):  # of parameters near 1, and of biases that begin at 0.4 or less
        scale = max(scale, 1)
        # Rounding in Gated DeltaNet behind images grows in these three steps of 0.02.
        bound = 0.06 if case["family"] in ("qwen3_5", "qwen3_5_moe") else bound
    noise = 0
    if in_double is not None:  # NaN where transformers' attention rounds -inf to float32
        noise = (in_double - theirs).nan_to_num(0).abs().max().item()
    if most <= bound * max(scale, 1e-3) + 10 * noise:
        return None
    return f"differs by up to {most:.2g}; the largest is {scale:.2g}"


def double_of(name, expected, noise):
    """What float64 gives; None if it was not computed. A changed model rounds as the model does."""
    model = noise.get("logits")
    if name.startswith("changed.") and model is not None and model.shape == expected[name].shape:
        return expected[name] + model - expected["logits"]
    return noise.get(name)


def change_of(folder, i):
    """The keys of a changed configuration that differ, with both values."""
    before, after = (json.loads((place / "config.json").read_text())
                     for place in (folder, folder / f"changed-{i}"))
    return {key: (before.get(key), after.get(key)) for key in {*before, *after}
            if before.get(key) != after.get(key)}


# What an error may say where transformers opens a changed folder: it ignores settings, drops weights,
# makes others at random, and takes numbers that make no sense.
JUSTIFIED = re.compile("|".join([
    "not supported",                                 # a setting of the family that we lack
    "no place for the weights", "is missing",        # the weights contradict the configuration
    "expected a probability", "must (be|turn)", "entries, but",  # what no model can have
    "expected a whole number", "expected a positive number", "expected a table",
    "expected the number of a token", "unknown problem_type", "unknown rope_type",
    "pixel_values are ",
    r"numbers, expected head_dim / 2", "groups, of which topk_group",
    "is not a multiple of", "numbers, expected num_", "attend to both sides generates no text",
    "squares of .* patches do not give", "but there is no sliding_window", "_config has model_type",
    "tokens are more than the model's max_position_embeddings",
    "projection_size .* differs from vision_config", r"_token_id is '.*', expected a number",
]))


def refusal(folder, i):
    """What is wrong with the refusal of a changed configuration that transformers opens."""
    text = (folder / f"changed-{i}" / "error.txt").read_text().strip()
    return None if JUSTIFIED.search(text) else f"refused although transformers opens it: {text}"


def wrong(folder):
    """What differs in one case, in words."""
    case = json.loads((folder / "case.json").read_text())
    if (folder / "error.txt").exists():
        return [(folder / "error.txt").read_text().strip()]
    expected, found = load_file(folder / "expected.safetensors"), load_file(
        folder / "result.safetensors")
    inputs = load_file(folder / "inputs.safetensors")
    noise = load_file(folder / "noise.safetensors")
    named = {**expected, **found}
    grads = {key: value for key, value in expected.items() if key.startswith("grad.")}
    largest = max([value.abs().max().item() for value in grads.values()], default=1)
    noisiest = max([(noise[key] - value).abs().max().item() for key, value in grads.items()
                    if key in noise], default=0)
    rounding = max(1e-5 * largest, min(noisiest, 1e-4 * largest))
    messages = []
    for name in sorted(named, key=lambda name: (ORDER.index(name.split(".")[0]), name)):
        if name.startswith("changed.") and name not in expected:
            continue  # transformers fails
        if name.startswith("changed.") and name not in found:
            i = name.split(".")[1]
            message = refusal(folder, i) if name.endswith(".logits") else None
            if message:
                messages.append(f"{name}: {message}\n    {change_of(folder, i)}")
            continue
        if name not in expected or name not in found:
            where = "transformers" if name not in found else "redco-lua"
            messages.append(f"{name}: only {where} has it")
            continue
        message = difference(name, found[name], expected[name], double_of(name, expected, noise),
                             inputs, case)
        if message and name.startswith("grad."):
            # Of what is zero except for rounding.
            if (found[name] - expected[name]).abs().max() <= rounding:
                continue
        if message and name.startswith("changed."):
            message += f"\n    {change_of(folder, name.split('.')[1])}"
        if message and name.startswith(("tokens.", "scores.")):
            message += f"\n    {case['generations'][int(name.split('.')[1])]['options']}"
        if message:
            messages.append(f"{name}: {message}")
    try:
        reloaded = getattr(transformers, FAMILIES[case["family"]][1]).from_pretrained(
            folder / "saved").eval()
        state = as_in_files(reloaded, dict(reloaded.named_parameters()))
        for name, value in found.items():
            if name.startswith("after.") and not torch.equal(
                    state[name.removeprefix("after.")], value):
                messages.append(f"saved: {name} differs")
    except Exception as error:  # any of them is a difference
        messages.append(f"saved: {error}")
    return messages[:6] + [f"and {len(messages) - 6} more"] if len(messages) > 7 else messages
