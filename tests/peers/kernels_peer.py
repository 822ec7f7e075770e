"""Compiles the kernels for GPUs with NVRTC, and looks at the machine code.

kernels_peer.py REDCO_LUA SOURCE
"""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import nvidia

folder = pathlib.Path(sys.argv[2]) / "engine/kernels"
toolkit = pathlib.Path(list(nvidia.__path__)[0]) / "cu13"
nvrtc = ctypes.CDLL(str(toolkit / "lib/libnvrtc.so.13"))
for tool in (toolkit / "bin").iterdir():
    tool.chmod(0o755)

# The most registers of a thread with which a multiprocessor holds all threads it has room for.
ARCHITECTURES = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "sm_120": 40}
# Of each kernel: how many registers more it may take, and the bits of its widest load and store.
BOUNDS = {
    "reduce_float": (0, 128, 32), "reduce_bfloat16": (0, 128, 32), "reduce_half": (0, 128, 32),
    "differentiate_float": (0, 128, 128), "differentiate_bfloat16": (0, 128, 128),
    "differentiate_half": (0, 128, 128),
    "silu_mul_float": (0, 128, 128), "silu_mul_bfloat16": (0, 128, 128),
    "silu_mul_half": (0, 128, 128), "silu_mul_backward_float": (0, 128, 128),
    "silu_mul_backward_bfloat16": (0, 128, 128), "silu_mul_backward_half": (8, 128, 128),
    "rows_to_e4m3": (0, 128, 64), "rows_to_e5m2": (0, 128, 64),
    "columns_to_e4m3": (24, 128, 128), "columns_to_e5m2": (24, 128, 128),
    "rotary_halves_float": (0, 128, 128), "rotary_halves_bfloat16": (8, 128, 128),
    "rotary_halves_half": (0, 128, 128), "rotary_neighbours_float": (0, 128, 128),
    "rotary_neighbours_bfloat16": (0, 128, 128), "rotary_neighbours_half": (0, 128, 128),
    "softmax_dropout_float": (24, 128, 128), "softmax_dropout_bfloat16": (24, 128, 128),
    "softmax_dropout_half": (24, 128, 128), "softmax_dropout_backward_float": (8, 128, 128),
    "softmax_dropout_backward_bfloat16": (8, 128, 128),
    "softmax_dropout_backward_half": (8, 128, 128),
    "bernoulli": (0, 0, 32), "dropout_float": (0, 128, 128), "dropout_bfloat16": (0, 64, 64),
    "dropout_half": (0, 64, 64), "uniform_float": (8, 0, 128), "uniform_double": (0, 0, 128),
    "open_uniform": (0, 0, 128), "normal_float": (0, 0, 128), "integers": (8, 0, 128),
    "short_integers": (0, 0, 128),
}
TABLES = ["iq4_nl", "iq4_xs", "mxfp4", "nf4", "fp4"]
for blocks in TABLES + ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
                        "int8", "int4", "fp8"]:
    BOUNDS[f"multiply_{blocks}"] = (32, 128, 32)
    for dtype in "float", "bfloat16", "half":
        BOUNDS[f"decode_{blocks}_{dtype}"] = (0, 32 if blocks in TABLES else 8, 128)


def source_of(path):
    """The text that CMake embeds: inclusions are replaced."""
    return re.sub(r'#include "([^"]+)"', lambda match: source_of(path.parent / match[1]),
                  path.read_text())


def compiled(path, architecture):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = source_of(path).encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"", 0, None, None) == 0
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false"]
    texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    result = nvrtc.nvrtcCompileProgram(program, len(options), texts)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert result == 0, f"{path} for {architecture}: {log.value.decode()}"
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    return code.raw


def cuobjdump(option, path):
    return subprocess.run([toolkit / "bin/cuobjdump", option, path], check=True, text=True,
                          stdout=subprocess.PIPE,
                          env={**os.environ, "PATH": f"{toolkit / 'bin'}:{os.environ['PATH']}"}).stdout


def widest(code, instruction):
    """The most bits that an instruction to load or store moves; 0 without one."""
    return max((int(bits) if bits else 8 if byte else 16 if short else 32 for byte, short, bits in
                re.findall(rf"\b{instruction}\.E(?:\.EF)?(\.[US]8)?(\.[US]16)?(?:\.(64|128))?\b", code)),
               default=0)


found, wrong = set(), []
with tempfile.TemporaryDirectory() as scratch:
    for path in sorted(folder.rglob("*.cu")):
        for architecture, full in ARCHITECTURES.items():
            cubin = os.path.join(scratch, "code.cubin")
            pathlib.Path(cubin).write_bytes(compiled(path, architecture))
            resources = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)",
                                   cuobjdump("-res-usage", cubin))
            codes = dict(re.findall(r"Function : (\w+)(.*?)(?=Function :|\Z)",
                                    cuobjdump("-sass", cubin), re.DOTALL))
            assert resources, f"cuobjdump shows no function of {path.name} for {architecture}"
            for name, registers, stack in resources:
                found.add(name)
                loads, stores = widest(codes[name], "LDG"), widest(codes[name], "STG")
                print(f"{path.name} {architecture} {name}: {registers} registers, {stack} bytes of "
                      f"stack, loads {loads} bits, stores {stores}")
                if name not in BOUNDS:
                    wrong.append(f"{name} has no row in BOUNDS")
                    continue
                more, *widths = BOUNDS[name]
                if int(registers) > full + more or stack != "0" or [loads, stores] != widths:
                    wrong.append(f"{name} for {architecture}: expected at most {full + more} "
                                 f"registers, no stack, and bits {widths}")

wrong += [f"there is no kernel {name}" for name in BOUNDS if name not in found]
for line in wrong:
    print(line, file=sys.stderr)
print(len(found), "kernels")
sys.exit(1 if wrong else 0)
