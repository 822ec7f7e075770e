"""redco-lua reads from GGUF files what the reference package wrote.

gguf_peer.py REDCO_LUA [FILE.gguf]: a file of your own is compared as well.
"""
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
from safetensors.numpy import load_file

here = pathlib.Path(__file__).parent


def opened(path):
    """The tensors that redco-lua found, as float32, and its metadata as texts."""
    lines = subprocess.run([sys.argv[1], here / "open_gguf.lua", path], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    tensors = load_file(f"{path}.weights/model.safetensors")
    return tensors, dict(line.split("\t", 1) for line in lines if "\t" in line)


def check(path):
    tensors, metadata = opened(path)
    reader = gguf.GGUFReader(path)
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert all(key in metadata for key in keys), set(keys) - set(metadata)
    assert len(tensors) == len(reader.tensors)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        given = tensors[tensor.name]
        assert given.shape == tuple(shape), tensor.name
        assert numpy.array_equal(given.astype(numpy.float32), expected), tensor.name
    print(f"{path}: {len(tensors)} tensors and {len(keys)} keys agree")


def write(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 12)
    writer.add_float32("llama.rope.freq_base", 0.5)
    writer.add_bool("yes", True)
    writer.add_array("tokens", ["a", "é", "b c"])
    writer.add_array("scores", [1, -2, 3])
    rng = numpy.random.default_rng(1)
    for name in "F32", "F16", "Q8_0", "Q4_0", "Q4_1":
        kind = gguf.GGMLQuantizationType[name]
        values = rng.standard_normal((5, 3, 96)).astype(numpy.float32)
        if name == "F32":
            writer.add_tensor(name, values)
        elif name == "F16":
            writer.add_tensor(name, values.astype(numpy.float16))
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/small.gguf"
    write(path)
    check(path)
    _, metadata = opened(path)
    expected = {"general.architecture": "llama", "llama.block_count": "12",
                "llama.rope.freq_base": "0.5", "yes": "true", "tokens": "3:a,é,b c",
                "scores": "3:1,-2,3"}
    assert expected.items() <= metadata.items(), metadata
    for path in sys.argv[2:]:
        link = pathlib.Path(folder) / "given.gguf"
        link.symlink_to(pathlib.Path(path).resolve())
        check(str(link))
