"""Makes the wheel of an installed redco-lua:

    make_wheel.py BUILD SOURCE OUT VERSION TORCH

The wheel has the program, its libraries but for glibc, libstdc++ and torch's, and their licences.
The same files give the same bytes. Needs Debian, patchelf, readelf and a C++ compiler.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import bill_of_materials

# The newest symbols that the systems of the tag have.
TAG = "py3-none-manylinux_2_34_x86_64"
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}
OF_SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+))\.so\.\d+$")
OF_TORCH = re.compile(r"lib(torch|c10)\w*\.so$")


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", file))


def check_symbols(file):
    for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([0-9.]+)",
                                    run("readelf", "-VW", file)):
        if tuple(map(int, version.split("."))) > NEWEST[kind]:
            sys.exit(f"{file} needs {kind}_{version}, which {TAG} excludes")


class Libraries:
    """The table libraries.txt, and which Debian package a file is of."""

    def __init__(self, table):
        rows = [line.split(maxsplit=2) for line in table.read_text().splitlines()
                if line and not line.startswith("#")]
        self.licences = {package: licence.strip() for _, package, licence in rows}
        self.used = {package: kind for kind, package, _ in rows if kind == "header"}

    def use(self, file):
        # dpkg knows the file by the path that the package has, from before /lib was merged, too.
        real = os.path.realpath(file)
        for path in (real, real.removeprefix("/usr"), "/usr" + real):
            found = subprocess.run(["dpkg", "-S", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True).stdout
            if found:
                package = found.split(":")[0]
                if package not in self.licences:
                    sys.exit(f"{file} of {package} is not in libraries.txt")
                self.used[package] = "library"
                return
        sys.exit(f"{file} is of no Debian package: its licence is unknown")

    def atoms(self):
        """The single licences of those used."""
        return {name for package in self.used for name in self.licences[package].split(" AND ")}

    def rows(self):
        """(kind, package, version, licence) of those used."""
        return [(kind, package, run("dpkg-query", "-W", "-f", "${Version}", package),
                 self.licences[package]) for package, kind in sorted(self.used.items())]


def add_libraries(folder, source, libraries):
    """Copies what the program's files need beside them."""
    lib = folder / "lib"
    ours = [folder / "bin" / "redco-lua", lib / "redco" / "redco-sandbox", *lib.glob("*.so*")]
    places = {}
    for file in ours:
        places.update(re.findall(r"(\S+) => (/\S+)", run("ldd", file)))
    todo = [name for file in ours for name in needed(file)]
    while todo:
        name = todo.pop()
        if OF_SYSTEM.match(name) or OF_TORCH.match(name) or (lib / name).exists():
            continue
        if name == "libjbig.so.0":
            run("c++", "-shared", "-fPIC", "-Os", "-s", "-nostdlib", f"-Wl,-soname,{name}",
                source / "jbig.cpp", "-o", lib / name)
            continue
        libraries.use(places[name])
        shutil.copy(places[name], lib / name)
        todo += needed(lib / name)


def set_search_paths(folder):
    # torch lies beside this package, else its entry sets LD_LIBRARY_PATH.
    for file in [*folder.glob("lib/*.so*"), folder / "bin/redco-lua",
                 folder / "lib/redco/redco-sandbox"]:
        to_lib = os.path.relpath(folder / "lib", file.parent)
        to_torch = os.path.relpath(folder.parent / "torch/lib", file.parent)
        path = f"$ORIGIN/{to_lib}".removesuffix("/.")
        if any(OF_TORCH.match(name) for name in needed(file)):
            path += f":$ORIGIN/{to_torch}"
        run("patchelf", "--set-rpath", path, file)
        check_symbols(file)


