"""redco.data.parquet gives the rows of pyarrow, for random tables as pyarrow, Polars and Hugging
Face datasets write them.

parquet_peer.py REDCO_LUA [SEED]
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import datasets
import polars
import pyarrow as pa
import pyarrow.parquet as pq

program, *rest = sys.argv[1:]
draw = random.Random(int(rest[0]) if rest else 1)
script = pathlib.Path(__file__).parent / "parquet_rows.lua"
datasets.disable_progress_bars()

scalars = {
    pa.int8(): lambda: draw.randrange(-128, 128), pa.int16(): lambda: draw.randrange(-9, 999),
    pa.int32(): lambda: draw.randrange(-2**31, 2**31), pa.uint8(): lambda: draw.randrange(256),
    pa.int64(): lambda: draw.choice([0, 1, -(2**53), 2**62, draw.randrange(1000)]),
    pa.uint32(): lambda: draw.randrange(2**32), pa.bool_(): lambda: draw.random() < 0.5,
    pa.float32(): lambda: draw.randrange(-99, 99) / 8, pa.float64(): draw.random,
    pa.string(): lambda: "".join(draw.choices("abcé\0 ", k=draw.choice([0, 1, 5, 40]))),
    pa.binary(): lambda: draw.randbytes(draw.randrange(9)), pa.binary(3): lambda: draw.randbytes(3),
}


def random_type(depth=0):
    kind = draw.random()
    if depth < 3 and kind < 0.25:
        return pa.list_(random_type(depth + 1))
    if depth < 3 and kind < 0.4:
        return pa.struct([(name, random_type(depth + 1)) for name in "xyz"[:draw.randrange(1, 4)]])
    return draw.choice(list(scalars))


def random_value(kind, nulls, few):
    if draw.random() < nulls:
        return None
    if pa.types.is_list(kind):
        n = draw.choice([0, 1, 2, 7])
        return [random_value(kind.value_type, nulls, few) for _ in range(n)]
    if pa.types.is_struct(kind):
        return {field.name: random_value(field.type, nulls, few) for field in kind}
    if few is not None:  # values that repeat, for dictionaries
        return draw.choice(few.setdefault(kind, [scalars[kind]() for _ in range(5)]))
    return scalars[kind]()


def random_table():
    n, columns = draw.choice([1, 10, 300, 3000]), {}
    for i in range(draw.randrange(1, 6)):
        kind, nulls, few = random_type(), draw.choice([0, 0, 0.1, 0.9]), draw.choice([None, {}])
        columns[f"c{i}"] = pa.array([random_value(kind, nulls, few) for _ in range(n)], kind)
    return pa.table(columns)


def write(table, path):
    n = max(1, table.num_rows // draw.choice([1, 3, 10]))
    writer = draw.choice(["pyarrow", "polars", "datasets"])
    if writer == "polars":
        polars.from_arrow(table).write_parquet(
            path, row_group_size=n, compression=draw.choice(["zstd", "snappy", "uncompressed"]))
        return pq.read_table(path)
    if writer == "datasets":
        datasets.Dataset(table).to_parquet(str(path), batch_size=n)
        return table
    pq.write_table(
        table, path, row_group_size=n, compression=draw.choice(["snappy", "zstd", "gzip", "none"]),
        use_dictionary=draw.random() < 0.5, data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([100, 10**6]), write_page_checksum=draw.random() < 0.5,
        dictionary_pagesize_limit=draw.choice([50, 10**6]))
    return table


def form(value):
    if isinstance(value, dict):
        parts = [f"{key}:{form(x)}" for key, x in value.items() if x is not None]
        return "{" + ",".join(sorted(parts)) + "}"
    if isinstance(value, list):
        if not value:
            return "{}"
        return "[" + ",".join("null" if x is None else form(x) for x in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) > 2**53 else "%.17g" % value
    if isinstance(value, float):
        return "%.17g" % value
    return (value if isinstance(value, bytes) else value.encode()).hex() + "s"


with tempfile.TemporaryDirectory() as folder:
    paths, expected = [], []
    for i in range(60):
        paths.append(pathlib.Path(folder, f"{i}.parquet"))
        table = write(random_table(), paths[-1])
        rows = [form(row) for row in table.to_pylist()]
        expected.append(rows + rows[::-1])
    n_rows = 0
    for path, lines in zip(paths, expected):
        run = subprocess.run([program, script, path], capture_output=True, text=True)
        assert run.returncode == 0, f"{pq.read_schema(path)}\n{run.stderr}"
        found = run.stdout.split("\n")[:-1]
        assert len(found) == len(lines), (len(found), len(lines), pq.read_schema(path))
        for actual, wanted in zip(found, lines):
            assert actual == wanted, f"{actual}\n{wanted}\n{pq.ParquetFile(path).schema}"
        n_rows += len(lines)
print(f"{len(paths)} files, {n_rows} rows are equal")
