"""TensorBoard reads what redco-lua logs, of a run that was killed and goes on too.

tensorboard_peer.py REDCO_LUA
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.util import tensor_util

script = pathlib.Path(__file__).parent / "log_run.lua"


def run(folder, first):
    subprocess.run([sys.argv[1], script, folder, str(first)], check=True, capture_output=True)


def read(folder):
    events = EventAccumulator(str(folder), size_guidance=dict(
        scalars=0, tensors=0, images=0, histograms=0))
    events.Reload()
    return events


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def texts(events, tag):
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode(errors="replace"))
            for event in events.Tensors(tag)]


def logged(folder, kind, name):
    """What metrics.jsonl has; of two lines of one step the later one."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sorted({line["step"]: line[name] for line in lines
                   if line.get("kind") == kind and name in line}.items())


def same(given, expected):
    assert len(given) == len(expected), (given, expected)
    for (step, value), (other, wanted) in zip(given, expected):
        assert step == other, (given, expected)
        assert math.isclose(value, wanted, rel_tol=1e-6), (given, expected)


def pixels(png):
    """Rows of a PNG file without interlacing, whose rows are not filtered or by known filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    data, place = b"", 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place:place + 8])
        data += png[place + 8:place + 8 + size] if kind == b"IDAT" else b""
        place += 12 + size
    data = zlib.decompress(data)
    n = {0: 1, 2: 3, 6: 4}[colour]
    stride, rows, above = width * n + 1, [], [0] * width * n
    for y in range(height):
        row = list(data[y * stride + 1:(y + 1) * stride])
        for i in range(len(row)):
            left, up, corner = (row[i - n] if i >= n else 0, above[i],
                                above[i - n] if i >= n else 0)
            guess = left + up - corner
            paeth = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                        (abs(guess - corner), 2, corner))[2]
            row[i] = (row[i] + [0, left, up, (left + up) // 2, paeth][data[y * stride]]) % 256
        rows.append(row)
        above = row
    return depth, colour, rows


def check_histograms(events):
    assert sorted(events.Tags()["histograms"]) == ["holes", "weights/a", "weights/b"]
    [event] = events.Histograms("weights/a")
    value = event.histogram_value
    assert event.step == 4 and (value.min, value.max, value.num) == (0, 10, 101)
    assert math.isclose(value.sum, 505, rel_tol=1e-6)
    assert math.isclose(value.sum_squares, sum((i / 10)**2 for i in range(101)), rel_tol=1e-6)
    assert len(value.bucket) == len(value.bucket_limit) == 64 and sum(value.bucket) == 101
    assert value.bucket_limit[-1] == 10 and max(value.bucket) <= 2
    [event] = events.Histograms("weights/b")
    assert list(event.histogram_value.bucket) == [3]
    assert list(event.histogram_value.bucket_limit) == [2.5]
    assert events.Histograms("holes")[0].histogram_value.num == 2


def check_settings(events):
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    assert {key: value.WhichOneof("kind") for key, value in values.items()} == {
        "rate": "number_value", "rule": "string_value", "nesterov": "bool_value"}
    assert (values["rate"].number_value, values["rule"].string_value) == (0.125, "sgd")


def check_first(folder):
    events = read(folder)
    tags = events.Tags()
    for name in "train/loss", "train/grad_norm", "train/lr", "system/step_seconds":
        assert [step for step, _ in scalars(events, name)] == [0, 1, 2, 3]
        same(scalars(events, name), logged(folder, None, name.split("/")[1]))
    for name in "loss", "last":
        same(scalars(events, "eval/" + name), logged(folder, "eval", name))
    assert scalars(events, "eval/last") == [(4, 22)]
    assert math.isnan(scalars(events, "train/odd")[0][1])
    assert scalars(events, "train/large") == [(4, 2.0**80)]
    assert scalars(events, "own/name") == [(4, 1)]
    assert {tag.split("/")[0] for tag in tags["scalars"]} == {"train", "eval", "system", "own"}
    check_histograms(events)
    check_settings(events)

    assert texts(events, "Setting") == [(0, "    a | b\n    c | d, from 0")]
    assert texts(events, "Parameters") == [(0, "1")]
    assert texts(events, "End") == [(4, "stop\ufffd")]
    [(step, samples)] = texts(events, "Output Samples")
    expected = [{"example": i, "pred": 2 * i} for i in range(1, 12)]
    assert step == 4 and json.loads(samples) == expected[:10]
    assert json.loads((folder / "outputs_epoch0.json").read_text()) == expected

    assert sorted(tags["images"]) == ["clear", "colour", "grey"]
    for name, size, channels in ("grey", (16, 16), 0), ("colour", (4, 4), 2), ("clear", (5, 2), 6):
        [image] = events.Images(name)
        assert (image.step, image.width, image.height) == (4, *size), name
        depth, colour, rows = pixels(image.encoded_image_string)
        assert depth == 8 and colour == channels
        if name == "grey":
            assert rows == [list(range(16 * y, 16 * y + 16)) for y in range(16)]
        if name == "colour":
            value = [math.floor(255 * i / 47 + 0.5) for i in range(48)]
            assert rows == [[value[c * 16 + y * 4 + x] for x in range(4) for c in range(3)]
                            for y in range(4)]


def check_resumed(folder):
    events = read(folder)
    # Those of the killed run from step 2 on are gone.
    steps = [step for step, _ in scalars(events, "train/loss")]
    assert steps == [0, 1, 2, 3, 4, 5], steps
    given = dict(scalars(events, "train/loss"))
    same(sorted(given.items()), logged(folder, None, "loss"))
    assert [step for step, _ in scalars(events, "eval/loss")] == [6]
    assert [step for step, _ in texts(events, "Setting")] == [0, 2]


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    run(folder, 0)
    check_first(folder)
    run(folder, 2)
    check_resumed(folder)
print("every tag, step, value, text and image is as it was logged")
