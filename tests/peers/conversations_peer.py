"""Tokens and labels of conversations beside transformers', with the chat templates of public models.

conversations_peer.py REDCO_LUA TESTS CORPUS [--seed N] [--count N]

The package trl has templates of public models, most of them in two versions: as published, and with
{% generation %} marks. For each template and `count` random conversations, with a byte-level and a
SentencePiece-like tokenizer:
- with marks, the tokens and the mask equal those of return_assistant_tokens_mask,
- without, the mask equals that of prefixes, computed here; where these are none, it is refused,
- what the template refuses is refused.
"""
import argparse
import importlib.util
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WORDS = ['the sea', ' is', 'Why?', 'é', '日本語', '😀', '\n', '\n\n', '  two', '"quoted"', '<b>', '42',
         'def f(x):\n    return x', '- item', 'naïve', ' ', 'a,b', "it's"]
SPECIAL = re.compile(r'<[|｜][^<>|｜\s{}]{1,40}[|｜]>|<(?:start_of_turn|end_of_turn|bos|eos)>|\[/?INST\]')


def words(rng, count=8):
    return ''.join(rng.choice(WORDS) for _ in range(rng.randrange(1, count)))


def answer(rng, has_tools, thinks):
    message = {'role': 'assistant', 'content': words(rng)}
    if thinks and rng.random() < 0.5:
        message['reasoning_content'] = words(rng)
    if not has_tools:
        return [message]
    call = {'type': 'function', 'function': {'name': 'look_up', 'arguments': {'word': words(rng, 3), 'n': 3}}}
    return [{'role': 'assistant', 'content': '', 'tool_calls': [call]},
            {'role': 'tool', 'name': 'look_up', 'content': words(rng)}, message]


def record(rng):
    messages, has_tools, thinks = [], rng.random() < 0.25, rng.random() < 0.3
    if rng.random() < 0.4:
        messages.append({'role': 'system', 'content': words(rng)})
    for _ in range(rng.randrange(1, 4)):
        messages.append({'role': 'user', 'content': words(rng)})
        messages += answer(rng, has_tools and rng.random() < 0.7, thinks)
    if rng.random() < 0.2:
        messages.append({'role': 'user', 'content': words(rng)})
    made = {'messages': messages}
    if has_tools:
        made['tools'] = [{'type': 'function', 'function': {
            'name': 'look_up', 'description': words(rng, 3), 'parameters': {
                'type': 'object', 'required': ['word'], 'properties': {
                    'word': {'type': 'string', 'description': 'what'}, 'n': {'type': 'integer', 'description': 'how many'}}}}}]
    return made


def byte_level(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def sentencepiece_like(lines):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token='<unk>', fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, special_tokens=['<unk>', *(f'<0x{i:02X}>' for i in range(256))],
        initial_alphabet=['\n'], show_progress=False))
    return tokenizer


def save(tokenizer, special, folder):
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<s>', eos_token='</s>',
                                   additional_special_tokens=special)
    fast.save_pretrained(folder)
    return fast


def by_marks(tokenizer, case):
    out = tokenizer.apply_chat_template(
        case['record']['messages'], tools=case['record'].get('tools'), chat_template=case['template'],
        return_dict=True, return_assistant_tokens_mask=True,
        tokenizer_kwargs={'return_offsets_mapping': True})
    mask, offsets = out['assistant_masks'], out['offset_mapping']
    # Of a last character of several tokens transformers masks the first token only.
    for i in range(1, len(mask)):
        mask[i] |= mask[i - 1] and offsets[i] == offsets[i - 1]
    return out['input_ids'], mask


