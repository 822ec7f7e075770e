"""Writes tests/lua/image_cases: small image files of every kind that is read, and what Pillow
reads from them: make_image_cases.py FOLDER. Needs pillow, numpy, safetensors."""
import struct
import sys
import zlib
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

rgba = Image.fromarray(np.dstack([rgb, rgb[..., 1:2]]))
palette.save(folder / 'palette.gif')
palette.save(folder / 'transparent.gif', transparency=3, interlace=1)
palette.save(folder / 'several.gif', save_all=True, append_images=[image.quantize(4)])
image.convert('L').save(folder / 'grey.gif')
image.save(folder / 'lossy.webp', quality=80)
image.save(folder / 'lossless.webp', lossless=True)
rgba.save(folder / 'rgba.webp', lossless=True, exact=True)
image.save(folder / 'several.webp', save_all=True, append_images=[image.rotate(180)], lossless=True)
image.save(folder / 'rgb.bmp')
rgba.save(folder / 'rgba.bmp')
palette.save(folder / 'palette.bmp')
image.convert('1').save(folder / 'bits.bmp')
image.save(folder / 'rgb.tiff', compression='tiff_lzw')
rgba.save(folder / 'rgba.tiff', compression='tiff_deflate')
image.convert('L').save(folder / 'grey.tiff')
palette.save(folder / 'palette.tiff')


def write_png(path, pixels, passes):
    """What Pillow does not write: 16 bits a colour, or interlaced (PNG specification, 8.2)."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    header = struct.pack('>IIBBBBB', width, height, pixels.itemsize * 8, 2, 0, 0, len(passes) > 1)
    rows = b''.join(b'\0' + row.tobytes() for x0, y0, dx, dy in passes
                    for row in pixels[y0::dy, x0::dx].astype(pixels.dtype.newbyteorder('>')))
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header)
                     + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
         (0, 1, 1, 2)]
write_png(folder / 'interlaced.png', rgb, adam7)
write_png(folder / 'deep.png', rgb.astype(np.uint16) * 256 + rng.integers(0, 256, rgb.shape,
                                                                          np.uint16), [(0, 0, 1, 1)])

save_file({path.name: np.ascontiguousarray(np.asarray(Image.open(path).convert('RGB'))
                                           .transpose(2, 0, 1))
           for path in sorted(folder.iterdir()) if path.suffix != '.safetensors'},
          folder / 'expected.safetensors')
