"""Weights & Biases and MLflow have what a run logged, by the scripts of docs/runs.md.

trackers_peer.py REDCO_LUA SOURCE
"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from wandb.proto import wandb_internal_pb2

program, source = sys.argv[1:]
page = pathlib.Path(source, "docs/runs.md").read_text()
scripts = dict(re.findall(r"```python\n# (import_\w+\.py)\n(.*?)```", page, re.DOTALL))


def records(path):
    """The messages in an offline run of Weights & Biases: a log of LevelDB after 7 bytes."""
    data, at, message = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        message += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            yield record
            message = b""


def of_wandb(folder):
    [path] = folder.glob("wandb/offline-run-*/run-*.wandb")
    found, config = {}, {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if kind != "history":
            continue
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                 for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found[name, items["_step"]] = value
    return found, config


def of_mlflow(folder):
    found = {}
    for path in folder.glob("mlruns/0/*/metrics/**/*"):
        if path.is_file():
            for line in path.read_text().splitlines():
                _, value, step = line.split()[:3]
                name = "/".join(path.relative_to(folder).parts[4:])
                found[name, int(step)] = float(value)
    config = {path.name: path.read_text() for path in folder.glob("mlruns/0/*/params/*")}
    return found, config


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    workdir = folder / "workdir"
    here = pathlib.Path(__file__).parent
    subprocess.run([program, here / "log_run.lua", workdir, "0"], check=True, capture_output=True)
    (workdir / "config.toml").write_text('rate = 0.125\nrule = "sgd"\n')
    expected = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        step, kind = entry.pop("step"), entry.pop("kind", "train")
        expected |= {(f"{kind}/{key}", step): x for key, x in entry.items() if x is not None}
    assert ("train/loss", 3) in expected and ("eval/last", 4) in expected
    environment = os.environ | {
        "WANDB_MODE": "offline", "WANDB_DIR": name, "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file:{name}/mlruns"}
    for script, text in scripts.items():
        (folder / script).write_text(text)
        subprocess.run([sys.executable, script, workdir], check=True, cwd=folder, env=environment,
                       capture_output=True)
    for found, config in of_wandb(folder), of_mlflow(folder):
        assert found == expected, {key: (found.get(key), expected.get(key))
                                   for key in found.keys() | expected.keys()
                                   if found.get(key) != expected.get(key)}
        assert str(config["rate"]) == "0.125" and config["rule"] == "sgd", config
print(f"{len(scripts)} programs have the {len(expected)} values of a run")
