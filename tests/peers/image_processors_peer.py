"""redco-lua prepares images as the image processors of transformers do with Pillow.

image_processors_peer.py REDCO_LUA SOURCE [--seed N]
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import PIL
import transformers
from safetensors.numpy import load_file, save_file

sys.dont_write_bytecode = True
import with_pillow  # noqa: E402

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
ROUNDS = 6


def settings(draw):
    """What all of them have."""
    return dict(resample=draw.choice([1, 2, 3]), do_rescale=draw.random() < 0.9,
                do_normalize=draw.random() < 0.8, rescale_factor=draw.choice([1 / 255, 0.01]),
                image_mean=[round(draw.random(), 3) for _ in range(3)],
                image_std=[round(draw.random() + 0.1, 3) for _ in range(3)])


def box(draw):
    return dict(size=dict(height=draw.randint(8, 60), width=draw.randint(8, 60)))


def shorter_side(draw):
    return dict(size=dict(shortest_edge=draw.randint(12, 40)), do_center_crop=True,
                crop_size=dict(height=draw.randint(4, 12), width=draw.randint(4, 12)))


def cropped_box(draw):
    size = box(draw)["size"]
    return dict(size=size, do_center_crop=draw.random() < 0.5,
                crop_size={key: draw.randint(4, value) for key, value in size.items()})


def canvas(draw):
    side = draw.randint(4, 40)
    return dict(size=dict(height=side, width=side), max_patches=draw.randint(1, 20),
                resize_to_max_canvas=draw.random() < 0.5, resample=draw.choice([2, 3]),
                do_rescale=True, do_normalize=True)


PROCESSORS = {
    "ViTImageProcessor": box,
    "DeiTImageProcessor": cropped_box,
    "CLIPImageProcessor": shorter_side,
    "BitImageProcessor": shorter_side,
    "SiglipImageProcessor": box,
    "BeitImageProcessor": cropped_box,
    "SegformerImageProcessor": lambda draw: dict(box(draw),
                                                 do_reduce_labels=draw.random() < 0.5),
    "RTDetrImageProcessor": box,
    "ConvNextImageProcessor": lambda draw: dict(
        size=dict(shortest_edge=draw.choice([20, 33, 383, 384, 390])),
        crop_pct=round(0.5 + draw.random() / 2, 3)),
    "DetrImageProcessor": lambda draw: dict(
        size=dict(shortest_edge=draw.randint(20, 60), longest_edge=draw.randint(60, 90))),
    "Siglip2ImageProcessor": lambda draw: dict(patch_size=draw.randint(2, 9),
                                               max_num_patches=draw.randint(2, 40)),
}
if hasattr(transformers, "Llama4ImageProcessor"):  # of version 5
    PROCESSORS["Llama4ImageProcessor"] = canvas

if hasattr(transformers, "Gemma4ImageProcessor"):  # in version 5
    PROCESSORS["Gemma4ImageProcessor"] = lambda draw: dict(
        patch_size=draw.randint(2, 5), max_soft_tokens=draw.choice([70, 140]),
        pooling_kernel_size=draw.randint(1, 3))


def named(name):
    """A class of transformers; in version 5 that which uses Pillow."""
    return getattr(transformers, name + "Pil", None) or getattr(transformers, name)


def write_case(folder, name, draw):
    """Writes a case, and returns what transformers makes of it."""
    given = dict(settings(draw), **PROCESSORS[name](draw))
    processor = named(name)(**({} if draw.random() < 0.2 else given))
    processor.save_pretrained(folder)
    noise = numpy.random.default_rng(draw.randrange(2 ** 31))
    least, most = (1, 300) if name == "Llama4ImageProcessor" else (10, 90)
    images = [noise.integers(256, size=(draw.randint(least, most), draw.randint(least, most), 3),
                             dtype=numpy.uint8) for _ in range(draw.randint(1, 3))]
    tensors = {f"image{i}": image.transpose(2, 0, 1).copy() for i, image in enumerate(images, 1)}
    options = {}
    if name == "SegformerImageProcessor":
        maps = [noise.integers(256, size=image.shape[:2], dtype=numpy.uint8) for image in images]
        tensors.update({f"map{i}": each.copy() for i, each in enumerate(maps, 1)})
        options["segmentation_maps"] = maps
    save_file(tensors, folder / "given.safetensors")
    # Numbers of channels are clear in arrays that end with them.
    out = processor(images, input_data_format="channels_last", **options)
    if name == "Llama4ImageProcessor":  # of tiles in bfloat16, which NumPy does not have
        return dict(pixel_values=numpy.concatenate(
            [tiles.float().numpy() for tiles in out["pixel_values"]]))
    return {key: numpy.stack([numpy.asarray(each) for each in value])
            for key, value in out.items()}


def main():
    wrong, expected = [], []
    with_pillow.patch()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for seed in range(SEED, SEED + ROUNDS):
            for kind in PROCESSORS:
                folder = root / str(len(expected) + 1)
                folder.mkdir()
                expected.append((f"{seed} {kind}", write_case(
                    folder, kind, random.Random(f"{seed} {kind}"))))
        (root / "cases.json").write_text(json.dumps(
            dict(n=len(expected), pillow=int(PIL.__version__.split(".")[0]))))
        subprocess.run([PROGRAM, SOURCE / "tests" / "peers" / "image_processors.lua", root],
                       check=True)
        for i, (what, theirs) in enumerate(expected, 1):
            ours = load_file(root / str(i) / "found.safetensors")
            if set(ours) != set(theirs):
                wrong.append(f"{what}: has {sorted(ours)}, expected {sorted(theirs)}")
            for key in set(ours) & set(theirs):
                a, b = ours[key].astype(float), theirs[key].astype(float)
                if a.shape != b.shape:
                    wrong.append(f"{what}: {key} is {a.shape}, expected {b.shape}")
                elif abs(a - b).max() > 1e-6:
                    wrong.append(f"{what}: {key} differs by {abs(a - b).max()}")
    print("\n".join(wrong))
    print(f"{len(expected)} processors, {len(wrong)} differences")
    raise SystemExit(len(wrong) > 0)


main()
