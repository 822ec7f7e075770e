"""Our reading of chat templates beside jinja2's.

chat_templates_peer.py REDCO_LUA TESTS [--seed N] [--count N]

Renders the templates below and `count` random ones, each from its own seed, as `transformers` sets
jinja2 up: what jinja2 renders must come out the same, and what it refuses must be refused.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from operator import add, floordiv, mul, sub
from pathlib import Path

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_template_programs import Programs

USER, SYSTEM = {'role': 'user', 'content': ' Hi,\nyou '}, {'role': 'system', 'content': 'Be "brief".'}
ANSWER = {'role': 'assistant', 'content': 'Hello 😀\n'}
CONVERSATIONS = [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER]]

OPERATIONS = {'+': add, '-': sub, '*': mul, '//': floordiv}
TEMPLATES = [
    # ChatML
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # headers, a system message taken off the list, blanks controlled
    """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if not tools is defined or tools is none %}{{- "no tools\\n" }}{% endif %}
{{- system_message ~ 3 }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif message.tool_calls|length != 1 %}
        {{- raise_exception("one only") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    # a namespace, numbers of turns, loop variables, inline conditions
    """{% set ns = namespace(found=false, count=0) %}
{% for m in messages if m.role != 'system' %}
  {% set ns.count = ns.count + 1 %}
  {% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}
  {{ loop.index }}/{{ loop.length }} {{ loop.last }} {{ m.content.strip().upper() if loop.first else m.content | tojson }}
{% else %}
none
{% endfor %}
{{ ns.count }} {{ ns.found }} {{ eos_token is defined }} {{ nothing is defined }} {{ nothing or 'none' }}
""",
    # methods, filters, slices, dictionaries, comments
    """{# what #}{% set d = {'a': 1, 'b': [1, 2.5, true, none, 'x']} %}
{% for k, v in d.items() %}{{ k }}={{ v | tojson }};{% endfor %}
{{ d | tojson(indent=2) }}
{{ messages[-1].content.split(',')[0] }}|{{ messages | length }}
{{ ['a', 'b'] | join('-') }} {{ 'abc'[1:] }} {{ (messages[::-1] | first).role }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 1 / 2 }}
{{ 'ab' in 'cabd' and not 'x' in ['y'] }} {{ 'a' not in d }} {{ "it's" | replace("'", '"') }}
{%- for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %} {{ i }}{% endfor %}
{% set block %}in {{ d.a }} block{% endset %}{{ block | capitalize }} {{ d.get('q', 'nope') }} {{ messages[0].content.startswith(' H') }}
  {%+ if true %} kept{% endif %}

end
""",
]


class Generation(Extension):
    """The block that marks what a model says."""
    tags = {'generation'}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
        return nodes.CallBlock(self.call_method('_body'), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def refuse(text):
        raise ValueError(text)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                           extensions=[loopcontrols, Generation])
    result.filters['tojson'] = tojson
    result.globals['raise_exception'] = refuse
    return result


def fixed_cases():
    for template in TEMPLATES:
        for messages in CONVERSATIONS:
            for prompt in (False, True):
                yield template, dict(messages=messages, add_generation_prompt=prompt,
                                     bos_token='<s>', eos_token='</s>')


def random_cases(seed, count):
    for i in range(count):
        programs = Programs(random.Random(f'{seed}.{i}'))
        yield programs.template(), programs.variables()


def render(program, tests, cases):
    """{'text': ...} or {'error': ...} for each case."""
    with tempfile.TemporaryDirectory() as folder:
        # All that templates need of a tokenizer is one.
        Path(folder, 'tokenizer.json').write_text(json.dumps(
            {'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': []}}))
        lines = [json.dumps({'template': template, 'messages': variables['messages'],
                             'variables': {k: v for k, v in variables.items() if k != 'messages'}})
                 for template, variables in cases]
        Path(folder, 'cases').write_text('\n'.join(lines) + '\n')
        subprocess.run([program, str(Path(tests, 'peers', 'chat_templates.lua')), folder,
                        f'{folder}/cases', f'{folder}/out'], check=True)
        return [json.loads(line) for line in Path(folder, 'out').read_text().splitlines()]


def difference(env, template, variables, got):
    """What is wrong, or None."""
    try:
        expected = env.from_string(template).render(tools=variables.get('tools'), documents=None, **{
            k: v for k, v in variables.items() if k != 'tools'})
    except TemplateSyntaxError:
        return None  # what we read in more places than jinja2 does is no harm
    except Exception as error:  # pylint: disable=broad-except
        return None if 'error' in got else f'expected {error!r}\ngot      {got["text"]!r}'
    # Python's names of functions, ranges and generators, with their addresses, are not ours.
    error = got.get('error', '')
    if 'written as text' in error or got.get('text') == expected:
        return None
    # Nor are integers of more than 64 bits.
    large = re.search(r'the integer (\S+)(?: (\S+) (\S+))? is too large', error)
    if large and is_beyond_64_bits(*large.groups()):
        return None
    return f'expected {expected!r}\ngot      {got!r}'


def is_beyond_64_bits(first, operator, second):
    """Whether a number, or an operation on two integers, really is too large."""
    if not operator:
        result = float(first)
    elif operator == '**':
        result = int(first) ** min(int(second), 64)  # as far as it matters
    else:
        result = OPERATIONS[operator](int(first), int(second))
    return not -2**63 <= result < 2**63


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('tests')
    parser.add_argument('--seed', default='0')
    parser.add_argument('--count', type=int, default=200)
    options = parser.parse_args()
    cases = list(fixed_cases())
    n_fixed = len(cases)
    cases += random_cases(options.seed, options.count)
    wrong, env = 0, environment()
    for i, ((template, variables), got) in enumerate(
            zip(cases, render(options.program, options.tests, cases), strict=True)):
        told = difference(env, template, variables, got)
        if told:
            wrong += 1
            if wrong <= 10:
                print(f'random template {i - n_fixed}:' if i >= n_fixed else 'template:')
                print(template, json.dumps(variables, ensure_ascii=False), told, sep='\n')
    print(f'{len(cases)} templates, seed {options.seed}: {wrong} differences')
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
