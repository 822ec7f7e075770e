"""Writes tests/lua/quantized_cases.safetensors: blocks of every type and the numbers that the `gguf`
package, and bitsandbytes for nf4 and fp4, find in them, and the blocks that they make of `values`;
of types whose scales are fitted those of llama.cpp's library, also with the importance of columns.

    python tests/tools/make_quantized_cases.py tests/lua/quantized_cases.safetensors libggml-base.so

Names: TYPE.blocks [3, n, bytes], TYPE.numbers [3, n * size], TYPE.encoded, TYPE.fitted,
TYPE.weighted. Needs gguf, torch, bitsandbytes and safetensors, and llama.cpp's library, which
tests/peers/llama_cpp.py builds.
"""
import ctypes
import sys

import bitsandbytes.functional
import gguf
import numpy
import torch
from safetensors.numpy import save_file

ROWS, COLUMNS = 3, 256
# Where the blocks of a type have scales of 16 bits.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
          "IQ4_XS": [0], "MXFP4": []}
ENCODED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
FITTED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
WEIGHTED = [*FITTED[:-1], *ENCODED[1:]]
library = ctypes.CDLL(sys.argv[2])


def made_by_library(kind, values, importance, like):
    """The blocks that ggml_quantize_chunk makes."""
    blocks = numpy.zeros_like(like)
    floats = ctypes.POINTER(ctypes.c_float)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk(
        ctypes.c_int(kind), values.ctypes.data_as(floats), ctypes.c_void_p(blocks.ctypes.data),
        ctypes.c_int64(0), ctypes.c_int64(ROWS), ctypes.c_int64(COLUMNS),
        None if importance is None else importance.ctypes.data_as(floats))
    return blocks

rng = numpy.random.default_rng(20261128)
values = rng.standard_normal((ROWS, COLUMNS)).astype(numpy.float32)
values[1] *= 1e-3
values[2, :32] = 0
values[2, 32:64] = 7.5
importance = numpy.exp(numpy.random.default_rng(1).standard_normal(COLUMNS)).astype(numpy.float32)
cases = {"values": values, "importance": importance}
for name, offsets in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // size, n_bytes), dtype=numpy.uint8)
    for offset in offsets:
        blocks[..., offset + 1] &= 0xBF  # below 2: no infinity, no NaN
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 140, blocks.shape[:-1])
    cases[f"{name.lower()}.blocks"] = blocks
    cases[f"{name.lower()}.numbers"] = gguf.dequantize(blocks.reshape(ROWS, -1), kind)
    if name in ENCODED:
        cases[f"{name.lower()}.encoded"] = gguf.quantize(values, kind).reshape(blocks.shape)
    if name in FITTED:
        cases[f"{name.lower()}.fitted"] = made_by_library(kind, values, None, blocks)
    if name in WEIGHTED:
        cases[f"{name.lower()}.weighted"] = made_by_library(kind, values, importance, blocks)
for name in "nf4", "fp4":
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.from_numpy(values), blocksize=64, quant_type=name)
    n = COLUMNS // 64
    scales = state.absmax.reshape(ROWS, n, 1).view(torch.uint8)
    cases[f"{name}.blocks"] = torch.cat([scales, packed.reshape(ROWS, n, 32)], -1).numpy()
    cases[f"{name}.numbers"] = bitsandbytes.functional.dequantize_4bit(packed, state).numpy()
    cases[f"{name}.encoded"] = cases[f"{name}.blocks"]
# The forms of quantized folders: a scale, perhaps a zero, and the numbers of 64 elements.
groups = torch.from_numpy(values).view(ROWS, COLUMNS // 64, 64)
largest = groups.abs().amax(-1, keepdim=True)


def divided(numbers, scales):
    return torch.where(scales == 0, 0, numbers * (1 / scales))


def rounded(numbers):
    return torch.sign(numbers) * torch.floor(numbers.abs() + 0.5)


scales = largest / 127
q = rounded(divided(groups, scales)).clamp(-127, 127)
forms = {"int8": (scales, [q.to(torch.int8).view(torch.uint8)], q * scales)}
scales = largest / 448
q = divided(groups, scales).clamp(-448, 448).to(torch.float8_e4m3fn)
forms["fp8"] = scales, [q.view(torch.uint8)], q.float() * scales
least = groups.amin(-1, keepdim=True).clamp(max=0)
scales = (groups.amax(-1, keepdim=True).clamp(min=0) - least) / 15
zeros = rounded(divided(-least, scales)).clamp(0, 15)
q = (rounded(divided(groups, scales)) + zeros).clamp(0, 15)
pairs = q.to(torch.uint8).view(*q.shape[:-1], 32, 2)
forms["int4"] = scales, [zeros.to(torch.uint8), pairs[..., 0] | pairs[..., 1] << 4], \
    (q - zeros) * scales
for name, (scales, parts, numbers) in forms.items():
    blocks = torch.cat([scales.contiguous().view(torch.uint8), *parts], -1)
    cases[f"{name}.blocks"] = cases[f"{name}.encoded"] = blocks.numpy()
    cases[f"{name}.numbers"] = numbers.reshape(ROWS, COLUMNS).numpy()
save_file(cases, sys.argv[1])
