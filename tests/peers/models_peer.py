"""redco-lua computes what transformers does of models with random configurations.

models_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--family NAME ...] [--keep FOLDER]
    [--shards N]
    --seed, --count: the first of the random models, and how many
    --family: only these
    --keep: where the random models stay
    --shards: the random models are also laid out over so many processes
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import random_models  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--count", type=int)
parser.add_argument("--family", action="append", choices=random_models.FAMILIES)
parser.add_argument("--keep", type=pathlib.Path)
parser.add_argument("--shards", type=int)
given = parser.parse_args()
program, source = given.program, given.source


def run(script, *arguments, n_processes=1):
    launcher = ["--nproc", str(n_processes)] if n_processes > 1 else []
    tests = source / "tests"
    subprocess.run([program, *launcher, tests / "peers" / script, *arguments], check=True, env={
        **os.environ, "REDCO_SOURCE": str(source),
        "LUA_PATH": f"{tests}/lua/?.lua;{tests}/cluster/?.lua;;"})


def check_random(out, seed, count):
    """Prints what differs, with the arguments that repeat it; returns how many cases do."""
    n_wrong = 0
    folders = random_models.write_cases(pathlib.Path(out), seed, count, given.family or families)
    run("random_models.lua", *folders)
    if given.shards:
        run("random_layouts.lua", *folders, n_processes=given.shards)
    for folder in folders:
        messages = random_models.wrong(folder)
        if messages:
            n_wrong += 1
            seed, _, family = folder.name.partition("-")
            print(f"--seed {seed} --count 1 --family {family}")
            print("\n".join("  " + message for message in messages))
    print(f"{count} random models, {n_wrong} of them differ")
    return n_wrong


# Every third, unless all are asked for.
is_full = given.count is not None or "REDCO_TEST_FULL" in os.environ
families = list(random_models.FAMILIES)[:: 1 if is_full else 3]

with tempfile.TemporaryDirectory() as out:
    kept = given.keep or pathlib.Path(out, "random")
    if check_random(kept, given.seed, given.count or len(families)):
        raise SystemExit(1)
