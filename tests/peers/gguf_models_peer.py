"""redco-lua computes the same from the GGUF files that llama.cpp's converter makes of random
models of transformers.

gguf_models_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--family NAME ...]
    --seed, --count: the first of the random models of each family, and how many
"""
import argparse
import logging
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
from gguf_drawn import FIXED, convert, random_model  # noqa: E402

import gguf  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402


def write_case(out, seed, family, is_quantized):
    """The folder and the file of a model, and what transformers computes of some tokens."""
    folder = out / f"{seed}-{family}"
    _, model, vocab_size = random_model(seed, family, is_quantized)
    model.save_pretrained(folder)
    convert(folder, vocab_size, gguf.LlamaFileType.MOSTLY_Q8_0 if is_quantized
            else gguf.LlamaFileType.ALL_F32)
    input_ids = torch.randint(0, vocab_size, (2, 9), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(input_ids).logits.float().contiguous()
    save_file(dict(input_ids=input_ids, logits=logits), f"{folder}.safetensors")
    return folder


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--count", type=int, default=2)
parser.add_argument("--family", action="append", choices=FIXED)
given = parser.parse_args()
logging.disable(logging.WARNING)

with tempfile.TemporaryDirectory() as out:
    for kind in "float", "quantized":
        folders = []
        (pathlib.Path(out) / kind).mkdir()
        for family in given.family or FIXED:
            for seed in range(given.seed, given.seed + given.count):
                folders.append(write_case(pathlib.Path(out) / kind, seed, family,
                                          kind == "quantized"))
        subprocess.run([given.program, given.source / "tests/peers/gguf_models.lua", kind,
                        *folders], check=True)
