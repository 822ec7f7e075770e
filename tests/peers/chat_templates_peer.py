"""Our reading of chat templates beside jinja2's: chat_templates_peer.py REDCO_LUA TESTS"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

USER, SYSTEM = {'role': 'user', 'content': ' Hi,\nyou '}, {'role': 'system', 'content': 'Be "brief".'}
ANSWER = {'role': 'assistant', 'content': 'Hello 😀\n'}
CONVERSATIONS = [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER]]

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
{{ messages[-1].content.split(',')[0] }}|{{ messages | map_free if false else messages | length }}
{{ ['a', 'b'] | join('-') }} {{ 'abc'[1:] }} {{ (messages[::-1] | first).role }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 1 / 2 }}
{{ 'ab' in 'cabd' and not 'x' in ['y'] }} {{ 'a' not in d }} {{ "it's" | replace("'", '"') }}
{%- for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %} {{ i }}{% endfor %}
{% set block %}in {{ d.a }} block{% endset %}{{ block | capitalize }} {{ d.get('q', 'nope') }} {{ messages[0].content.startswith(' H') }}
  {%+ if true %} kept{% endif %}

end
""",
]


def to_lua(value):
    if isinstance(value, dict):
        return '{' + ','.join(f'[{to_lua(k)}]={to_lua(v)}' for k, v in value.items()) + '}'
    if isinstance(value, list):
        return '{' + ','.join(map(to_lua, value)) + '}'
    if isinstance(value, str):
        return '"' + ''.join(f'\\{byte:03d}' for byte in value.encode()) + '"'
    return str(value).lower()


def expected(template, messages, prompt):
    def refuse(text):
        raise ValueError(text)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[loopcontrols])
    environment.filters['tojson'] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent)
    environment.filters['map_free'] = len
    environment.globals['raise_exception'] = refuse
    try:
        return environment.from_string(template).render(
            messages=messages, add_generation_prompt=prompt, bos_token='<|endoftext|>',
            eos_token='<|endoftext|>')
    except ValueError as error:
        return f'error: {error}'


def main(program, tests):
    tests, wrong, count = Path(tests), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(tests / 'cases/gpt2/tokenizer.json', folder)
        for template in TEMPLATES:
            Path(folder, 'tokenizer_config.json').write_text(json.dumps(
                dict(chat_template=template, bos_token='<|endoftext|>', eos_token='<|endoftext|>')))
            for messages in CONVERSATIONS:
                for prompt in (False, True):
                    script = Path(folder, 'render.lua')
                    script.write_text(f'''
                        local tok = require("redco").Tokenizer.from_pretrained({to_lua(folder)})
                        local ok, text = pcall(tok.apply_chat_template, tok, {to_lua(messages)},
                          {{ add_generation_prompt = {to_lua(prompt)}, tokenize = false }})
                        io.write(ok and text or "error: " .. text:match "messages: (.*)$")''')
                    got = subprocess.run([program, str(script)], check=True,
                                         capture_output=True).stdout.decode()
                    count += 1
                    if got != expected(template, messages, prompt):
                        wrong += 1
                        print(f'expected {expected(template, messages, prompt)!r}\ngot      {got!r}')
    print(f'{count} conversations, {wrong} differences')
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main(*sys.argv[1:])