def by_prefixes(tokenizer, case):
    messages, tools = case['record']['messages'], case['record'].get('tools')

    def ids_of(some, prompt=False):
        return tokenizer.apply_chat_template(some, tools=tools, chat_template=case['template'],
                                             add_generation_prompt=prompt)

    whole = ids_of(messages)
    mask = [0] * len(whole)
    answers = [i for i, m in enumerate(messages) if m['role'] == 'assistant']
    for i in answers if case['turns'] == 'all' else answers[-1:]:
        start = ids_of(messages[:i], prompt=True)
        end = whole if i + 1 == len(messages) else ids_of(messages[:i + 1])
        if whole[:len(end)] != end and end[-1] == tokenizer.eos_token_id:
            end = end[:-1]
        if whole[:len(start)] != start or whole[:len(end)] != end:
            raise ValueError('no prefix')
        mask[len(start):len(end)] = [1] * (len(end) - len(start))
    return whole, mask


def expected(tokenizer, case):
    """Tokens and labels, or None where they must be refused."""
    try:
        ids, mask = (by_marks if case['marked'] else by_prefixes)(tokenizer, case)
    except Exception:  # pylint: disable=broad-except # raise_exception, or what a template cannot take
        return None
    labels = [ids[i + 1] if i + 1 < len(ids) and mask[i + 1] else -100 for i in range(len(ids))]
    return (ids, labels) if any(label != -100 for label in labels) else None


def difference(tokenizer, want, got):
    if 'error' in got or not want:
        return got.get('error', 'not refused')
    mine = got['input_ids'], got['labels']
    for what, wanted, given in zip(('input_ids', 'labels'), want, mine):
        for i, (a, b) in enumerate(zip(wanted, given)):
            if a != b:
                return f'{what}: {a} expected, got {b}, after {tokenizer.decode(want[0][max(0, i - 10):i + 1])!r}'
    return f'{len(want[0])} tokens expected, got {len(mine[0])}'


def ours(program, tests, folder, cases):
    Path(folder, 'cases').write_text(''.join(json.dumps(case) + '\n' for case in cases))
    subprocess.run([program, str(Path(tests, 'peers', 'conversations.lua')), folder, f'{folder}/cases',
                    f'{folder}/out'], check=True)
    return [json.loads(line) for line in Path(folder, 'out').read_text().splitlines()]


def cases_of(templates, seed, count):
    for name, template in templates.items():
        marked = bool(re.search(r'\{%-?\s*generation\s*-?%\}', template))
        for i in range(count):
            rng = random.Random(f'{seed}.{name.removesuffix("_training")}.{i}')
            yield {'name': name, 'template': template, 'record': record(rng), 'marked': marked,
                   'turns': 'all' if marked else rng.choice(['all', 'last'])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('tests')
    parser.add_argument('corpus')
    parser.add_argument('--seed', default='0')
    parser.add_argument('--count', type=int, default=8)
    options = parser.parse_args()
    package = Path(importlib.util.find_spec('trl').origin).parent
    templates = {path.stem: path.read_text() for path in sorted(package.glob('chat_templates/*.jinja'))}
    assert len(templates) > 40, templates
    special = sorted({token for text in templates.values() for token in SPECIAL.findall(text)})
    lines = Path(options.corpus).read_text().splitlines()[:4000]
    cases = list(cases_of(templates, options.seed, options.count))
    wrong, refused, used = 0, 0, set()
    for make in (byte_level, sentencepiece_like):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = save(make(lines), special, folder)
            for case, got in zip(cases, ours(options.program, options.tests, folder, cases), strict=True):
                want = expected(tokenizer, case)
                refused += want is None
                if want is None and 'error' in got or want == (got.get('input_ids'), got.get('labels')):
                    if want:
                        used.add(case['name'])
                    continue
                wrong += 1
                if wrong <= 5:
                    print(make.__name__, case['name'], case['turns'], json.dumps(case['record']), sep='\n')
                    print(difference(tokenizer, want, got))
    marked = sum(name in used for name in {case['name'] for case in cases if case['marked']})
    print(f'{len(templates)} templates, seed {options.seed}: {wrong} of {2 * len(cases)} differ, {refused} refused; '
          f'masked with marks {marked}, by prefixes {len(used) - marked} templates')
    sys.exit(1 if wrong or marked < 10 or len(used) - marked < 10 else 0)


if __name__ == '__main__':
    main()
