"""redco-lua reads what Python's torch.save writes, with the same bits, strides and storages; it runs
nothing of hostile files, and no damage ends it.

torch_files_peer.py REDCO_LUA [NUMBER_OF_DAMAGED_FILES]
"""
import io
import json
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, OrderedDict

import torch
from safetensors.torch import load_file

here = pathlib.Path(__file__).parent
n_damaged = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32,
          torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def run(folder, paths, *arguments):
    """The line of open_torch.lua about each file."""
    listed = folder / "list"
    listed.write_text("".join(f"{path}\n" for path in paths))
    done = subprocess.run([sys.argv[1], here / "open_torch.lua", listed, *arguments],
                          capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    lines = done.stdout.decode(errors="replace").split("\n")[:-1]
    assert len(lines) == len(paths), (len(lines), len(paths))
    return lines


def described(value):
    """What open_torch.lua prints of the value."""
    lines, tensors, storages = [], [], {}

    def visit(path, each):
        if isinstance(each, torch.Tensor):
            tensors.append((path, each))
        elif isinstance(each, dict):
            for key, child in each.items():
                visit(f"{path}.{key}", child)
        elif isinstance(each, (list, tuple)):
            for i, child in enumerate(each):
                visit(f"{path}.{i}", child)
        elif isinstance(each, bool):
            lines.append(f"{path} {str(each).lower()}")
        elif isinstance(each, int) and abs(each) >= 2**53:
            lines.append(f"{path} {each}")
        elif isinstance(each, (int, float)):
            lines.append(f"{path} {each:.17g}")
        elif each is not None:
            lines.append(f"{path} {str(each).removeprefix('torch.')}")

    visit("", value)
    for path, tensor in sorted(tensors, key=lambda entry: entry[0].encode()):
        offset, storage = 0, "-"
        if tensor.numel() > 0:
            offset = tensor.storage_offset()
            pointer = tensor.untyped_storage().data_ptr()
            storage = storages.setdefault(pointer, len(storages))
        sizes, strides = (",".join(map(str, each)) for each in (tensor.shape, tensor.stride()))
        lines.append(f"{path} {str(tensor.dtype)[6:]} [{sizes}] [{strides}] "
                     f"{offset} {storage}")
    return ";".join(sorted(lines, key=lambda line: line.encode())).replace("\n", " ")


def random_tensor(rng, earlier, legacy):
    kind = rng.randrange(8)
    if kind == 0 and earlier:
        return rng.choice(earlier)  # the same object
    if kind == 1 and earlier:
        base = rng.choice(earlier)  # a view of another's storage
        return base.t() if base.dim() == 2 else base[..., rng.randint(0, 1):] if base.dim() else base
    shape = [rng.choice([0, 1, 2, 3, 5, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))]
    dtype = rng.choice(dtypes[:10] if legacy else dtypes)  # PyTorch does not read others there
    if dtype == torch.bool:
        tensor = torch.randint(0, 2, shape).bool()
    else:  # every bit pattern
        size = torch.empty([], dtype=dtype).element_size()
        n = size
        for length in shape:
            n *= length
        tensor = torch.tensor([rng.randrange(256) for _ in range(n)], dtype=torch.uint8)
        tensor = tensor.view(dtype).view(shape)
    if kind == 2 and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    if kind == 3:
        tensor = tensor.expand([rng.randint(1, 4), *tensor.shape])
    if kind == 4 and tensor.is_floating_point() and tensor.element_size() > 1:
        tensor = torch.nn.Parameter(tensor, requires_grad=rng.random() < 0.5)
    return tensor


def random_state(rng, legacy):
    state, tensors = rng.choice([dict, OrderedDict])(), []
    for i in range(rng.randint(0, 8)):
        tensors.append(random_tensor(rng, tensors, legacy))
        state[f"layer.{i}.wéight"] = tensors[-1]
    if isinstance(state, OrderedDict) and rng.random() < 0.5:
        state._metadata = OrderedDict([("", {"version": 1}), ("layer", {"version": 2})])
    return state


def with_plain_values(rng, state):
    size = torch.Size([rng.randrange(2**40) for _ in range(rng.randint(0, 3))])
    return {"state_dict": state, "step": rng.choice([0, 255, -1, 70000, 2**31, -2**63, 2**62 + 1]),
            "rate": rng.choice([1e-3, -0.0, float("inf"), 2.5]), "on": True, "off": False,
            "nothing": None, "texts": ["a", "ü" * 100, ""], "size": size, "dtype": torch.float16,
            "groups": [{"lr": 0.1, "params": (1, 2, 3)}], "one": ["alone"]}


def check_values(folder):
    rng = random.Random(5)
    saved, paths = [], []
    for i in range(150):
        legacy = i % 4 == 3
        value = random_state(rng, legacy)
        if i % 3 == 0:
            value = with_plain_values(rng, value)
        paths.append(folder / f"{i}.bin")
        torch.save(value, paths[-1], _use_new_zipfile_serialization=not legacy)
        saved.append(torch.load(paths[-1], weights_only=True))
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    for legacy in False, True:
        paths.append(folder / f"model{legacy}.bin")
        torch.save(model.state_dict(), paths[-1], _use_new_zipfile_serialization=not legacy)
        saved.append(model.state_dict())
    read = folder / "read"
    read.mkdir()
    n_tensors = 0
    for i, line in enumerate(run(folder, paths, read)):
        expected = "ok " + described(saved[i])
        assert line == expected, f"{paths[i]}\n  {line}\n  {expected}"
        tensors = dict(leaves(saved[i]))
        for name, tensor in load_file(read / f"{i}.safetensors").items():
            other = tensors.pop(name)
            assert tensor.dtype == other.dtype and tensor.shape == other.shape, name
            assert bytes_of(tensor) == bytes_of(other), (i, name)
            n_tensors += 1
        assert not tensors, tensors.keys()
    print(f"{len(paths)} files with {n_tensors} tensors are equal")


def leaves(value, path=()):
    """The tensors with the names that redco-lua's torch.save gives them."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))


def bytes_of(tensor):
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).flatten()
    return bytes(flat.untyped_storage())[:tensor.nbytes]


class Call:
    """Pickles as the call of a function."""
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def archive_of(records, name="archive"):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for key, content in records.items():
            file.writestr(zipfile.ZipInfo(f"{name}/{key}"), content)
    return stream.getvalue()


def records_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name.split("/", 1)[1]: file.read(name) for name in file.namelist()}


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def global_of(module, name, arguments=b"("):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n" + arguments + b"tR"


def hostile_files(marker):
    """Pairs of the bytes of a file and a part of the error."""
    import collections
    import os
    for legacy in False, True:
        for value, name in [
                (Call(os.system, f"touch {marker}"), "posix.system"),
                ({"a": torch.ones(2), "b": Call(exec, f"open({str(marker)!r}, 'w')")},
                 "__builtin__.exec"),
                (Call(getattr, "a", "b"), "__builtin__.getattr"),
                (Call(torch.hub.load, "a", "b"), "torch.hub.load"),
                (Counter("aab"), "collections.Counter"),
                (collections.defaultdict(list), "collections.defaultdict"),
                (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
                (pathlib.PurePosixPath("a"), "PurePosixPath"),
                ({1, 2}, "__builtin__.set"), (torch.device("cpu"), "torch.device"),
                (1 + 2j, "__builtin__.complex"), (bytearray(b"a"), "__builtin__.bytearray"),
                (torch.ones(2, dtype=torch.complex64), "torch.ComplexFloatStorage"),
                (torch.ones(2, 2).to_sparse(), "_rebuild_sparse_tensor"),
                (torch.empty(2, device="meta"), "_rebuild_meta_tensor_no_storage"),
                (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "_rebuild_qtensor"),
                ({1: torch.ones(1)}, "an integer as a key"),
                (torch.ones(2, dtype=torch.complex64).conj().imag, "has metadata")]:
            yield saved(value, _use_new_zipfile_serialization=not legacy), name
    # torch.jit.save's, and an archive of a big-endian machine.
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), script)
    yield script.getvalue(), "it is TorchScript"
    good = records_of(saved({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bool)}))
    pickled = good["data.pkl"]
    assert b"K\x02K\x03\x86" in pickled and b"X\x01\x00\x00\x000" in pickled

    def changed(**records):
        return archive_of({**good, **{key.replace("_", "/"): each for key, each in records.items()}})

    def with_pickle(content):
        return archive_of({**good, "data.pkl": content})

    yield with_pickle(b""), "cut short"
    yield changed(byteorder=b"big"), "byteorder is not 'little'"
    yield changed(byteorder=b"x" * 1000), "byteorder is not 'little'"
    yield changed(data_0=b"\0" * 23), "24 bytes by the pickle and 23 in the file"
    yield changed(data_1=b"\0\2"), "a boolean is 2, expected 0 or 1"
    yield archive_of({key: each for key, each in good.items() if key != "data/0"}), "is missing"
    yield archive_of({key: each for key, each in good.items() if key != "data.pkl"}), "no data.pkl"
    # Sizes, strides and offsets.
    huge = b"\x8a\x08" + (2**62).to_bytes(8, "little")
    for old, new in [(b"K\x02K\x03\x86", b"K\x02K\x04\x86"), (b"K\x02K\x03\x86", huge + huge + b"\x86"),
                     (b"K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x03\x86"),
                     (b"K\x03K\x01\x86", b"K\x04K\x01\x86"), (b"K\x03K\x01\x86", huge + huge + b"\x86"),
                     (b"K\x03K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"),
                     (b"QK\x00", b"QK\x01"), (b"QK\x00", b"QJ\xff\xff\xff\xff"),
                     (b"QK\x00", b"Q" + huge)]:
        assert old in pickled, old
        yield with_pickle(pickled.replace(old, new, 1)), "beyond its storage" \
            if b"QJ" not in new else "wrong dimensions"
    yield with_pickle(pickled.replace(b"K\x06t", huge + b"t", 1)), "impossible size"
    yield with_pickle(pickled.replace(b"K\x06t", b"K\x06\x85t", 1)), "wrong kind"
    yield with_pickle(pickled.replace(b"X\x07\x00\x00\x00storage", b"X\x07\x00\x00\x00storagf")), \
        "not a storage"
    # Pickles by hand.
    for content, error in [
            (b"\x80\x02" + b"(" * 1000 + b".", "its values nest too deep"),
            (b"\x80\x02" + b"]" * 500 + b"a" * 499 + b".", "nest too deep"),
            (b"\x80\x02" + b")\x85" + b"\x85" * 300 + b".", "nest too deep"),
            (b"\x80\x02]q\x00h\x00a.", "changes after it was put into another"),
            (b"\x80\x02]q\x00]q\x01h\x00ah\x00h\x01a.", "changes after it was put into another"),
            (b"\x80\x02(]q\x00" + b"".join(b"](" + b"h%c" % i * 10 + b"eq%c" % (i + 1)
                                           for i in range(60)) + b"l.", "repeat others"),
            (b"\x80\x02X\xff\xff\xff\xffabc.", "cut short"),
            (b"\x80\x02]r\xff\xff\xff\xff.", "under a wrong number"),
            (b"\x80\x02h\x05.", "missing value"), (b"\x80\x02\x8a\xff" + b"\1" * 255 + b".", "64 bits"),
            (b"\x80\x02}(K\x01u.", "a key without a value"), (b"\x80\x02.", "one value"),
            (b"\x80\x03N.", "protocol 2"), (b"\x80\x02N.N", "bytes follow"),
            (b"\x80\x02X\x01\x00\x00\x00aQ.", "too few arguments"),
            (b"\x80\x02NQ.", "too few arguments"),
            (b"\x80\x02(X\x06\x00\x00\x00moduletQ.", "too few arguments"),
            (b"\x80\x02c__builtin__\neval\n.", "__builtin__.eval"),
            (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "os.system"),
            (b"\x80\x02(S'id'\nios\nsystem\n.", "the instruction 83"),
            (b"\x80\x02ctorch\nTensor\n)R.", "calls a class"),
            (b"\x80\x02ctorch\nTensor\n)\x81.", "the instruction 129"),
            (b"\x80\x02ctorch\nFloatStorage\n.", "a type that is in no tensor"),
            (b"\x80\x02ctorch\nFloatStorage\n)R.", "not a function"),
            (b"\x80\x02ccollections\nOrderedDict\n]R.", "made of arguments"),
            (b"\x80\x02NNb.", "no dictionary"), (b"\x80\x02}]b.", "no dictionary"),
            (b"\x80\x02" + global_of("torch._utils", "_rebuild_tensor_v2") + b".", "too few"),
            (b"\x80\x02}X\x01\x00\x00\x00aNX\x01\x00\x00\x00aN" + b".", "one value"),
            (b"\x80\x02}(X\x01\x00\x00\x00aNX\x01\x00\x00\x00aNu.", "is there twice"),
            (b"\x80\x02\x93.", "the instruction 147")]:
        yield archive_of({"data.pkl": content}), error
    # Archives.
    zipped = saved({"a": torch.ones(2)})
    for name, first in ("data.pkl", pickled), ("data/0", b"\0" * 8):
        stream = io.BytesIO(zipped)
        with zipfile.ZipFile(stream, "a") as file:
            file.writestr(f"archive/{name}", first)
        yield stream.getvalue(), "there twice"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for key, content in good.items():
            file.writestr(f"archive/{key}", content)
    yield stream.getvalue(), "is compressed"
    yield archive_of({"data.pkl": pickled, "../x": b""}), "the file of the storage"
    yield b"PK\x03\x04" + bytes(8), "too few for a zip archive"
    yield b"", "bytes"
    old = saved({"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    yield old[:-1], "in the file: it is damaged"
    yield old + b"\0", "bytes follow the last storage"
    yield old.replace(b"little_endian", b"little-endian"), "little_endian is not True"
    yield pickle.dumps({"a": 1}, protocol=2), "it does not begin as torch.save begins files"
    yield pickle.dumps({"a": 1}, protocol=4), "it does not begin as torch.save begins files"


def check_hostile(folder):
    marker = folder / "was_run"
    paths, errors = [], []
    for content, error in hostile_files(marker):
        paths.append(folder / f"hostile{len(paths)}.bin")
        paths[-1].write_bytes(content)
        errors.append(error)
    wrong = [f"{path}: expected {error!r}\n  {line}"
             for path, error, line in zip(paths, errors, run(folder, paths))
             if not (line.startswith("error ") and error in line and str(path) in line)]
    assert not wrong, "\n".join(wrong)
    assert not marker.exists(), "code of a file was run"
    print(f"{len(paths)} hostile files are refused")


def damaged(content, rng):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, n = rng.randrange(len(content) + 1), rng.randint(1, 16)
        kind = rng.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at:at + n] = b""
        elif kind == 2:
            content[at:at] = rng.randbytes(n)
        elif kind == 3:
            source = rng.randrange(len(content) + 1)
            content[at:at + n] = content[source:source + n]
        elif rng.random() < 0.2:
            del content[at:]
    return bytes(content)


def check_damaged(folder):
    rng = random.Random(7)
    paths, verdicts = [], Counter()
    for i in range(n_damaged):
        legacy = i % 5 == 0
        value = random_state(rng, legacy)
        if i % 2:
            value = with_plain_values(rng, value)
        content = saved(value, _use_new_zipfile_serialization=not legacy)
        if i % 5 in (0, 1):
            content = damaged(content, rng)
        else:  # with sums that fit
            records = records_of(content)
            key = "data.pkl" if rng.random() < 0.8 else rng.choice(list(records))
            records[key] = damaged(records[key], rng)
            content = archive_of(records)
        paths.append(folder / f"damaged{i}.bin")
        paths[-1].write_bytes(content)
    for path, line in zip(paths, run(folder, paths)):
        try:
            theirs = torch.load(path, weights_only=True)
        except Exception:
            theirs = None
        verdicts[line.split(" ")[0], "refused" if theirs is None else "read"] += 1
        if line.startswith("ok ") and theirs is not None:
            assert line == "ok " + described(theirs), f"{path}\n  {line}\n  {described(theirs)}"
    print(f"{len(paths)} damaged files: " + ", ".join(
        f"{mine} here and {other} by PyTorch {n}" for (mine, other), n in sorted(verdicts.items())))


def check_folders(folder):
    """A model's folder with an index, and safetensors before the others."""
    state = {f"w{i}": torch.randn(3, 4) for i in range(6)}
    for i in range(2):
        part = {name: tensor for name, tensor in state.items() if int(name[1]) % 2 == i}
        torch.save(part, folder / f"pytorch_model-0000{i + 1}-of-00002.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({
        "metadata": {"total_size": 288},
        "weight_map": {name: f"pytorch_model-0000{int(name[1]) % 2 + 1}-of-00002.bin"
                       for name in state}}))
    script = folder / "folder.lua"
    script.write_text("""
local native = require "redco.native"
local weights, tensors = native.open_weights(arg[1]), {}
for _, name in ipairs(weights:keys()) do tensors[name] = weights:tensor(name) end
require("redco").torch.save(tensors, arg[1] .. "/all.safetensors")
""")
    subprocess.run([sys.argv[1], script, folder], check=True)
    read = load_file(folder / "all.safetensors")
    assert read.keys() == state.keys() and all(torch.equal(read[name], state[name]) for name in state)
    print("an index of two files is read")


for check in check_values, check_hostile, check_damaged, check_folders:
    with tempfile.TemporaryDirectory() as name:
        check(pathlib.Path(name))
