"""llama.cpp opens the GGUF files that redco-lua writes of random models of transformers: they have
the keys and the tensors that its converter writes, and give the same logits.

gguf_save_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--family NAME ...]
    --seed, --count: the first of the random models of each family, and how many
"""
import argparse
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
os.environ["TQDM_DISABLE"] = "1"
import llama_cpp  # noqa: E402
from gguf_drawn import FIXED, convert, random_model  # noqa: E402

import gguf  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

# Keys of the converter that say nothing to llama.cpp, or that depend on names.
WITHOUT_EFFECT = ("GGUF.", "general.", "tokenizer.", "falcon.tensor_data_layout",
                  "falcon.context_length", "bloom.attention.head_count_kv")
# The numbers of the types of files.
TYPES = {"f32": 0, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}


def values_of(reader):
    return {key: field.contents() for key, field in reader.fields.items()
            if not key.startswith(WITHOUT_EFFECT)}


def are_equal(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return a == b


def check_file(folder, problems):
    """Compares with what the converter writes in float32."""
    own, other = gguf.GGUFReader(f"{folder}.own.gguf"), gguf.GGUFReader(f"{folder}.gguf")
    own_values, values = values_of(own), values_of(other)
    for key, value in values.items():
        if key not in own_values:
            problems.append(f"{folder}: the key {key} = {value} is missing")
        elif not are_equal(own_values[key], value):
            problems.append(f"{folder}: {key} is {own_values[key]}, expected {value}")
    tensors = {tensor.name: tensor for tensor in own.tensors}
    expected = {tensor.name: tensor for tensor in other.tensors}
    if tensors.keys() != expected.keys():
        problems.append(f"{folder}: tensors {sorted(tensors.keys() ^ expected.keys())}")
    for name in tensors.keys() & expected.keys():
        a, b = tensors[name], expected[name]
        if list(a.shape) != list(b.shape) or not numpy.allclose(a.data, b.data, 1e-6, 0):
            problems.append(f"{folder}: the tensor {name} differs")


def error_of(tensor, expected):
    difference = gguf.dequantize(tensor.data, tensor.tensor_type) - expected
    return float((difference ** 2).sum())


def check_types(folder, kind, tool, problems):
    """Compares with the types that llama.cpp chooses, and its errors."""
    subprocess.run([tool, "quantize", f"{folder}.gguf", f"{folder}.theirs.gguf",
                    str(TYPES[kind])], check=True, capture_output=True)
    theirs = {t.name: t for t in gguf.GGUFReader(f"{folder}.theirs.gguf").tensors}
    floats = {t.name: t.data for t in gguf.GGUFReader(f"{folder}.gguf").tensors}
    for tensor in gguf.GGUFReader(f"{folder}.own.gguf").tensors:
        name, other = tensor.name, theirs[tensor.name]
        if tensor.tensor_type != other.tensor_type:
            problems.append(f"{folder}: {name} is {tensor.tensor_type.name}, llama.cpp makes "
                            f"{other.tensor_type.name}")
            continue
        own_error, error = error_of(tensor, floats[name]), error_of(other, floats[name])
        if own_error > 1.02 ** 2 * error + 1e-20:
            problems.append(f"{folder}: the square error of {name} is {own_error / error:.3f} times "
                            "that of llama.cpp")


def check_logits(folder, kind, tool, ids, problems):
    """Returns whether llama.cpp has this model."""
    def compare(a, b, most, what):
        difference = ((a - b).abs().mean() / b.abs().mean()).item()
        if not difference < most:
            problems.append(f"{folder}: {what} differ by {difference:.1e}")

    theirs = llama_cpp.logits(tool, f"{folder}.gguf", ids)
    made = llama_cpp.logits(tool, f"{folder}.own.gguf", ids)
    if made is None:
        if theirs is not None:
            problems.append(f"{folder}: llama.cpp does not open the file")
        return False  # a size that it does not have, such as that of a head
    results = load_file(f"{folder}.own/model.safetensors")
    own = results["logits"][0]
    # Most files of the converter lack the size of a vocabulary without tokens.
    if kind == "f32" and theirs is not None:
        compare(made, theirs, 1e-6, "the logits of the converter's file")
    # LongRoPE of llama.cpp depends on the length of the context, not on that of the text.
    if not pathlib.Path(folder).name.endswith("phi3"):
        # llama.cpp rounds the inputs of products with blocks to eight bits.
        compare(made, own, 1e-3 if kind == "f32" else 0.25, "llama.cpp's logits")
        if kind == "f32":
            made = llama_cpp.logits(tool, f"{folder}.own.gguf", ids, f"{folder}.adapter.gguf")
            if made is None:
                problems.append(f"{folder}: llama.cpp does not open the adapter")
            else:
                compare(made, results["adapted"][0], 1e-3, "llama.cpp's logits with the adapter")
    return True


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--count", type=int, default=1)
parser.add_argument("--family", action="append", choices=FIXED)
parser.add_argument("--type", action="append", choices=TYPES)
given = parser.parse_args()
logging.disable(logging.WARNING)

problems, n, n_opened = [], 0, 0
with tempfile.TemporaryDirectory() as out:
    tool = llama_cpp.tool(out)
    for kind in given.type or ["f32", "q8_0", "q4_k_m"]:
        folders = []
        (pathlib.Path(out) / kind).mkdir()
        for family in given.family or FIXED:
            for seed in range(given.seed, given.seed + given.count):
                folder = pathlib.Path(out) / kind / f"{seed}-{family}"
                _, model, vocab_size = random_model(seed, family, kind != "f32")
                model.save_pretrained(folder)
                generator = torch.Generator().manual_seed(seed)
                input_ids = torch.randint(0, vocab_size, (1, 9), generator=generator)
                with torch.no_grad():
                    logits = model(input_ids).logits.float().contiguous()
                save_file(dict(input_ids=input_ids, logits=logits), f"{folder}.safetensors")
                convert(folder, vocab_size, gguf.LlamaFileType.ALL_F32)
                folders.append((folder, input_ids[0].tolist()))
        done = subprocess.run([given.program, given.source / "tests/peers/gguf_save.lua", kind,
                               *(folder for folder, _ in folders)])
        if done.returncode:
            problems.append(f"{kind}: gguf_save.lua fails")
            continue
        for folder, ids in folders:
            n += 1
            if kind == "f32":
                check_file(folder, problems)
            else:
                check_types(folder, kind, tool, problems)
            n_opened += check_logits(folder, kind, tool, ids, problems)
for problem in problems:
    print(problem)
print(f"{n} models, {n_opened} of them in llama.cpp, {len(problems)} problems")
sys.exit(bool(problems))
