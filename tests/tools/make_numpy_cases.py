"""Writes tests/lua/numpy_cases: arrays of every supported type, and some that are not, as NumPy
stores them.

    python tests/tools/make_numpy_cases.py tests/lua/numpy_cases
"""

import pathlib
import sys

import numpy as np

folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
counts = np.arange(6).reshape(2, 3)
arrays = {t: (counts * 3 - 4).astype(t) for t in ("i1", "i2", "i4", "i8", "f2", "f4", "f8")}
arrays |= {"b1": counts % 2 == 0, "u1": (counts + 250).astype("u1"),
           "u2": (counts + 65530).astype("u2"), "u4": (counts + 2**32 - 6).astype("u4"),
           "c8": (counts + 1j).astype("c8"), "fortran": np.asfortranarray(counts.astype("f8")),
           "fortran3": np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
           "scalar": np.float32(2.5), "empty": np.zeros((0, 3), "f4")}
np.savez(folder / "stored.npz", **arrays)
np.savez_compressed(folder / "compressed.npz", zeros=np.zeros((100, 5), "f4"), counts=counts)
np.save(folder / "matrix.npy", counts.astype("f4"))
np.save(folder / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
np.save(folder / "big_endian.npy", counts.astype(">f4"))
np.save(folder / "text.npy", np.array(["a", "bc"]))
np.save(folder / "records.npy", np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]))
np.save(folder / "uint64.npy", counts.astype("u8"))
with open(folder / "version2.npy", "wb") as file:
    np.lib.format.write_array(file, counts, version=(2, 0))
