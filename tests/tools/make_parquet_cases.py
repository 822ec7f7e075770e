"""Writes tests/lua/parquet_cases and the seeds of fuzz/corpus/parquet: tables of every supported
kind as pyarrow and Hugging Face datasets store them, and some that are not supported.

    make_parquet_cases.py tests/lua/parquet_cases fuzz/corpus/parquet

Packages: pyarrow, datasets, pillow.
"""

import json
import pathlib
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder, corpus = map(pathlib.Path, sys.argv[1:])
for path in folder, corpus:
    path.mkdir(exist_ok=True)

n = 7
table = pa.table({
    "i8": pa.array([-1, 2, None, 4, 5, 6, -128], pa.int8()),
    "u8": pa.array([1, 255, 3, 4, 5, 6, 7], pa.uint8()),
    "i32": pa.array(range(-3, 4), pa.int32()),
    "u32": pa.array([2**32 - 1] * n, pa.uint32()),
    "i64": pa.array([2**40, None, -(2**40), 0, 1, 2, 3], pa.int64()),
    "f16": pa.array(np.arange(n, dtype="f2") / 2),
    "f32": pa.array([0.5, None, None, 1.5, 2, 2.5, 3], pa.float32()),
    "f64": pa.array([i / 3 for i in range(n)], pa.float64()),
    "flag": pa.array([True, False, None, True, True, False, True]),
    "text": pa.array(["a", "", None, "Grüße", "a", "a\0b", "z" * 300]),
    "fixed": pa.array([bytes([i]) * 3 for i in range(n)], pa.binary(3)),
    "day": pa.array([0, 1, 2, 3, 4, 5, 6], pa.date32()),
    "time": pa.array(range(n), pa.timestamp("us")),
    "numbers": pa.array([[1, 2, 3], [], None, [4], [5, 6], [7], [8, 9]], pa.list_(pa.int32())),
    "holes": pa.array([[1.5, None], [2.0], None, [], [None], [3.0], []], pa.list_(pa.float32())),
    "flags": pa.array([[True, False]] * n, pa.list_(pa.bool_())),
    "words": pa.array([["a", "b"], [], None, [None, "c"], ["d"], ["e"], ["f"]],
                      pa.list_(pa.string())),
    "matrix": pa.array([[[1, 2], [3]], [], None, [[]], [None, [4]], [[5]], [[6], [7, 8]]],
                       pa.list_(pa.list_(pa.int64()))),
    "pair": pa.array([{"en": "dog", "de": "Hund"}, None, {"en": None, "de": "x"}] + [{
        "en": str(i), "de": "y"} for i in range(4)],
                     pa.struct([("en", pa.string()), ("de", pa.string())])),
    "chat": pa.array([[{"role": "user", "content": "Hi", "calls": [1, 2]},
                       {"role": "model", "content": None, "calls": []}], [], None,
                      [{"role": "user", "content": "x", "calls": None}]] + [
                          [{"role": "a", "content": "b", "calls": [i]}] * i for i in range(3)],
                     pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()),
                                         ("calls", pa.list_(pa.int64()))]))),
    "map": pa.array([[("k", 1)], [], None, [("a", 1), ("b", 2)], [], [], []],
                    pa.map_(pa.string(), pa.int32())),
    "nothing": pa.array([None] * n, pa.string()),
})


def json_of(value):
    """A row as the reader gives it: no nulls but in lists."""
    if isinstance(value, dict):
        return {key: json_of(x) for key, x in value.items() if x is not None}
    if isinstance(value, tuple):  # of a map
        return {"key": value[0], "value": value[1]}
    if isinstance(value, list):
        return [None if x is None else json_of(x) for x in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "toordinal") and not hasattr(value, "hour"):
        return value.toordinal() - 719163
    if hasattr(value, "microsecond"):
        return value.microsecond
    return value


variants = {
    "plain": dict(compression="none", use_dictionary=False),
    "snappy": dict(compression="snappy", row_group_size=3),
    "zstd_v2": dict(compression="zstd", data_page_version="2.0", row_group_size=4),
    "gzip_checked": dict(compression="gzip", write_page_checksum=True, use_dictionary=False),
    "small_pages": dict(compression="snappy", data_page_size=1, write_batch_size=2),
}
for name, options in variants.items():
    pq.write_table(table, folder / f"{name}.parquet", **options)
rows = [json_of(row) for row in table.to_pylist()]
(folder / "rows.json").write_text(json.dumps(rows))

# Long columns: runs, packed numbers, and dictionaries that grow from 1 to 13 bits.
rng = np.random.default_rng(0)
count = 5000
long = pa.table({
    "same": pa.array(["x"] * count), "count": pa.array(range(count)),
    "some": pa.array([None if i % 7 < 3 else i % 300 for i in range(count)], pa.int32()),
    "flag": pa.array([bool(x) for x in rng.integers(0, 2, count)]),
    "list": pa.array([list(range(i % 5)) for i in range(count)], pa.list_(pa.int32()))})
pq.write_table(long, folder / "long.parquet", compression="zstd", row_group_size=2000,
               data_page_size=2000)
(folder / "long.json").write_text(json.dumps({
    name: sum(sum(x) if isinstance(x, list) else int(x) for x in column if x is not None)
    for name, column in long.to_pydict().items() if name != "same"}))

# What datasets writes: features, images, classes.
pixels = [np.full((2, 3, 3), 40 * i, "u1") for i in range(3)]
datasets.Dataset.from_dict(
    {"image": pixels, "label": [0, 1, 0], "input_ids": [[1, 2], [3], []]},
    features=datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]),
        "input_ids": datasets.Sequence(datasets.Value("int32"))})
).to_parquet(str(folder / "images.parquet"))

# Not supported.
pq.write_table(pa.table({"x": pa.array([1, 2]), "d": pa.array([1, 2], pa.decimal128(5, 2))}),
               folder / "decimal.parquet")
pq.write_table(pa.table({"x": range(9)}), folder / "lz4.parquet", compression="lz4")
pq.write_table(pa.table({"x": range(9)}), folder / "delta.parquet", use_dictionary=False,
               column_encoding="DELTA_BINARY_PACKED")
pq.write_table(pa.table({"x": pa.array([2**64 - 1], pa.uint64())}), folder / "uint64.parquet")

for name in "plain", "snappy", "zstd_v2", "gzip_checked", "images":
    bytes_of = (folder / f"{name}.parquet").read_bytes()
    (corpus / name).write_bytes(bytes_of)
small = table.select(["i8", "text", "chat"]).slice(0, 3)
for name, options in variants.items():
    pq.write_table(small, corpus / f"small_{name}", store_schema=False, write_statistics=False,
                   **options)
