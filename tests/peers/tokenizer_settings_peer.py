"""Folders of tokenizers beside `transformers`: the settings of tokenizer_config.json, special_tokens_map.json
and added_tokens.json, and tokens that a script adds.

tokenizer_settings_peer.py REDCO_LUA TESTS [--seed N] [--count N]

Each of `count` folders has a random tokenizer.json and random settings. tokenizer_settings.lua opens it,
encodes and decodes texts, adds tokens, does so again, and saves the tokenizer into another folder, which
`transformers` must read as what itself has after the same calls.
"""
import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers
from transformers import AddedToken, AutoTokenizer

from random_texts import valid_text
from random_tokenizers import RandomTokenizer

ROLES = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask']
CLASSES = ['GPT2Tokenizer', 'GPT2TokenizerFast', 'BartTokenizer', 'RobertaTokenizerFast', 'BloomTokenizerFast',
           'CodeGenTokenizer', 'DebertaTokenizer', 'Qwen2Tokenizer', 'BertTokenizer', 'DistilBertTokenizerFast',
           'ElectraTokenizer', *['PreTrainedTokenizerFast'] * 4]
# These make their own template of texts, which later versions read from tokenizer.json.
WITHOUT_TEMPLATE = ['LlamaTokenizerFast', 'GemmaTokenizer', 'CohereTokenizerFast', 'GPTNeoXTokenizerFast']
# What AutoTokenizer takes where tokenizer_config.json names no class.
MODEL_TYPES = {'gpt2': 'GPT2Tokenizer', 'roberta': 'RobertaTokenizer', 'bert': 'BertTokenizer',
               'mistral': 'LlamaTokenizerFast', 'qwen3': 'Qwen2Tokenizer', 'gemma2': 'GemmaTokenizer',
               'gpt_neox': 'GPTNeoXTokenizerFast', 't5': 'T5Tokenizer', 'pegasus': 'PegasusTokenizer',
               'modernbert': 'PreTrainedTokenizerFast', 'whisper': 'WhisperTokenizer'}
NEW = ['<|pad|>', '<|im_start|>', '<|im_end|>', '<tool>', '[X]', 'zq', 'the', 'A b']
# What a script adds, each once.
ADDED = ['<|one|>', '<|two|>', '[three]', 'qz', '<four>', '[5]', '<|six|>', 'zx', '<|8|>', '<9>']


