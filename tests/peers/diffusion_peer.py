"""redco-lua computes what diffusers does of pipelines with random configurations, and diffusers
opens what redco-lua saves: folders, adapters in two formats, and vectors of textual inversion. Both
open a single file of Stable Diffusion 3.

diffusion_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--kinds KIND...]
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import diffusers
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import original_layout  # noqa: E402
import random_diffusion  # noqa: E402

warnings.simplefilter("ignore")
diffusers.logging.set_verbosity_error()
transformers.logging.set_verbosity_error()
diffusers.logging.disable_progress_bar()

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--count", type=int, default=1)
parser.add_argument("--kinds", nargs="+", default=random_diffusion.KINDS)
given = parser.parse_args()


def config_of(part):
    config = part.config.to_dict() if hasattr(part.config, "to_dict") else dict(part.config)
    return {key: list(value) if isinstance(value, tuple) else value
            for key, value in config.items() if not key.startswith("_") and "dtype" not in key}


def parts_of(pipe):
    return {name: part for name, part in pipe.components.items()
            if isinstance(part, torch.nn.Module)}


def opened(folder, pipe):
    """The pipeline of a folder; diffusers wants to be told of parts that are None."""
    absent = [name for name, part in pipe.components.items() if part is None]
    return type(pipe).from_pretrained(folder, **dict.fromkeys(absent))


def check_saved(folder, pipe):
    saved = opened(folder / "saved", pipe)
    for name, part in parts_of(pipe).items():
        theirs, ours = part.state_dict(), getattr(saved, name).state_dict()
        assert theirs.keys() == ours.keys(), name
        for key, tensor in theirs.items():
            assert torch.equal(tensor, ours[key]), (name, key)
        theirs, ours = config_of(part), config_of(getattr(saved, name))
        differ = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
        assert not differ, (name, [(key, theirs.get(key), ours.get(key)) for key in differ])
    assert config_of(pipe.scheduler) == config_of(saved.scheduler)
    texts = ["a cat", "the big red dog on the house of the tree of the cat of a dog"]
    options = dict(padding="max_length", truncation=True)
    for name, tokenizer in pipe.components.items():
        if name.startswith("tokenizer") and tokenizer is not None:
            ours = getattr(saved, name)(texts, **options)
            assert tokenizer(texts, **options).input_ids == ours.input_ids, name


def first_batch(folder):
    arrays = load_file(folder / "expected.safetensors")
    return {key.removeprefix("batch0."): value for key, value in arrays.items()
            if key.startswith("batch0.")}


def from_single_file(folder, pipe):
    absent = [name for name, part in pipe.components.items() if part is None]
    read = type(pipe).from_single_file(folder / "single.safetensors", config=str(folder),
                                       local_files_only=True, **dict.fromkeys(absent))
    for part in parts_of(read).values():
        part.eval()
    return read


def check_single_file(folder, pipe):
    """diffusers reads the file as redco-lua does; kohya's adapters are those of its names."""
    read = from_single_file(folder, pipe)
    for name, part in parts_of(pipe).items():
        ours = getattr(read, name).state_dict()
        for key, tensor in part.state_dict().items():
            assert torch.equal(tensor, ours[key]), (name, key)
    whole = load_file(folder / "single.safetensors")
    original_layout.add_adapters(
        whole, load_file(folder / "lora_kohya" / "pytorch_lora_weights.safetensors"))
    save_file(whole, folder / "single.safetensors")
    read = from_single_file(folder, pipe)
    with torch.no_grad():
        ours = random_diffusion.predict(read, read.transformer, first_batch(folder))
    worst = (ours - load_file(folder / "adapted.safetensors")["adapted"]).abs().max().item()
    assert worst < 1e-5, worst


def check_adapters(folder, kind, pipe):
    expected = load_file(folder / "adapted.safetensors")["adapted"]
    batch = first_batch(folder)
    for form in ["diffusers", "kohya"] if hasattr(pipe, "unet") else ["diffusers"]:
        pipe = opened(folder, pipe)
        # Of SDXL's first text encoder too.
        pipe.load_lora_weights(folder / f"lora_{form}")
        with torch.no_grad():
            ours = random_diffusion.predict(pipe, random_diffusion.model_of(pipe)[1], batch)
        worst = (ours - expected).abs().max().item()
        assert worst < 1e-4, (kind, form, worst)


INVERTED = ["sd", "sd2", "xl"]  # diffusers has no textual inversion of others
PROMPT = "a <x> on the <x> house"


def write_token(folder, kind, pipe):
    """A file of textual inversion, and what diffusers makes of a prompt with its token."""
    pipe = opened(folder, pipe)
    vectors = torch.randn(2, 16)
    if kind == "xl":
        path, state = folder / "token.safetensors", dict(clip_l=vectors, clip_g=torch.randn(2, 24))
        save_file(state, path)
    elif kind == "sd":
        path, state = folder / "token.bin", {"<x>": vectors}
        torch.save(state, path)
    else:  # as the web UI does
        path = folder / "token.pt"
        state = dict(string_to_token={"*": 265}, string_to_param={"*": vectors}, name="<x>",
                     step=3, sd_checkpoint=None)
        torch.save(state, path)
    load_token(pipe, state)
    (folder / "token.txt").write_text(f"{path}\n{PROMPT}\n")
    save_file(encoded(pipe), folder / "inverted.safetensors")


def load_token(pipe, state):
    if "clip_g" not in state:
        pipe.load_textual_inversion(state)
        return
    for key, suffix in [("clip_l", ""), ("clip_g", "_2")]:
        pipe.load_textual_inversion(
            state[key], token="<x>", text_encoder=getattr(pipe, "text_encoder" + suffix),
            tokenizer=getattr(pipe, "tokenizer" + suffix))


def encoded(pipe):
    with torch.no_grad():
        states = pipe.encode_prompt(prompt=PROMPT, device="cpu", num_images_per_prompt=1,
                                    do_classifier_free_guidance=False)
    named = dict(states=states[0], pooled=states[2] if len(states) > 2 else None)
    return {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}


def check_token(folder, kind, pipe):
    pipe, ours = opened(folder, pipe), load_file(folder / "learned" / "learned_embeds.safetensors")
    load_token(pipe, ours)
    for name, tensor in load_file(folder / "inverted.safetensors").items():
        assert torch.equal(encoded(pipe)[name], tensor), (kind, name)


with tempfile.TemporaryDirectory() as name:
    root, folders = pathlib.Path(name), []
    for seed in range(given.seed, given.seed + given.count):
        for kind in given.kinds:
            parent = root / f"{seed}-{kind}"
            # The name under which the tests look for a case.
            folder = parent / "stable_diffusion"
            folders.append((parent, folder, kind,
                            random_diffusion.make_case(folder, seed, kind)))
            if kind in INVERTED:
                write_token(folder, kind, folders[-1][-1])
            if kind == "sd3":
                save_file(original_layout.of_pipeline(folders[-1][-1]),
                          folder / "single.safetensors")
    subprocess.run([given.program, "random_diffusion.lua", *(str(row[0]) for row in folders)],
                   check=True, env=dict(os.environ, REDCO_SOURCE=str(given.source)))
    for _, folder, kind, pipe in folders:
        check_saved(folder, pipe)
        if kind != "dit":
            check_adapters(folder, kind, pipe)
        if kind == "sd3":
            check_single_file(folder, pipe)
        if kind in INVERTED:
            check_token(folder, kind, pipe)
print(f"{len(folders)} pipelines are the same")
