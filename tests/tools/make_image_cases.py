"""Writes tests/lua/image_cases: small PNG and JPEG files of every kind that is read, and what Pillow
reads from them: make_image_cases.py FOLDER. Needs pillow==12.0.0, numpy, safetensors."""
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(0)
y, x = np.mgrid[0:13, 0:10]
rgb = np.stack([x * 25, y * 19, (x * y * 7) % 256], -1).astype(np.uint8)
rgb[3:6] = rng.integers(0, 256, (3, 10, 3))
image = Image.fromarray(rgb)
palette = image.quantize(16)

image.save(folder / 'rgb.png', optimize=True)
image.convert('L').save(folder / 'grey.png')
image.convert('1').save(folder / 'bits.png')
palette.save(folder / 'palette.png')
palette.save(folder / 'palette_transparent.png', transparency=3)
Image.fromarray(np.dstack([rgb, rgb[..., :1]])).save(folder / 'rgba.png')
image.convert('LA').save(folder / 'grey_alpha.png')
image.save(folder / 'colour.jpg', quality=80)
image.save(folder / 'full_colour.jpg', quality=95, subsampling=0)
image.save(folder / 'progressive.jpg', quality=70, progressive=True)
image.convert('L').save(folder / 'grey.jpg')
image.convert('CMYK').save(folder / 'cmyk.jpg')

save_file({path.name: np.ascontiguousarray(np.asarray(Image.open(path).convert('RGB'))
                                           .transpose(2, 0, 1))
           for path in sorted(folder.glob('*.*g')) if path.name != 'cmyk.jpg'},
          folder / 'expected.safetensors')
