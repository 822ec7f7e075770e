"""Our tokenizers beside `tokenizers` and `sentencepiece`: the same ids, offsets and decoded texts.

tokenizers_peer.py REDCO_LUA TESTS CORPUS [--seed N] [--count N]

The tokenizers of the cases encode the strings of the cases, the corpus by paragraphs (every fifth,
or all with REDCO_TEST_FULL=1) and 10 * count random texts: tokenizer_dump.lua writes a line for each
text, which is compared. Then `count` random tokenizers, each from its own seed, encode random texts
and pairs, truncated and not, and decode them whole and one by one: tokenizer_jobs.lua.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers.decoders import DecodeStream

from random_texts import random_text, valid_text
from random_tokenizers import RandomTokenizer

N_JOBS = 30


def all_texts(cases, corpus, seed, n_random):
    rng = random.Random(seed)
    texts = [case['text'].encode() for case in cases]
    paragraphs = Path(corpus).read_bytes().split(b'\n\n')
    texts += paragraphs if 'REDCO_TEST_FULL' in os.environ else paragraphs[::5]
    return texts + [random_text(rng) for _ in range(n_random)]


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

    # Over a paragraph the float32 sums may still round differently: equal scores are no difference.
    def is_tie(ids, expected):
        def total(pieces):
            return sum(processor.get_score(piece) for piece in pieces)
        return len(ids) == len(expected) and \
            abs(total(ids) - total(expected)) <= 1e-6 * abs(total(expected))
    return expect, is_tie


def random_tokenizers(options, folder):
    """The texts of the tokenizer.json and the jobs for each."""
    charsmap = None
    for path in Path(options.tests, 'cases').glob('t5*/tokenizer.json'):
        charsmap = (json.loads(path.read_text())['normalizer'] or {}).get('precompiled_charsmap')
    for i in range(options.count):
        made = RandomTokenizer(random.Random(f'{options.seed}.{i}'), valid_text, charsmap)
        text = made.make()
        path = Path(folder, f'tokenizer{i}.json')
        path.write_text(text)
        yield path, [made.job() for _ in range(N_JOBS)]


def expected_of_job(tokenizer, job):
    tokenizer.no_truncation()
    if 'max_length' in job:
        tokenizer.enable_truncation(job['max_length'], direction=job['truncation_side'],
                                    strategy=job.get('truncation', 'longest_first'),
                                    stride=job.get('stride', 0))
    full = tokenizer.encode(job['text'], job.get('text_pair'),
                            add_special_tokens=job['add_special_tokens'])
    stream, parts = DecodeStream(skip_special_tokens=job['skip_special_tokens']), []
    for number in full.ids:
        try:
            parts.append(stream.step(tokenizer, number) or '')
        except Exception:  # pylint: disable=broad-except
            parts = None
            break
    return dict(ids=full.ids, tokens=full.tokens, offsets=[list(pair) for pair in full.offsets],
                special=full.special_tokens_mask, types=full.type_ids, stream=parts,
                overflow=[[row.ids, [list(pair) for pair in row.offsets], row.type_ids]
                          for row in full.overflowing] if 'stride' in job else [],
                decoded=tokenizer.decode(full.ids, job['skip_special_tokens']))


def differences(job, got, expected):
    if 'error' in got:
        return [('error', got['error'], '')]
    # An empty list is an object in our JSON.
    lists = ('ids', 'tokens', 'offsets', 'special', 'types', 'overflow')
    told = [(key, got[key] or [], expected[key]) for key in lists
            if (got[key] or []) != expected[key]]
    if got['decoded'] != expected['decoded']:
        told.append(('decoded', got['decoded'], expected['decoded']))
    # U+FFFD of the text makes their stream wait, or fail; ours gives what decode gives.
    if '\ufffd' not in expected['decoded']:
        if ''.join(got['stream']) != expected['decoded']:
            told.append(('all of the stream', got['stream'], expected['decoded']))
        elif expected['stream'] is not None and ''.join(expected['stream']) == expected['decoded'] and \
                got['stream'][:-1] != expected['stream']:
            told.append(('stream', got['stream'], expected['stream']))
    return told


def compare_random(options, folder):
    tokenizers_and_jobs = list(random_tokenizers(options, folder))
    with open(f'{folder}/jobs', 'w', encoding='utf-8') as file:
        for path, jobs in tokenizers_and_jobs:
            for line in [{'tokenizer': str(path)}, *jobs]:
                file.write(json.dumps(line) + '\n')
    subprocess.run([options.program, f'{options.tests}/peers/tokenizer_jobs.lua', f'{folder}/jobs',
                    f'{folder}/out'], check=True)
    wrong, n_jobs = 0, 0
    with open(f'{folder}/out', encoding='utf-8') as file:
        for i, (path, jobs) in enumerate(tokenizers_and_jobs):
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
            n_wrong = 0
            for job in jobs:
                got = json.loads(next(file))
                n_jobs += 1
                try:
                    expected = expected_of_job(tokenizer, job)
                except BaseException as error:  # pylint: disable=broad-except
                    # What makes theirs panic has no right answer.
                    if 'error' not in got and isinstance(error, Exception):
                        print(f'tokenizer {i}: {job}: tokenizers raises {error}')
                        n_wrong += 1
                    continue
                for key, ours_is, theirs in differences(job, got, expected):
                    n_wrong += 1
                    if n_wrong <= 2 and wrong <= 20:
                        shown = {k: v for k, v in json.loads(path.read_text()).items() if k != 'model'}
                        print(f'tokenizer {i} {shown}\n  {key} of {job}\n  expected {theirs}\n'
                              f'  got      {ours_is}')
            wrong += n_wrong
    print(f'{len(tokenizers_and_jobs)} random tokenizers, seed {options.seed}: {n_jobs} texts, '
          f'{wrong} differences')
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('tests')
    parser.add_argument('corpus')
    parser.add_argument('--seed', default='0')
    parser.add_argument('--count', type=int, default=60)
    options = parser.parse_args()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    tests, program = Path(options.tests), options.program
    dump = str(tests / 'peers' / 'tokenizer_dump.lua')
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in sorted((tests / 'cases').glob('*/tokenizer_cases.json')):
            cases = json.loads(case.read_text())
            if 'cases_of' in cases:
                same = case.parent.parent / cases['cases_of'] / case.name
                cases = json.loads(same.read_text())
            cases = cases['cases']
            texts = all_texts(cases, options.corpus, options.seed, 10 * options.count)
            for file, expected in [('tokenizer.json', expected_of_tokenizers),
                                   ('spiece.model', expected_of_sentencepiece),
                                   ('tokenizer.model', expected_of_sentencepiece)]:
                path = case.parent / file
                if path.exists():
                    got = ours(program, dump, path, texts, folder)
                    wrong += compare(f'{case.parent.name}/{file}', texts, got, *expected(path))
        wrong += compare_random(options, folder)
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