def add_licences(info, source, libraries):
    licences = info / "licenses"
    licences.mkdir(parents=True)
    shutil.copy(source / "LICENSE", licences / "LICENSE")
    rows = [f"{name} {version} ({licence})\n" for _, name, version, licence in libraries.rows()]
    common = set()
    for package in libraries.used:
        text = Path(f"/usr/share/doc/{package}/copyright").read_bytes()
        (licences / f"{package}.txt").write_bytes(text)
        common.update(re.findall(rb"/usr/share/common-licenses/((?:L?GPL|Apache)-[0-9.]*[0-9])", text))
    for name in common:
        text = Path("/usr/share/common-licenses", name.decode()).read_bytes()
        (licences / f"{name.decode()}.txt").write_bytes(text)
    (licences / "NOTICE").write_text(
        "redco-lua is under the Apache License 2.0, in LICENSE. The data of its examples have\n"
        "licences beside them. These libraries of Debian are in the wheel, unchanged but for the\n"
        "folder in which they look for each other, or their headers are compiled in. Debian has\n"
        "their sources (apt-get source NAME=VERSION). Their licences are beside this file:\n\n"
        + "".join(rows))


def write_metadata(info, source, version, torch, libraries):
    release = ".".join(torch.split(".")[:2])
    licences = sorted(file.name for file in (info / "licenses").iterdir())
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: redco-lua\n"
        f"Version: {version}\n"
        "Summary: Trains and uses models from Lua scripts, on the libraries of torch\n"
        f"License-Expression: {' AND '.join(sorted(libraries.atoms() | {'Apache-2.0'}))}\n"
        + "".join(f"License-File: {name}\n" for name in licences)
        + f"Requires-Python: >=3.9\nRequires-Dist: torch=={release}.*\n"
        "Description-Content-Type: text/markdown\n\n" + (source / "README.md").read_text())
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: redco-lua\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nredco-lua = redco_lua.__main__:main\n")


def write_wheel(root, info, wheel, seconds):
    files = sorted(file for file in root.rglob("*") if file.is_file())
    record = info / "RECORD"
    lines = []
    for file in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest())
        lines.append(f"{file.relative_to(root)},sha256={digest.rstrip(b'=').decode()},"
                     f"{file.stat().st_size}\n")
    record.write_text("".join(lines) + f"{record.relative_to(root)},,\n")
    date = max((1980, 1, 1, 0, 0, 0), bill_of_materials.time_of(seconds).timetuple()[:6])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in files + [record]:
            entry = zipfile.ZipInfo(str(file.relative_to(root)), date)
            mode = 0o755 if file.read_bytes()[:4] == b"\x7fELF" else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


def main(build, source, out, version, torch):
    build, source = Path(build), Path(source)
    here = Path(__file__).resolve().parent
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", 315532800))
    work = build / "wheel"
    shutil.rmtree(work, ignore_errors=True)
    stage, root = work / "stage", work / "root"
    folder, info = root / "redco_lua", root / f"redco_lua-{version}.dist-info"
    for component in ("Runtime", "CUDA"):
        run("cmake", "--install", build, "--prefix", stage, "--strip", "--component", component)

    (folder / "lib").mkdir(parents=True)
    info.mkdir()
    for file in sorted(stage.glob("lib/*.so*")):  # by the names that others need
        soname = re.findall(r"\(SONAME\).*\[(.*)\]", run("readelf", "-dW", file))
        shutil.copy(file, folder / "lib" / (soname[0] if soname else file.name))
    shutil.copytree(stage / "bin", folder / "bin")
    (folder / "lib/redco").mkdir()
    shutil.copy(stage / "lib/redco/redco-sandbox", folder / "lib/redco")
    data = root / f"redco_lua-{version}.data/data/share"
    for name in ("man", "bash-completion", "zsh", "fish"):
        shutil.copytree(stage / "share" / name, data / name)
    shutil.copytree(stage / "share/redco", folder / "share/redco")
    for file in (here / "redco_lua").glob("*.py"):
        text = file.read_text().replace("@VERSION@", version).replace("@TORCH@", torch)
        (folder / file.name).write_text(text)

    libraries = Libraries(here / "libraries.txt")
    add_libraries(folder, here, libraries)
    set_search_paths(folder)
    add_licences(info, source, libraries)
    write_metadata(info, source, version, torch, libraries)
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (source / "cmake/wheels.txt").read_text(), re.M))
    bill = bill_of_materials.document(version, libraries.rows(), pinned, seconds)
    (info / "sboms").mkdir()
    (info / f"sboms/redco-lua-{version}.spdx.json").write_text(json.dumps(bill, indent=1) + "\n")

    wheel = Path(out) / f"redco_lua-{version}-{TAG}.whl"
    write_wheel(root, info, wheel, seconds)
    shutil.rmtree(work)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
