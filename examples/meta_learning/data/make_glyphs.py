#!/usr/bin/env python3
"""Draws glyphs.png: a row for each character, a column for each font, 20 x 20 pixels each.

    apt-get install fonts-comfortaa fonts-crosextra-carlito fonts-dejavu fonts-ebgaramond \
        fonts-firacode fonts-hack fonts-inter fonts-jetbrains-mono fonts-noto-core \
        fonts-noto-mono fonts-oldstandard fonts-play fonts-stix
    pip install pillow
    python make_glyphs.py --fonts /usr/share/fonts --out glyphs.png

Characters that look alike in some font, as O and 0 do, are there once.
"""
import argparse
import pathlib

from PIL import Image, ImageDraw, ImageFont

SIZE, MARGIN, LARGE = 20, 1, 160

FONTS = '''DejaVuSans DejaVuSerif-Bold DejaVuSansMono-Oblique EBGaramond12-Regular EBGaramond12-Italic
    Inter-Regular Comfortaa-Regular Carlito-BoldItalic FiraCode-Light OldStandard-Italic NotoSerifDisplay-Italic
    Hack-Regular JetBrainsMono-ExtraBold NotoSerif-Regular NotoSans-Italic NotoSansMono-Regular
    STIXGeneral-Regular Inter-BlackItalic NotoSansDisplay-Italic Play-Bold'''.split()

CHARACTERS = ('ABCDEFGHIJKLMNOPQRSTUVWXYZ' 'abdefghjmnqrty' '23456789' 'ΓΔΘΛΞΠΣΦΨΩ' 'αβγδεζθλμξπστφψω'
              'БДЖЗИЛУЦЧШЩЫЭЮЯ' 'ÀÄÂÃÅÆÇÉÊËÌÏÑÓÔÖØÙÜÛÝÞßàâäæçèéðñøûþ' 'ĀĂĆČĐĒĘĚĞĢİĶĽŁŃŇŐŒŔŘŚŞŠŤŪŮŲŹŽ'
              'ЂЉЊЋЏЄЇЙЪ' '!?&@#%$€£¥§{}()*+=/<>^')


def draw(character, font):
    """One character, scaled to fill its cell; dark on white."""
    page = Image.new('L', (2 * LARGE, 2 * LARGE), 255)
    ImageDraw.Draw(page).text((LARGE // 2, LARGE // 4), character, fill=0, font=font)
    glyph = page.crop(page.point(lambda value: 255 - value).getbbox())
    room = SIZE - 2 * MARGIN
    scale = room / max(glyph.size)
    glyph = glyph.resize([max(1, round(side * scale)) for side in glyph.size], Image.LANCZOS)
    cell = Image.new('L', (SIZE, SIZE), 255)
    cell.paste(glyph, ((SIZE - glyph.width) // 2, (SIZE - glyph.height) // 2))
    return cell.point(lambda value: value // 17 * 17)  # 16 shades: a smaller file


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--fonts', default='/usr/share/fonts')
    parser.add_argument('--out', default='glyphs.png')
    options = parser.parse_args()
    files = {path.stem: path for path in pathlib.Path(options.fonts).rglob('*.[ot]tf')}
    sheet = Image.new('L', (SIZE * len(FONTS), SIZE * len(CHARACTERS)), 255)
    for column, name in enumerate(FONTS):
        font = ImageFont.truetype(str(files[name]), LARGE)
        for row, character in enumerate(CHARACTERS):
            sheet.paste(draw(character, font), (SIZE * column, SIZE * row))
    sheet.save(options.out, optimize=True)
    print(f'{len(CHARACTERS)} characters in {len(FONTS)} fonts')


if __name__ == '__main__':
    main()
