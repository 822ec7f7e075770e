"""Our tokenizers beside `tokenizers` and `sentencepiece`: the same ids, offsets and decoded texts.

tokenizers_peer.py REDCO_LUA TESTS CORPUS [SEED]

The texts are the strings of the cases, the corpus by paragraphs and random ones. tokenizer_dump.lua
encodes them with our tokenizer and writes what it got, a line for each text; lines are compared.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
import tokenizers

N_RANDOM = 10_000
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


def all_texts(cases, corpus, seed):
    rng = random.Random(seed)
    texts = [case['text'].encode() for case in cases]
    texts += Path(corpus).read_bytes().split(b'\n\n')
    return texts + [random_text(rng) for _ in range(N_RANDOM)]


def ours(program, dump, path, texts, folder):
    """A list of (ids with special tokens, ids, offsets, decoded) for each text."""
    packed = Path(folder) / 'texts'
    packed.write_bytes(b''.join(struct.pack('<I', len(t)) + t for t in texts))
    out = Path(folder) / 'out.json'
    subprocess.run([program, dump, str(path), str(packed), str(out)], check=True)
    with open(out, encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def compare(name, texts, got, expect, is_tie):
    wrong = 0
    for text, row in zip(texts, got, strict=True):
        for key, value in expect(text.decode('utf-8', 'replace')).items():
            if row[key] != value and not (key == 'ids' and is_tie(row[key], value)):
                wrong += 1
                if wrong <= 5:
                    print(f'{name}: {key} of {text!r}\n  expected {value}\n  got      {row[key]}')
    print(f'{name}: {len(texts)} texts, {wrong} differences')
    return wrong


def expected_of_tokenizers(path):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def expect(text):
        full = tokenizer.encode(text)
        return dict(ids=full.ids, offsets=[list(pair) for pair in full.offsets],
                    decoded=tokenizer.decode(full.ids, skip_special_tokens=False))
    return expect, lambda ids, expected: False


def expected_of_sentencepiece(path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def expect(text):
        # Its interface for Python cuts texts at a zero.
        if '\0' in text:
            return {}
        ids = processor.encode(text)
        return dict(ids=ids, decoded=processor.decode(ids))

    # Of ways with the same score rounding decides, and it sums in single precision.
    def is_tie(ids, expected):
        def total(pieces):
            return sum(processor.get_score(piece) for piece in pieces)
        return len(ids) == len(expected) and \
                abs(total(ids) - total(expected)) <= 1e-6 * abs(total(expected))
    return expect, is_tie


def main(program, tests, corpus, seed='0'):
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    tests = Path(tests)
    dump = str(tests / 'peers' / 'tokenizer_dump.lua')
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in sorted((tests / 'cases').glob('*/tokenizer_cases.json')):
            cases = json.loads(case.read_text())['cases']
            texts = all_texts(cases, corpus, int(seed))
            for file, expected in [('tokenizer.json', expected_of_tokenizers),
                                   ('spiece.model', expected_of_sentencepiece),
                                   ('tokenizer.model', expected_of_sentencepiece)]:
                path = case.parent / file
                if path.exists():
                    got = ours(program, dump, path, texts, folder)
                    wrong += compare(f'{case.parent.name}/{file}', texts, got, *expected(path))
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main(*sys.argv[1:])
