"""Perplexities of SmolLM2 from files that redco-lua writes are those of llama.cpp.

gguf_perplexity_peer.py REDCO_LUA SOURCE
"""
import math
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import llama_cpp  # noqa: E402
import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

# llama.cpp rounds the inputs of products with packed weights to eight bits, which costs it up to
# 0.85 % here. With the same weights as floats it differs by 0.001 %.
MOST = {"f32": 1e-4, "packed": 0.01}


def perplexity(tool, path, parts):
    losses = [cross_entropy(llama_cpp.logits(tool, path, ids)[:-1].double(), torch.tensor(ids[1:]))
              for ids in parts]
    return math.exp(sum(losses) / len(losses))


program, source = sys.argv[1], pathlib.Path(sys.argv[2])
fetched = subprocess.run([source / "examples/chat/fetch.sh"], stdout=subprocess.PIPE, text=True)
if fetched.returncode:
    print("skipped: the model could not be fetched", file=sys.stderr)
    sys.exit(77)
n_problems = 0
with tempfile.TemporaryDirectory() as out:
    tool = llama_cpp.tool(out)
    done = subprocess.run(
        [program, "gguf_perplexity.lua", fetched.stdout.strip(),
         source / "examples/language_modeling/data/corpus.txt", out],
        stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(1)
    parts = [[int(word) for word in line.split()]
             for line in (pathlib.Path(out) / "ids.txt").read_text().splitlines()]
    for line in done.stdout.splitlines():
        kind, own = line.split()
        for form, path in (("f32", f"{out}/{kind}.f32.gguf"), ("packed", f"{out}/{kind}.gguf")):
            theirs = perplexity(tool, path, parts)
            difference = abs(theirs / float(own) - 1)
            print(f"{kind}: {float(own):.5f}, llama.cpp with {form} weights {theirs:.5f}")
            n_problems += not difference <= MOST[form]
sys.exit(bool(n_problems))
