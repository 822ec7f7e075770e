#!/usr/bin/env python3
"""Writes tests/lua/rope_cases.json: what the rotary positions of transformers 4.57.6 are for
configurations of every kind. `length`: of a text; null where the kind does not look at it.

    python tests/tools/make_rope_cases.py tests/lua/rope_cases.json
"""
import json
import sys

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PAIRS = 8
LLAMA3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
LONG = dict(rope_type='longrope', short_factor=[1 + 0.1 * i for i in range(PAIRS)],
            long_factor=[1 + 0.7 * i for i in range(PAIRS)])

# (changes of the configuration, rope_scaling, lengths)
CASES = [
    ({}, None, [None]),
    (dict(rope_theta=500000.0), None, [None]),
    (dict(head_dim=None), None, [None]),
    ({}, dict(rope_type='default'), [None]),
    ({}, dict(rope_type='linear', factor=4.0), [None]),
    ({}, dict(type='linear', factor=2.5), [None]),
    ({}, dict(rope_type='dynamic', factor=2.0), [5, 256, 257, 700]),
    (dict(rope_theta=500000.0), LLAMA3, [None]),
    ({}, dict(LLAMA3, factor=32.0, original_max_position_embeddings=8192), [None]),
    ({}, dict(rope_type='yarn', factor=4.0), [None]),
    ({}, dict(rope_type='yarn', factor=1.0), [None]),
    ({}, dict(rope_type='yarn', factor=16.0, original_max_position_embeddings=64, beta_fast=16.0,
              beta_slow=2.0), [None]),
    ({}, dict(rope_type='yarn', factor=16.0, original_max_position_embeddings=64,
              truncate=False), [None]),
    ({}, dict(rope_type='yarn', factor=4.0, attention_factor=1.25), [None]),
    ({}, dict(rope_type='yarn', factor=40.0, mscale=0.7, mscale_all_dim=1.3,
              original_max_position_embeddings=16), [None]),
    ({}, dict(LONG, factor=4.0), [5, 256, 257]),
    ({}, dict(LONG, factor=0.5), [5]),
    ({}, dict(LONG, attention_factor=1.125, factor=4.0), [300]),
    (dict(original_max_position_embeddings=64), LONG, [64, 65]),
    # Each kind reads the length of the training texts in one place, and no kind in both.
    (dict(original_max_position_embeddings=64),
     dict(LONG, factor=3.0, original_max_position_embeddings=32), [33, 65]),
    ({}, dict(LONG, factor=3.0, original_max_position_embeddings=32), [33, 257]),
    (dict(original_max_position_embeddings=32), dict(rope_type='yarn', factor=8.0), [None]),
    (dict(original_max_position_embeddings=32),
     dict(rope_type='yarn', factor=8.0, original_max_position_embeddings=64), [None]),
    (dict(original_max_position_embeddings=32), LLAMA3, [None]),
    (dict(original_max_position_embeddings=32),
     dict(rope_type='dynamic', factor=2.0, original_max_position_embeddings=64), [100, 300]),
    (dict(original_max_position_embeddings=32), dict(rope_type='linear', factor=2.0), [None]),
    ({}, dict(rope_type='yarn', factor=4.0, mscale=0.7), [None]),
    ({}, dict(rope_type='yarn', factor=4.0, mscale=0.0, mscale_all_dim=1.3), [None]),
    ({}, dict(rope_type='yarn', factor=0.5), [None]),
    ({}, dict(rope_type='llama3', type='linear', factor=2.0), [None]),
]


def main():
    cases = []
    for changes, scaling, lengths in CASES:
        given = dict(hidden_size=64, num_attention_heads=4, head_dim=2 * PAIRS,
                     max_position_embeddings=256, rope_scaling=scaling)
        given.update(changes)
        given = {key: value for key, value in given.items() if value is not None}
        config = LlamaConfig(**json.loads(json.dumps(given)))
        kind = (config.rope_scaling or {}).get('rope_type', 'default')
        for length in lengths:
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
            case = dict(config=given, inverse_frequencies=frequencies.tolist(),
                        attention_factor=factor)
            if length is not None:
                case['length'] = length
            cases.append(case)
    with open(sys.argv[1], 'w', encoding='utf-8') as f:
        f.write('[\n' + ',\n'.join(json.dumps(case) for case in cases) + '\n]\n')


main()
