"""redco-lua reads the texts of llama.cpp's tests as llama.cpp does, with its vocabularies.

gguf_tokenizers_peer.py REDCO_LUA SOURCE
"""
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import llama_cpp  # noqa: E402

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
# Vocabularies of other kinds than those that are read.
REFUSED = {"bert-bge", "gemma-4"}

files = []
for texts in sorted((llama_cpp.folder() / "models").glob("*.inp")):
    file = texts.with_suffix("")
    if file.stem.removeprefix("ggml-vocab-") not in REFUSED:
        files.append(file)
assert len(files) > 10, files
subprocess.run([program, source / "tests/peers/gguf_tokenizers.lua", *files], check=True)
