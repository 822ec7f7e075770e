"""How the wheel's Python entry finds torch and starts the program, with stand-ins for both, and its
errors: wheel_entry_test.py"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "cmake/wheel/redco_lua"


class Entry(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(os.path.realpath(folder.name))
        package = self.folder / "site/redco_lua"
        (package / "bin").mkdir(parents=True)
        for source in SOURCES.glob("*.py"):
            text = source.read_text().replace("@VERSION@", "1.2.3").replace("@TORCH@", "2.11.0")
            (package / source.name).write_text(text)
        program = package / "bin/redco-lua"
        program.write_text('#!/bin/sh\necho "$* <${LD_LIBRARY_PATH-}>"; exit 7\n')
        program.chmod(0o755)

    def put_torch(self, where, version="2.11.0+cu130"):
        torch = self.folder / where / "torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "lib/libtorch_cpu.so").touch()
        (torch / "__init__.py").write_text("raise Exception('torch was imported')")
        (torch / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\n")
        return torch

    def run_entry(self, *words, before="pass", paths=("site",), **environment):
        code = f"import os, platform, sys; {before}; from redco_lua.__main__ import main; main()"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, *words], cwd=self.folder, text=True,
            capture_output=True, env={"PYTHONPATH": os.pathsep.join(paths), **environment})
        return done.returncode, done.stdout, done.stderr

    def expect_error(self, *texts, **arguments):
        code, out, error = self.run_entry("--version", **arguments)
        self.assertEqual((code, out), (1, ""))
        self.assertTrue(error.startswith("redco-lua: "), error)
        self.assertEqual(error.count("\n"), 1, error)
        for text in texts:
            self.assertIn(text, error)

    def test_torch_beside_the_package(self):
        self.put_torch("site")
        self.assertEqual(self.run_entry("a b", "--seed=1"), (7, "a b --seed=1 <>\n", ""))
        self.assertEqual(self.run_entry("a", LD_LIBRARY_PATH="/x"), (7, "a </x>\n", ""))

    def test_torch_elsewhere(self):
        lib = self.put_torch("other") / "lib"
        self.assertEqual(self.run_entry("a", paths=("site", "other")), (7, f"a <{lib}>\n", ""))
        self.assertEqual(self.run_entry("a", paths=("site", "other"), LD_LIBRARY_PATH="/x"),
                         (7, f"a <{lib}:/x>\n", ""))

    def test_no_torch(self):
        self.expect_error("there is no torch in the Python environment",
                          f"{sys.executable} -m pip install 'torch==2.11.*'")
        (self.folder / "site/torch").mkdir()  # a folder of that name, such as one of scripts
        self.expect_error("there is no torch in the Python environment")

    def test_another_torch(self):
        torch = self.put_torch("site", "2.10.0+cpu")
        self.expect_error(f"redco-lua 1.2.3 of this wheel runs with torch 2.11, and {torch} is torch "
                          "2.10.0+cpu: ", "pip install 'torch==2.11.*', or build redco-lua from source")
        (torch / "version.py").write_text("__version__ = '2.110.0'")
        self.expect_error("is torch 2.110.0")
        (torch / "version.py").unlink()
        self.expect_error("is torch unknown")

    def test_a_torch_without_its_libraries(self):
        torch = self.put_torch("site")
        (torch / "lib/libtorch_cpu.so").unlink()
        self.expect_error(f"{torch} has no lib/libtorch_cpu.so, as torch of PyPI has")

    def test_other_machines(self):
        self.put_torch("site")
        self.expect_error("this wheel is for Linux x86_64, and this is Linux aarch64: build",
                          before="platform.machine = lambda: 'aarch64'")
        self.expect_error("needs glibc 2.34 or newer", "has glibc 2.28: use a container, or build",
                          before="os.confstr = lambda name: 'glibc 2.28'")
        self.expect_error("needs glibc 2.34 or newer", "has another C library, such as musl: ",
                          before="os.confstr = lambda name: int('x')")

    def test_a_program_that_cannot_start(self):
        self.put_torch("site")
        (self.folder / "site/redco_lua/bin/redco-lua").unlink()
        self.expect_error("cannot start", "site/redco_lua/bin/redco-lua: No such file")


if __name__ == "__main__":
    unittest.main()
