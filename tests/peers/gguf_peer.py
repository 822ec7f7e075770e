"""redco-lua reads from GGUF files what the reference package wrote.

gguf_peer.py REDCO_LUA [FILE.gguf]: a file of your own is compared as well.
"""
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
from safetensors.numpy import load_file, save_file

here = pathlib.Path(__file__).parent

# The types, and where their blocks have scales of 16 bits.
QUANTIZED = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
             "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
             "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
ENCODED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def random_blocks(rng, name):
    size, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (5, 3, 512 // size, n_bytes), dtype=numpy.uint8)
    for offset in QUANTIZED[name]:
        blocks[..., offset + 1] &= 0xBF  # below 2: no infinity, no NaN
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 250, blocks.shape[:-1])
    return blocks.reshape(5, 3, -1)


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
    for name in "F32", "F16", *QUANTIZED:
        kind = gguf.GGMLQuantizationType[name]
        values = rng.standard_normal((5, 3, 512)).astype(numpy.float32)
        if name == "F32":
            writer.add_tensor(name, values)
        elif name == "F16":
            writer.add_tensor(name, values.astype(numpy.float16))
        else:
            writer.add_tensor(name, random_blocks(rng, name), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_rounding(folder):
    """redco-lua rounds numbers to the same blocks."""
    rng = numpy.random.default_rng()
    values = rng.standard_normal((40, 512)) * numpy.exp(2 * rng.standard_normal((40, 1)))
    values = values.astype(numpy.float32)
    save_file({"values": values}, f"{folder}/values.safetensors")
    subprocess.run([sys.argv[1], here / "quantize.lua", folder, *ENCODED], check=True)
    made = load_file(f"{folder}/blocks.safetensors")
    for name in ENCODED:
        expected = gguf.quantize(values, gguf.GGMLQuantizationType[name])
        assert numpy.array_equal(made[name].reshape(expected.shape), expected), name
    print(f"{len(ENCODED)} types of blocks agree")


with tempfile.TemporaryDirectory() as folder:
    check_rounding(folder)
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
