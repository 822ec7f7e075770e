"""Makes corpus.txt from Debian's package sword-text-web: the first 2.5 MB of the World English
Bible, from Genesis on, in paragraphs.

    dpkg-deb -x sword-text-web_*.deb web
    python3 make_corpus.py web/usr/share/sword/modules/texts/ztext/engWEB2015eb corpus.txt

A testament is three files: compressed blocks (.bzz), where each block lies (.bzs: offset, size,
size of the text), and where each verse lies (.bzv: block, offset, size); numbers are little-endian.
"""
import html
import re
import struct
import sys
import zlib
from pathlib import Path

folder, target = Path(sys.argv[1]), Path(sys.argv[2])


def verses(testament):
    places, index, blocks = (
        (folder / f"{testament}.bz{kind}").read_bytes() for kind in "svz"
    )
    texts = [
        zlib.decompress(blocks[offset : offset + size]) if size else b""
        for offset, size, _ in struct.iter_unpack("<III", places)
    ]
    for block, offset, size in struct.iter_unpack("<IIH", index):
        yield texts[block][offset : offset + size].decode() if size else ""


def plain(verse):
    verse = re.sub(r"<(note|title)\b.*?</\1>", "", verse, flags=re.DOTALL)
    verse = html.unescape(re.sub(r"<[^>]*>", " ", verse)).replace("\u00b6", " ")
    verse = re.sub(r"\s+", " ", verse).strip()
    return re.sub(r" ([,.;:?!’”])|([‘“(]) ", r"\1\2", verse)


# A paragraph has up to 600 characters; an empty verse is the start of a chapter.
paragraphs = [""]
for testament in ("ot", "nt"):
    for verse in map(plain, verses(testament)):
        if not verse or len(paragraphs[-1]) + len(verse) > 600:
            paragraphs.append("")
        paragraphs[-1] = f"{paragraphs[-1]} {verse}".strip()
text = "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"
text = text[text.index("In the beginning, God") :]
text = text[: text.index("\n\n", 2_500_000) + 1]
for old, new in zip("‘’“”—", ["'", "'", '"', '"', " - "]):
    text = text.replace(old, new)
target.write_text(text, encoding="utf-8")
