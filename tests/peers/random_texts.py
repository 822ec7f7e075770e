"""Random texts for tokenizers: words, characters of all planes, and bytes that are not UTF-8."""
import unicodedata

WORDS = ["the", "don't", "we'll", "I'M", "  ", " ", "\n", "\r\n", "\t", "é", "e\u0301", "한국어",
         "日本語", "ไทย", "हिन्दी", "👩\u200d👩\u200d👧", "🇪🇸", "👍🏽", "3.14", "12345", "--", "...",
         "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>", "<extra_id_3>", "▁", "\u00a0",
         "\u200b", "\ufeff", "\u180e", "ﬁ", "Ⅷ", "½", "ｆｕｌｌ", "\x00", "\x1f", "\x7f", "\x85",
         "{\"a\": 1}", "http://x.y/z?q=1", "İ", "ß", "a" * 70]


def is_known(code):
    """Whether the Unicode versions of all libraries agree on the character: those that Python 3.11
    does not know may have been given to a script since."""
    category = unicodedata.category(chr(code))
    return category != 'Cs' and (category != 'Cn' or 0x40000 <= code < 0xE0000)


def random_character(rng):
    while True:
        kind = rng.random()
        if kind < 0.4:
            code = rng.randrange(0x80)
        elif kind < 0.7:
            code = rng.randrange(0x800)
        elif kind < 0.9:
            code = rng.randrange(0x10000)
        else:
            code = rng.randrange(0x110000)
        if is_known(code):
            return chr(code)


def random_text(rng):
    """Bytes: words, characters of all planes, and in one of four texts some that are not UTF-8."""
    parts = []
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.5:
            parts.append(rng.choice(WORDS).encode())
        else:
            parts.append(''.join(random_character(rng) for _ in range(rng.randrange(1, 6))).encode())
    text = b''.join(part + (b' ' if rng.random() < 0.3 else b'') for part in parts)
    if rng.random() < 0.25:
        broken = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(broken) + 1)
            if rng.random() < 0.5:
                broken[at:at + 1] = b''
            else:
                broken[at:at] = bytes([rng.randrange(0x80, 0x100)])
        text = bytes(broken)
    return text


def is_stable(character):
    """Whether the character is what it was in Unicode 3.2: some libraries' tables are that old."""
    old = unicodedata.ucd_3_2_0.category(character)
    return old != 'Cn' and old == unicodedata.category(character)


def valid_text(rng):
    text = random_text(rng).decode('utf-8', 'replace')
    return ''.join(c for c in text if is_stable(c) or any(c in word for word in WORDS))
