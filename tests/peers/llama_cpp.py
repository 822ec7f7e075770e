"""llama.cpp's converter, vocabularies and library, from the source of its Python package."""
import fcntl
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
KEPT = ("conversion/", "gguf-py/gguf/", "models/ggml-vocab-")


def made(name, make):
    """A folder of the cache, which `make` makes in a temporary one, under `kept`."""
    cache = pathlib.Path(os.environ.get("REDCO_CACHE") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "redco"))
    place = cache / "peers" / name
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may want it
        if place.exists():
            return place
        with tempfile.TemporaryDirectory(dir=cache / "peers") as part:
            make(pathlib.Path(part))
            (pathlib.Path(part) / "kept").rename(place)
    return place


def folder():
    """Where converter and vocabularies are. Exits with 77, which means skipped, if they cannot be
    had."""
    return made(f"llama.cpp-{VERSION}", download)


def tool(out):
    """Compiles llama_cpp_tool.cpp into the folder `out`. Returns the program."""
    place = made(f"llama.cpp-{VERSION}-library-avx2", build)
    source, program = pathlib.Path(__file__).with_name("llama_cpp_tool.cpp"), f"{out}/llama_cpp_tool"
    subprocess.run(["c++", "-std=c++17", "-O1", f"-I{place}/include", source, "-o", program,
                    f"-L{place}/lib", "-lllama", "-lggml", "-lggml-base",
                    f"-Wl,-rpath,{place}/lib"], check=True)
    return program


def logits(tool, path, ids, adapter="-"):
    """Those of each token of `ids`, or None if llama.cpp does not open the file."""
    done = subprocess.run([tool, "logits", path, f"{path}.logits", adapter, *map(str, ids)],
                          capture_output=True, text=True)
    if done.returncode:
        return None
    import numpy  # not every test that downloads llama.cpp has these
    import torch
    return torch.from_numpy(numpy.fromfile(f"{path}.logits", numpy.float32)).view(len(ids), -1)


def build(part):
    """Builds llama.cpp's library for the CPU: some minutes."""
    download(part, kept=("",))
    source, built = part / "kept", part / "built"
    source.rename(part / "source")
    # The libraries find each other where they are moved to. On a processor with AMX a build for it
    # does not open files whose matrices are as small as those of tests.
    options = dict(CMAKE_BUILD_RPATH_USE_ORIGIN="ON", GGML_NATIVE="OFF", GGML_AVX2="ON",
                   GGML_FMA="ON", GGML_F16C="ON",
                   CMAKE_BUILD_TYPE="Release", BUILD_SHARED_LIBS="ON", LLAMA_CURL="OFF",
                   LLAMA_OPENSSL="OFF", LLAMA_BUILD_TESTS="OFF", LLAMA_BUILD_SERVER="OFF",
                   LLAMA_BUILD_TOOLS="OFF", LLAMA_BUILD_EXAMPLES="OFF", LLAMA_BUILD_APP="OFF")
    for command in (["cmake", "-S", part / "source", "-B", built, "-G", "Ninja",
                     *(f"-D{name}={value}" for name, value in options.items())],
                    ["ninja", "-C", built, "-j2", "llama"]):
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            print("skipped: llama.cpp cannot be built: " + ran.stdout[-400:], file=sys.stderr)
            raise SystemExit(77)
    (part / "kept").mkdir()
    (built / "bin").rename(part / "kept" / "lib")
    (part / "kept" / "include").mkdir()
    for header in [*(part / "source/include").glob("*.h"),
                   *(part / "source/ggml/include").glob("*.h")]:
        header.rename(part / "kept" / "include" / header.name)


def download(part, kept=KEPT):
    try:
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary",
                        PACKAGE, "--retries", "1", "-d", part, f"{PACKAGE}=={VERSION}"],
                       check=True, timeout=900, capture_output=True, text=True)
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        print(f"skipped: pip cannot download {PACKAGE}: {reason}", file=sys.stderr)
        raise SystemExit(77)
    with tarfile.open(next(part.glob("*.tar.gz"))) as archive:
        for member in archive:
            name = member.name.partition("/vendor/llama.cpp/")[2]
            if member.isfile() and name and name.startswith(kept):
                place = part / "kept" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(member).read())
