"""Reads the files of examples/cluster as their programs would: cluster_files.py REDCO_LUA

Their YAML parses, their numbers and names agree, their shell commands are right for shellcheck, and
redco-lua gets options that it has. Needs pyyaml.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

program = sys.argv[1]
folder = Path(__file__).resolve().parents[2] / "examples/cluster"
has = set(re.findall(r"--[a-z0-9-]+", subprocess.run([program, "--help"], stdout=subprocess.PIPE,
                                                     text=True, check=True).stdout))


def expect_equal(given, expected):
    if given != expected:
        raise AssertionError(f"{given!r} is not {expected!r}")


def check_options(words):
    """The words after redco-lua: its options come before the script."""
    script = next(i for i, word in enumerate(words) if word.endswith(".lua"))
    for word in words[:script]:
        if word.startswith("--") and word.split("=")[0] not in has:
            raise AssertionError(f"redco-lua has no option {word}")


def shellcheck(text):
    try:
        done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=text, text=True,
                              stdout=subprocess.PIPE)
    except FileNotFoundError:  # lint.shell says so
        return
    if done.returncode != 0:
        raise AssertionError(done.stdout + text)


def words_of(script, environment, names=("redco-lua",)):
    """What a shell script calls the programs with; all of them are stand-ins."""
    with tempfile.TemporaryDirectory() as home:
        places = Path(home, "bin"), Path(home, "redco/bin")
        for place in places:
            place.mkdir(parents=True)
            for name in names:
                stand_in = place / name
                stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
                stand_in.chmod(0o755)
        path = f"{places[0]}:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euc", script, "bash", "train.lua", "--seed=1"], text=True,
                              env={"HOME": home, "PATH": path, "PWD": "/job", **environment},
                              cwd=home, stdout=subprocess.PIPE, check=True)
    return done.stdout.splitlines()


def check_jobset():
    jobset = yaml.safe_load((folder / "jobset.yaml").read_text())
    expect_equal((jobset["apiVersion"], jobset["kind"]), ("jobset.x-k8s.io/v1alpha2", "JobSet"))
    name = jobset["metadata"]["name"]
    [hosts] = jobset["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    environment = {entry["name"]: entry for entry in container["env"]}
    n_hosts = environment["REDCO_N_PROCESSES"]["value"]
    expect_equal((str(job["parallelism"]), str(job["completions"])), (n_hosts, n_hosts))
    expect_equal((hosts["replicas"], job["completionMode"]), (1, "Indexed"))
    expect_equal(environment["REDCO_HOST0_ADDRESS"]["value"], f"{name}-{hosts['name']}-0-0.{name}")
    expect_equal(set(environment), {"REDCO_N_PROCESSES", "REDCO_HOST0_ADDRESS", "REDCO_PROCESS_ID",
                                    "REDCO_SECRET"})
    words = container["args"]
    check_options(words)
    n_gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    expect_equal(words[words.index("--nproc") + 1], str(n_gpus))
    expect_equal({mount["name"] for mount in container["volumeMounts"]},
                 {volume["name"] for volume in pod["volumes"]})


def check_sky():
    task = yaml.safe_load((folder / "sky.yaml").read_text())
    expect_equal(set(task), {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"})
    shellcheck(task["setup"])
    shellcheck(task["run"])
    words = words_of(task["run"], {
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8"})
    expect_equal(words[:9], ["redco-lua", "--n-processes", "2", "--process-id", "1",
                             "--host0-address", "10.0.0.1", "--nproc", "8"])
    check_options(words)


def check_slurm():
    for name, expected in {
        "slurm": ["redco-lua", "train.lua", "--seed=1"],
        "pyxis": ["--container-image=image", "--container-mounts=/job:/job",
                  "--container-workdir=/job", "--no-container-mount-home", "redco-lua", "train.lua",
                  "--seed=1"],
        "apptainer": ["apptainer", "run", "--nv", "--bind", "/job", "--pwd", "/job", "image",
                      "train.lua", "--seed=1"],
    }.items():
        text = (folder / f"{name}.sbatch").read_text()
        settings = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", text, re.M))
        expect_equal((settings["nodes"], settings["signal"], "requeue" in settings),
                     ("2", "USR1@180", True))
        # The folder of the job has no other name inside a shell than the one where it is.
        words = words_of(text.replace("$PWD", "/job"),
                         {"SLURM_CPUS_PER_TASK": "8", "REDCO_IMAGE": "image"}, ("srun",))
        expect_equal(words, ["srun"] + expected)


def check_images():
    text = (folder / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    steps = [step for step in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if step.strip()]
    kinds = [step.split()[0] for step in steps]
    expect_equal(set(kinds), {"ARG", "FROM", "RUN", "COPY", "ENV", "ENTRYPOINT"})
    expect_equal(kinds.count("FROM"), 2)
    for step in steps:
        if step.startswith("RUN "):
            shellcheck(step[len("RUN "):].replace("${PIP_ARGS}", "") + "\n")
    sections = re.split(r"^%(\w+)$", (folder / "redco-lua.def").read_text(), flags=re.M)
    expect_equal(sections[1::2], ["files", "post", "test", "runscript", "labels"])
    header = re.sub(r"^#.*\n", "", sections[0], flags=re.M)
    expect_equal(set(yaml.safe_load(header)), {"Bootstrap", "From"})
    for name, body in zip(sections[1::2], sections[2::2]):
        if name in ("post", "test", "runscript"):
            shellcheck(body)


for check in (check_jobset, check_sky, check_slurm, check_images):
    check()
expect_equal(sorted(file.name for file in folder.iterdir() if file.suffix != ".whl"), [
    "Containerfile", "apptainer.sbatch", "jobset.yaml", "pyxis.sbatch", "redco-lua.def", "sky.yaml",
    "slurm.sbatch"])
