"""torchrun starts the processes: two nodes of two, an error in one, and a death after which all
start again.

    torchrun_peer.py REDCO_LUA SOURCE_FOLDER
"""
import json
import os
import socket
import subprocess
import sys
import tempfile

program, source = sys.argv[1:]
torchrun = os.path.join(sys.prefix, "bin", "torchrun")
scripts = os.path.join(source, "tests", "cluster")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def start(options, script, *arguments):
    words = [torchrun, *options, "--no-python", program, os.path.join(scripts, script), *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def losses(workdir):
    """Of the last 20 steps."""
    with open(os.path.join(workdir, "gpt-float64-zero0", "metrics.jsonl")) as file:
        return [json.loads(line)["loss"] for line in file][-20:]


def expect_close(name, actual, expected):
    assert len(actual) == len(expected) == 20, (name, actual)
    assert all(abs(a - b) < 1e-8 for a, b in zip(actual, expected)), (name, actual, expected)
    print(name, "is as one process")


def finished(process, code):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code, out
    return out


with tempfile.TemporaryDirectory() as folder:
    one = os.path.join(folder, "one")
    subprocess.run([program, os.path.join(scripts, "train.lua"), f"--workdir={one}",
                    "--per_device_batch_size=8"], check=True)
    expected = losses(one)

    nodes, port = os.path.join(folder, "nodes"), free_port()
    running = [start(["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=2",
                      "--master-addr=127.0.0.1", f"--master-port={port}"],
                     "train.lua", f"--workdir={nodes}", "--per_device_batch_size=2")
               for rank in range(2)]
    for process in running:
        finished(process, 0)
    expect_close("two nodes", losses(nodes), expected)

    again = os.path.join(folder, "again")
    os.mkdir(again)
    finished(start(["--standalone", "--nproc-per-node=2", "--max-restarts=1"], "death.lua",
                   f"--workdir={again}", "--per_device_batch_size=4", "--phase=backward"), 0)
    expect_close("a second start", losses(again), expected)

    out = finished(start(["--standalone", "--nproc-per-node=2"], "train.lua",
                         f"--workdir={folder}/wrong", "--per_device_batch_size=3"), 1)
    cause = out[out.index("Root Cause"):]
    assert "train.lua" in cause and "global_batch_size = 8 must be a multiple" in cause, out
    print("torchrun shows the error")
