"""Brings reference cases into tests/cases: import_cases.py FOLDER_OF_CASES tests/cases

The folder is what `make_cases.py` wrote: checkpoints of random weights and the numbers that
`transformers` gives on them. Copied is what the tests read, without what weighs most: of gradients
only the norms, which are in expected.json, and of logits the last row of the batch. The tests read
the whole folder as well where REDCO_CASES names it.
"""
import json
import re
import shutil
import struct
import sys
from pathlib import Path

MODELS = ['gpt2', 'gptj', 'opt', 'opt_350m_style', 'llama', 'llama3', 't5_relu_tied',
          't5_gated_untied', 'bart', 'vit_gpt2', 'qwen2', 'qwen3', 'gemma2', 'gemma3', 'phi3',
          'qwen3_moe', 'deepseek_v3', 'whisper']
# Of these the name here is another.
ENCODERS = {'bert': 'bert', 'bert/sequence_classification': 'bert_sequence_classification',
            'roberta/regression': 'roberta_regression', 'modernbert': 'modernbert'}
LORA = ['lora_gpt2', 'lora_llama']
FILES = ['config.json', 'expected.json', 'generation_config.json', 'model.safetensors',
         'tokenizer.json', 'tokenizer_config.json', 'tokenizer_cases.json', 'special_tokens_map.json',
         'spiece.model', 'tokenizer.model', 'vocab.txt', 'preprocessor_config.json', 'adapter_config.json',
         'adapter_model.safetensors', 'metrics.json']
# The same tokenizer as another case's.
NO_TOKENIZER = ['opt_350m_style', 'vit_gpt2', 'qwen2', 'qwen3', 'gemma2', 'gemma3', 'phi3',
                'qwen3_moe', 'deepseek_v3', 'modernbert']
NO_SENTENCEPIECE = ['t5_gated_untied']
# Their tokenizer_cases.json names a folder with the same cases.
SAME_TOKENIZER_CASES = ['gptj', 't5_relu_tied']


def is_kept(case, name):
    if name.startswith('grad.'):
        return case in LORA
    return not re.match(r'adamw\.|merged\.|fwd\.router|(fwd(_left)?\.)(\w+_)?hidden\.', name)


def copy_arrays(case, source, target):
    data = source.read_bytes()
    size, = struct.unpack('<Q', data[:8])
    header, kept, chunks, end = json.loads(data[8:8 + size]), {}, [], 0
    for name, info in header.items():
        if name == '__metadata__' or not is_kept(case, name):
            continue
        begin, stop = info['data_offsets']
        if name.endswith('.logits'):
            begin += (stop - begin) // info['shape'][0] * (info['shape'][0] - 1)
            info['shape'][0] = 1
        chunks.append(data[8 + size + begin:8 + size + stop])
        kept[name] = dict(info, data_offsets=[end, end + stop - begin])
        end += stop - begin
    text = json.dumps(kept, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    target.write_bytes(struct.pack('<Q', len(text)) + text + b''.join(chunks))


def main(source, target):
    for case in MODELS + list(ENCODERS) + LORA + ['metrics']:
        if not (source / case).exists():  # of another set
            continue
        folder = target / ENCODERS.get(case, case)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            is_tokenizer = 'token' in name or name in ('spiece.model', 'vocab.txt')
            if (is_tokenizer and case in NO_TOKENIZER) or \
                    (name == 'spiece.model' and case in NO_SENTENCEPIECE) or \
                    (name == 'tokenizer_cases.json' and case in SAME_TOKENIZER_CASES):
                continue
            if (source / case / name).exists():
                shutil.copyfile(source / case / name, folder / name)
        expected = source / case / 'expected.safetensors'
        if expected.exists():
            copy_arrays(case, expected, folder / 'expected.safetensors')


main(Path(sys.argv[1]), Path(sys.argv[2]))
