"""Replaces this process by the program redco-lua, with the libraries of the environment's torch.

torch is found but not imported, so that a start takes milliseconds.
"""

import importlib.util
import os
import platform
import re
import sys

from redco_lua import __version__, torch_version

GLIBC = (2, 34)
OTHERWISE = "or build redco-lua from source, with your torch: docs/install.md"


def fail(text):
    sys.exit(f"redco-lua: {text}")


def check_machine():
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        fail(f"this wheel is for Linux x86_64, and this is {machine}: {OTHERWISE[3:]}")
    try:
        library, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    except (AttributeError, OSError, ValueError):  # musl
        library, version = "another C library, such as musl", "0"
    if library != "glibc" or tuple(map(int, version.split("."))) < GLIBC:
        has = f"glibc {version}" if library == "glibc" else library
        needed = ".".join(map(str, GLIBC))
        fail(f"this wheel needs glibc {needed} or newer (Debian 12, Ubuntu 22.04, RHEL 9), and "
             f"this system has {has}: use a container, {OTHERWISE}")


def torch_folder():
    """The folder of the environment's torch, which must be of the release that is needed."""
    release = ".".join(torch_version.split(".")[:2])
    install = f"{sys.executable} -m pip install 'torch=={release}.*'"
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        fail(f"there is no torch in the Python environment {sys.prefix}: {install}")
    folder = os.path.dirname(os.path.abspath(found.origin))
    try:
        with open(os.path.join(folder, "version.py")) as file:
            version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", file.read()).group(1)
    except (AttributeError, OSError):
        version = "unknown"
    if version.split(".")[:2] != release.split("."):
        fail(f"redco-lua {__version__} of this wheel runs with torch {release}, and {folder} is "
             f"torch {version}: {install}, {OTHERWISE}")
    if not os.path.exists(os.path.join(folder, "lib", "libtorch_cpu.so")):
        fail(f"{folder} has no lib/libtorch_cpu.so, as torch of PyPI has: {install}, {OTHERWISE}")
    return folder


def main():
    check_machine()
    here = os.path.dirname(os.path.abspath(__file__))
    torch = torch_folder()
    # The program looks in ../torch, beside this package. The variable reaches the processes that it
    # starts, too.
    if os.path.realpath(torch) != os.path.realpath(os.path.join(here, "..", "torch")):
        paths = [os.path.join(torch, "lib"), os.environ.get("LD_LIBRARY_PATH")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    program = os.path.join(here, "bin", "redco-lua")
    try:
        os.execv(program, ["redco-lua"] + sys.argv[1:])
    except OSError as error:
        fail(f"cannot start {program}: {error.strerror}")


if __name__ == "__main__":
    main()
