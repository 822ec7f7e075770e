"""The peer of tokenizers.lua: `tokenizers` on one thread. peer_tokenizers.py CORPUS TOKENIZER_JSON...

Reads a line for each run, encodes the corpus by paragraphs once with the tokenizer of that number
and answers with the seconds and the number of tokens.
"""
import os
import sys
import time

os.environ['TOKENIZERS_PARALLELISM'] = 'false'
os.environ['RAYON_NUM_THREADS'] = '1'

from tokenizers import Tokenizer  # noqa: E402

texts = open(sys.argv[1], encoding='utf-8').read().split('\n\n')
loaded = [Tokenizer.from_file(path) for path in sys.argv[2:]]
for line in sys.stdin:
    tokenizer = loaded[int(line)]
    start = time.perf_counter()
    count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts))
    print(f'{time.perf_counter() - start:.6f} {count}', flush=True)
