"""Makes emoji.png and captions.txt from two Debian packages: make_emoji.py FONT EMOJI_TEST

  apt-get install fonts-noto-color-emoji unicode-data python3-pil
  python3 make_emoji.py /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf \\
    /usr/share/unicode/emoji/emoji-test.txt
"""
import re
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE, COLUMNS = 32, 37
FOLDER = Path(__file__).parent


def single_emoji(path):
    """(character, name) of the emoji of one character, which may have a variation selector."""
    for line in open(path, encoding='utf-8'):
        match = re.match(r'([0-9A-F]+)(?: FE0F)? *; fully-qualified +# \S+ E[\d.]+ (.*)', line)
        if match:
            yield chr(int(match[1], 16)), match[2]


def draw(character, font):
    """The emoji on white, or nothing where the font has none. Its bitmaps are 136 x 128."""
    image = Image.new('RGB', (136, 128), 'white')
    ImageDraw.Draw(image).text((0, 0), character, font=font, embedded_color=True)
    if image.getextrema() != ((255, 255),) * 3:
        return image.resize((SIZE, SIZE), Image.BOX)


def main(font, names):
    font = ImageFont.truetype(font, 109)
    drawn = [(draw(character, font), name) for character, name in single_emoji(names)]
    drawn = [(tile, name) for tile, name in drawn if tile]
    rows = -(-len(drawn) // COLUMNS)
    sheet = Image.new('RGB', (COLUMNS * SIZE, rows * SIZE), 'white')
    for i, (tile, _) in enumerate(drawn):
        sheet.paste(tile, (i % COLUMNS * SIZE, i // COLUMNS * SIZE))
    # 256 colours take a third of the space of all 180,000.
    sheet.quantize(256, dither=Image.Dither.NONE).save(FOLDER / 'emoji.png', optimize=True)
    (FOLDER / 'captions.txt').write_text(''.join(name + '\n' for _, name in drawn))


main(*sys.argv[1:])
