"""What Pillow reads from files and how it resizes: images.py FOLDER"""
import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

FOLDER = Path(sys.argv[1])
SHEET = Path(__file__).resolve().parents[2] / 'examples/image_to_text/data/emoji.png'
rng = random.Random(3)
arrays = {}


def keep(name, image):
    arrays[name] = np.ascontiguousarray(np.asarray(image.convert('RGB')).transpose(2, 0, 1))


def some_image(width, height):
    """A part of the sheet of emoji, or noise."""
    if rng.random() < 0.3:
        return Image.frombytes('RGB', (width, height), rng.randbytes(width * height * 3))
    sheet = Image.open(SHEET).convert('RGB')
    x, y = rng.randrange(sheet.width - width), rng.randrange(sheet.height - height)
    return sheet.crop((x, y, x + width, y + height))


MODES = {'gif': ['P', 'L', '1'], 'webp': ['RGB', 'RGBA'], 'bmp': ['RGB', 'RGBA', 'L', 'P', '1'],
         'tiff': ['RGB', 'RGBA', 'L', 'P', '1', 'LA']}


def files():
    for i in range(80):
        image, options = some_image(rng.randint(1, 90), rng.randint(1, 90)), {}
        if i % 4 == 3:
            kind = rng.choice(['gif', 'webp', 'bmp', 'tiff'])
            image = image.convert(rng.choice(MODES[kind]))
            options = {'gif': {'interlace': rng.randrange(2)},
                       'webp': {'lossless': rng.random() < 0.5, 'quality': rng.randint(5, 100)},
                       'tiff': {'compression': rng.choice([None, 'tiff_lzw', 'tiff_deflate',
                                                           'packbits'])}}.get(kind, {})
        elif i % 2:
            kind = 'jpg'
            options = {'quality': rng.randint(5, 100), 'subsampling': rng.randrange(3),
                       'progressive': rng.random() < 0.3, 'optimize': rng.random() < 0.3}
            image = image.convert(rng.choice(['RGB', 'RGB', 'L', 'CMYK']))
        else:
            kind = 'png'
            image = image.convert(rng.choice(['RGB', 'L', '1', 'P', 'LA', 'RGBA']))
            image.putalpha(rng.randrange(256)) if image.mode in ('LA', 'RGBA') else None
        name = f'file{i}.{kind}'
        image.save(FOLDER / name, **options)
        keep(name, Image.open(FOLDER / name))


def resizes():
    sizes = [(1, 1), (2, 3), (7, 5), (32, 32), (33, 31), (64, 50), (150, 90), (224, 224)]
    sizes += [(rng.randint(1, 200), rng.randint(1, 200)) for _ in range(8)]
    for i, (width, height) in enumerate(sizes):
        image = some_image(width, height)
        keep(f'from.{i}', image)
        for to in [(1, 1), (32, 32), (50, 37), (224, 224), (rng.randint(1, 90), height)]:
            for resample in Image.LANCZOS, Image.BILINEAR, Image.BICUBIC:
                keep(f'to.{i}.{int(resample)}.{to[0]}.{to[1]}', image.resize(to, resample))


files()
resizes()
save_file(arrays, FOLDER / 'arrays.safetensors')
