"""How TorchScript modules are stored in this repository."""

import io
import zipfile

import torch


def save(module, path):
    """Writes the scripted module: where PYTHONHASHSEED=0, the same file whoever makes it."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    with zipfile.ZipFile(buffer) as made, zipfile.ZipFile(path, "w") as kept:
        for name in made.namelist():
            # Of the machine that made it: where its sources lay, and a number of its own.
            if not name.endswith((".debug_pkl", "serialization_id")):
                kept.writestr(zipfile.ZipInfo(name), made.read(name))
