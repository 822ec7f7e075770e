"""Writes lua/redco/plot/font.lua, the letters of pictures: make_font.py TTF.

It needs Pillow. The letters are DejaVu Sans in 22 pixels, from Debian's fonts-dejavu-core:
python3 tests/tools/make_font.py /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
"""

import sys
import textwrap

from PIL import Image, ImageDraw, ImageFont

SIZE = 22
CHARACTERS = [chr(code) for code in range(33, 127)]
HEAD = f"""\
--- The printable ASCII characters of DejaVu Sans, {SIZE} pixels high, for PNG files. Made by
--- tests/tools/make_font.py. DejaVu Sans is a free font: Copyright (c) 2003 by Bitstream, Inc.
--- Bitstream Vera is a trademark of Bitstream, Inc. DejaVu changes are in the public domain.
---
--- A glyph is its character, its advance, the pixels from the pen to its left edge and from the
--- baseline up to its top edge, its width, and its pixels in rows from the top: the ink, 0 to f.
local glyphs = [["""
TAIL = """]]

local font = { [" "] = { advance = %d, left = 0, top = 0, width = 0, pixels = "" } }

for character, advance, left, top, width, pixels
  in glyphs:gmatch "(%%S) (%%d+) (%%-?%%d+) (%%-?%%d+) (%%d+)([%%x%%s]+)\\n;" do
  font[character] = { advance = tonumber(advance), left = tonumber(left), top = tonumber(top),
    width = tonumber(width), pixels = pixels:gsub("%%s", "") }
end

return font
"""


def glyph(font, character):
    left, above, right, below = font.getbbox(character, anchor="ls")
    image = Image.new("L", (right - left, below - above))
    ImageDraw.Draw(image).text((-left, -above), character, 255, font, anchor="ls")
    pixels = "".join(f"{round(value / 17):x}" for value in image.tobytes())
    lines = textwrap.wrap(pixels, 96)
    head = f"{character} {round(font.getlength(character))} {left} {-above} {right - left}"
    return "\n".join([head, *lines, ";"])


def main():
    font = ImageFont.truetype(sys.argv[1], SIZE)
    glyphs = "\n".join(glyph(font, character) for character in CHARACTERS)
    with open("lua/redco/plot/font.lua", "w") as file:
        file.write(f"{HEAD}\n{glyphs}\n{TAIL % round(font.getlength(' '))}")


main()