class Case:
    """A folder, and what to do with its tokenizer."""

    def __init__(self, rng, folder):
        self.rng, self.folder = rng, folder
        made = RandomTokenizer(rng, valid_text, None)
        folder.mkdir()
        (folder / 'tokenizer.json').write_text(made.make())
        # `tokenizers` finds a blank token again in what it has stripped.
        words = [token['content'] for token in made.file['added_tokens'] if token['content'].strip()] + NEW
        self.words = words
        # How a token matches is the same wherever it is described.
        keys = ['lstrip', 'rstrip', 'single_word', 'normalized', 'special']
        self.described = {token['content']: {key: token[key] for key in keys}
                          for token in made.file['added_tokens']}
        vocab = made.file['model']['vocab']
        known = [token for token in vocab if isinstance(token, str)] or [token[0] for token in vocab]
        self.known = rng.sample([token for token in known if token.strip()], 5)
        self.config = self.settings()
        (folder / 'tokenizer_config.json').write_text(json.dumps(self.config))
        if rng.random() < 0.2:
            (folder / 'special_tokens_map.json').write_text(json.dumps(self.roles()))
        elif rng.random() < 0.2:
            first = len(vocab) + len(made.file['added_tokens'])
            # It cannot describe them: one of tokenizer.json would be of two kinds.
            (folder / 'added_tokens.json').write_text(json.dumps(
                {token: first + i for i, token in enumerate(rng.sample(NEW, 2)) if token not in self.described}))
        self.words = self.words + ADDED
        self.texts = [self.text() for _ in range(8)]
        added = rng.sample(ADDED, 8)
        self.first, self.second = self.added(added[:3], 0.5), self.special(added[3:])

    def token(self, described):
        content = self.rng.choice(self.words) if self.rng.random() < 0.8 else self.rng.choice(self.known)
        if not described:
            return content
        chance = self.rng.random
        how = {'lstrip': chance() < 0.3, 'rstrip': chance() < 0.3, 'single_word': chance() < 0.3,
               'normalized': chance() < 0.4, 'special': chance() < 0.5}
        return {'content': content, **self.described.setdefault(content, how)}

    def role_token(self):
        described = self.rng.random() < 0.3
        token = self.token(described)
        return {'__type': 'AddedToken', **token} if described else token

    def roles(self):
        roles = {f'{role}_token': self.role_token() for role in ROLES if self.rng.random() < 0.4}
        if self.rng.random() < 0.4:
            roles['additional_special_tokens'] = [self.role_token() for _ in range(3)]
        for value in roles.values():
            if isinstance(value, dict):
                value.pop('__type')
        return json.loads(json.dumps(roles))

    def settings(self):
        rng = self.rng
        name = rng.choice(CLASSES if rng.random() < 0.7 else WITHOUT_TEMPLATE)
        config = {'tokenizer_class': name}
        if rng.random() < 0.3:
            model_type = rng.choice([*MODEL_TYPES])
            name = MODEL_TYPES[model_type]
            config = {}
            (self.folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
        self.has_template = name not in WITHOUT_TEMPLATE
        if rng.random() < 0.5 and not name.startswith('Llama'):
            config['add_prefix_space'] = rng.random() < 0.5
        for role in ROLES:
            if rng.random() < 0.4:
                config[f'{role}_token'] = self.role_token() if rng.random() < 0.9 else None
        if rng.random() < 0.4:
            config['additional_special_tokens'] = [self.role_token() for _ in range(3)]
        if rng.random() < 0.4:
            at = rng.randrange(700)
            listed = {}
            for _ in range(rng.randrange(4)):
                at += rng.choice([1, 1, 30])
                listed[str(at)] = token = self.token(True)
                # The class reads these first, so that they say how a token of tokenizer.json matches.
                if rng.random() < 0.3:
                    for key in ['lstrip', 'rstrip', 'single_word']:
                        token[key] = rng.random() < 0.3
                    self.described[token['content']] = {key: token[key] for key in self.described[token['content']]}
            config['added_tokens_decoder'] = listed
        if rng.random() < 0.2:
            config['split_special_tokens'] = True
        if 'Bert' in name or name.startswith('Electra'):
            for key in ['do_lower_case', 'strip_accents', 'tokenize_chinese_chars']:
                if rng.random() < 0.4:
                    config[key] = rng.random() < 0.5
        return config

    def text(self):
        text = valid_text(self.rng)
        for _ in range(self.rng.randrange(4)):
            at = self.rng.randrange(len(text) + 1)
            text = text[:at] + self.rng.choice(['', ' ']) + self.rng.choice(self.words + self.known) + text[at:]
        return text

    def added(self, contents, described):
        tokens = []
        for content in contents:
            self.words = self.known = [content]
            tokens.append(self.token(self.rng.random() < described))
        return tokens

    def special(self, contents):
        roles = self.rng.sample(ROLES, 3)
        tokens = dict(zip([f'{role}_token' for role in roles], self.added(contents[:3], 0.3)))
        if self.rng.random() < 0.5:
            tokens['additional_special_tokens'] = self.added(contents[3:5], 0)
        # The order in which ours gives ids.
        return {key: tokens[key] for key in [*[f'{role}_token' for role in ROLES],
                                             'additional_special_tokens'] if key in tokens}

    def line(self):
        return {'folder': str(self.folder), 'texts': self.texts, 'added': self.first, 'special': self.second}


def as_token(token):
    return AddedToken(**token) if isinstance(token, dict) else token


def state_of(tokenizer, texts):
    rows = []
    for text in texts:
        ids = tokenizer(text)['input_ids']
        plain = tokenizer(text, add_special_tokens=False)['input_ids']
        rows.append({'ids': ids, 'plain': plain, 'decoded': tokenizer.decode(plain),
                     'skipped': tokenizer.decode(plain, skip_special_tokens=True)})
    return {'rows': rows, 'size': len(tokenizer),
            'roles': {role: getattr(tokenizer, f'{role}_token_id') for role in ROLES
                      if getattr(tokenizer, f'{role}_token') is not None},
            'more': list(dict.fromkeys(tokenizer.additional_special_tokens))}


def empties_token(tokenizer):
    """Whether the normalizer leaves nothing of an added token, which is then found everywhere, or blanks only,
    which `tokenizers` can find twice."""
    step = tokenizer.backend_tokenizer.normalizer
    return step is not None and any(token.normalized and not step.normalize_str(token.content).strip()
                                    for token in tokenizer.added_tokens_decoder.values())


def opened(case, name):
    """The tokenizer that was saved beside the case under this name; its model's configuration stays there."""
    if (case.folder / 'config.json').exists():
        shutil.copy(case.folder / 'config.json', f'{case.folder}.{name}')
    return AutoTokenizer.from_pretrained(f'{case.folder}.{name}')


def again_of(tokenizer, case):
    """What `transformers` reads of what it saves."""
    tokenizer.save_pretrained(f'{case.folder}.theirs')
    return state_of(opened(case, 'theirs'), case.texts)


def differences(got, expected, has_template, is_clear):
    """`is_clear` tells of each text whether `transformers` has the same tokens after it has saved them, and so
    whether there is a right answer."""
    told = []
    for key in ['size', 'more']:
        if (got[key] or []) != (expected[key] or []):
            told.append((key, got[key], expected[key]))
    # A role whose token is unknown has the number of the unknown token there.
    if (got['roles'] or {}) != expected['roles']:
        told.append(('roles', got['roles'], expected['roles']))
    for row, right in itertools.compress(zip(got['rows'], expected['rows'], strict=True), is_clear):
        for key in ['ids', 'plain', 'decoded', 'skipped']:
            if key == 'ids' and not has_template:
                continue
            if (row[key] or type(right[key])()) != right[key]:
                told.append((key, row[key], right[key]))
    return told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('tests')
    parser.add_argument('--seed', default='0')
    parser.add_argument('--count', type=int, default=60)
    options = parser.parse_args()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    os.environ['RUST_BACKTRACE'] = '0'
    transformers.logging.set_verbosity_error()
    n_wrong = n_read = n_clear = n_texts = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(random.Random(f'{options.seed}.{i}'), Path(folder, f'case{i}'))
                 for i in range(options.count)]
        Path(folder, 'jobs').write_text(''.join(json.dumps(case.line()) + '\n' for case in cases))
        subprocess.run([options.program, f'{options.tests}/peers/tokenizer_settings.lua', f'{folder}/jobs',
                        f'{folder}/out'], check=True)
        for i, (case, line) in enumerate(zip(cases, Path(folder, 'out').read_text().split('\n')[:-1], strict=True)):
            got, has_template = json.loads(line), case.has_template
            try:
                tokenizer = AutoTokenizer.from_pretrained(str(case.folder))
                states, again = [state_of(tokenizer, case.texts)], [again_of(tokenizer, case)]
                counts = [tokenizer.add_tokens([as_token(token) for token in case.first])]
                counts.append(tokenizer.add_special_tokens({
                    key: [as_token(each) for each in value] if isinstance(value, list) else as_token(value)
                    for key, value in case.second.items()}))
                states.append(state_of(tokenizer, case.texts))
                again.append(again_of(tokenizer, case))
            except BaseException as error:  # pylint: disable=broad-except
                # What it cannot open has no right answer.
                print(f'case {i}: transformers: {type(error).__name__}: {str(error)[:100]}')
                continue
            if empties_token(tokenizer):
                continue
            n_read += 1
            is_clear = [all(one['rows'][i] == other['rows'][i] for one, other in zip(states, again, strict=True))
                        for i in range(len(case.texts))]
            n_clear, n_texts = n_clear + sum(is_clear), n_texts + len(is_clear)
            told = []
            if 'error' in got:
                told = [('error', got['error'], '')]
            else:
                for name, ours, right in zip(['opened', 'added'], got['states'], states, strict=True):
                    told += [(f'{name}: {key}', *values)
                             for key, *values in differences(ours, right, has_template, is_clear)]
                if got['counts'] != counts:
                    told.append(('counts', got['counts'], counts))
                told += [(f'saved: {key}', *values)
                         for key, *values in differences(state_of(opened(case, 'saved'), case.texts), again[1],
                                                         has_template, is_clear)]
            for key, ours, right in told[:2]:
                print(f'case {i} {case.config}\n  {case.line()}\n  {key}: expected {right}\n  got      {ours}')
            n_wrong += len(told) > 0
    print(f'{len(cases)} folders, seed {options.seed}: {n_read} read by both, {n_wrong} differ; '
          f'{n_clear} of {n_texts} texts compared')
    sys.exit(1 if n_wrong or n_read * 3 < len(cases) * 2 or n_clear * 4 < n_texts * 3 else 0)


if __name__ == '__main__':
    main()
