"""The cache of huggingface_hub is shared: what one downloads, the other finds.

hub_peer.py REDCO_LUA SOURCE
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
folder = pathlib.Path(tempfile.mkdtemp())
repositories, log = folder / "root/models/org", folder / "log"
for name in ("ours", "theirs", "locked"):
    shutil.copytree(source / "tests/cases/llama", repositories / name)
server = subprocess.Popen([sys.executable, source / "tests/program/fake_hub.py", folder / "root", log])


def requests():
    lines = log.read_text().splitlines()
    log.write_text("")
    return lines


try:
    while not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.05)
    os.environ |= {"HF_HOME": str(folder / "home"), "no_proxy": "*",
                   "HF_ENDPOINT": requests()[0].split()[1]}
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        os.environ.pop(name, None)
    import huggingface_hub  # reads the environment

    def generate(*words):
        return [program, "generate", *words, "the sea", "--max-new-tokens=4"]

    def text(*words):
        return subprocess.run(generate(*words), check=True, capture_output=True).stdout

    expected = text(source / "tests/cases/llama")
    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")

    assert text("org/ours", "--download") == expected
    assert any("files GET" in line for line in requests())
    for name in files:
        found = huggingface_hub.try_to_load_from_cache("org/ours", name)
        content = (repositories / "ours" / name).read_bytes()
        assert isinstance(found, str) and pathlib.Path(found).read_bytes() == content, name
        assert huggingface_hub.hf_hub_download("org/ours", name) == found
    assert not any("files GET" in line for line in requests())
    info = huggingface_hub.scan_cache_dir()
    assert not info.warnings and [r.repo_id for r in info.repos] == ["org/ours"], info

    for name in files:
        huggingface_hub.hf_hub_download("org/theirs", name)
    requests()
    assert text("org/theirs") == expected
    assert text("org/theirs", "--download") == expected
    assert not requests()

    # Their lock of a file holds ours back.
    from huggingface_hub.utils import WeakFileLock
    blobs = {path.resolve().name for path in (folder / "home/hub/models--org--ours").rglob(
        "model.safetensors")}
    [blob] = blobs
    lock = folder / f"home/hub/.locks/models--org--locked/{blob}.lock"
    lock.parent.mkdir(parents=True)
    with WeakFileLock(lock):
        ours = subprocess.Popen(generate("org/locked", "--download"), stdout=subprocess.PIPE)
        while not any("model.safetensors" in line for line in log.read_text().splitlines()):
            time.sleep(0.05)
        time.sleep(1)
        assert ours.poll() is None and not any("files GET" in line for line in requests())
    assert ours.communicate()[0] == expected
    assert any("files GET" in line for line in requests())
finally:
    server.kill()
    shutil.rmtree(folder)
