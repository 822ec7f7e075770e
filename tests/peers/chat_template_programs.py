"""Random chat templates, conversations and variables, from a generator of random numbers.

Expressions are made by the type that they should have, so that most templates render."""

NAMES = ['a', 'b', 'item', 'x']
WORDS = ['user', 'assistant', ' hi ', 'Hello, World', 'x', '', 'é', 'ß', '日本 語', '😀', "it's", '"q"',
         'a\nb', '<|im_end|>', '<b> & "c"', '\t', '12', '-3.5', 'tHe cAT', 'a,b,,c', '  two  words ', '\\d', 'e\u0301',
         '\u00a0', '{{', '%}', 'naïve', 'A' * 12, '\u200b', '</s>', 'ΑΣ ΟΔΟΣ', 'Α’Σ-ΣΑΣ.', 'İİZ',
         'line one\nline two\r\n\nend\n']
KEYS = ['role', 'content', 'name', 'type', 'items', 'a', 'b', 'keys', 'description', 'é']


def literal(text, rng):
    quote = rng.choice('\'"')
    special = {'\\': '\\\\', '\n': '\\n', '\t': '\\t', '\r': '\\r', quote: '\\' + quote}
    return quote + ''.join(special.get(c, c) for c in text) + quote


class Programs:
    def __init__(self, rng):
        self.rng = rng
        self.depth = 0
        self.in_loop = 0
        self.macros = []

    def one_of(self, *makers):
        return self.rng.choice(makers)()

    def chance(self, p):
        return self.rng.random() < p

    # ---- values ----

    def word(self):
        return self.rng.choice(WORDS)

    def value(self, depth=0):
        kind = self.rng.randrange(9 if depth < 3 else 6)
        if kind == 0:
            return self.rng.choice([None, True, False])
        if kind == 1:
            return self.rng.choice([0, 1, -1, 7, 1000, 2.5, -0.25, 1e20, 1e-7, 0.0, 1.0, 21.0, -3.0, 1e15])
        if kind < 6:
            return self.word()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        keys = self.rng.sample(KEYS, self.rng.randrange(5))
        return {key: self.value(depth + 1) for key in keys}

    def message(self):
        message = {'role': self.rng.choice(['user', 'assistant', 'system', 'tool']),
                   'content': self.word()}
        if self.chance(0.15):
            message['content'] = [{'type': 'text', 'text': self.word()}, {'type': 'image'}]
        if self.chance(0.1):
            message['content'] = None
        if self.chance(0.2):
            message['tool_calls'] = [{'function': {'name': 'f', 'arguments': self.value(1)}}]
        if self.chance(0.3):
            items = list(message.items())
            self.rng.shuffle(items)
            message = dict(items)
        return message

    def tool(self):
        properties = {self.rng.choice('zyxab') + str(i): {'type': self.rng.choice(
            ['string', 'number', ['string', 'null']]), 'description': self.word()}
            for i in range(self.rng.randrange(3))}
        return {'type': 'function', 'function': {
            'name': 'get_' + self.rng.choice('abc'), 'description': self.word(),
            'parameters': {'type': 'object', 'properties': properties,
                           'required': list(properties)[:self.rng.randrange(3)]}}}

    def variables(self):
        result = {'messages': [self.message() for _ in range(self.rng.randrange(1, 5))],
                  'add_generation_prompt': self.chance(0.5), 'bos_token': '<s>', 'eos_token': '</s>',
                  's': self.word(), 'n': self.rng.randrange(-3, 12), 'f': self.rng.choice([0.5, -2.5, 1e16, 123456.75, 0.0001, 1e-5, 4.0, -0.0]),
                  'l': [self.word() for _ in range(self.rng.randrange(5))],
                  'reals': [self.rng.choice([1.0, 2, 0.5, -4.0]) for _ in range(self.rng.randrange(4))],
                  'numbers': [self.rng.randrange(-5, 9) for _ in range(self.rng.randrange(5))],
                  'd': {key: self.value(1) for key in self.rng.sample(KEYS, self.rng.randrange(5))},
                  'v': self.value()}
        if self.chance(0.5):
            result['tools'] = [self.tool() for _ in range(self.rng.randrange(3))]
        return result

    # ---- expressions ----

    def deeper(self, make, otherwise):
        if self.depth > 3:
            return otherwise()
        self.depth += 1
        try:
            return make()
        finally:
            self.depth -= 1

    def text(self):
        return self.deeper(self.compound_text, self.simple_text)

    def simple_text(self):
        return self.one_of(lambda: literal(self.word(), self.rng), lambda: 's',
                           lambda: "messages[0]['role']", lambda: 'messages[-1].role',
                           lambda: 'bos_token', lambda: self.rng.choice(NAMES))

    def compound_text(self):
        t, n = self.text, self.integer
        return self.one_of(
            self.simple_text,
            lambda: f'{t()} + {t()}',
            lambda: f'{t()} ~ {self.any()}',
            lambda: f'({t()} if {self.truth()} else {t()})',
            lambda: f'{t()} | {self.text_filter()}',
            lambda: f'{t()}.{self.text_method()}' if self.chance(0.3) else f's.{self.text_method()}',
            lambda: f'{self.any()} | tojson' + self.rng.choice(
                ['', '(indent=2)', '(ensure_ascii=True)', '(sort_keys=True)',
                 "(separators=(',', ':'))", '(indent=4, sort_keys=true)', '(indent=0)']),
            lambda: f'{self.list()} | join({t()})',
            lambda: f"{self.list()} | join(',')",
            lambda: f's[{self.bound()}:{self.bound()}]',
            lambda: f's[{self.bound()}:{self.bound()}:{self.rng.choice([1, 2, -1, -2])}]',
            lambda: f's[{n()}]',
            lambda: f"'%s-%d' % ({t()}, {n()})",
            lambda: f"'%s|%.2f' | format({t()}, {n()})",
            lambda: f"'{{}}:{{}}'.format({t()}, {n()})",
            lambda: f'{t()} * {self.rng.randrange(4)}',
            lambda: f'{self.any()} | string',
            lambda: self.markup(), lambda: f'{self.markup()} + {t()}', lambda: f'{t()} + {self.markup()}',
            lambda: f"d.get({literal(self.rng.choice(KEYS), self.rng)}, {t()})",
            lambda: f"(d.{self.rng.choice(KEYS[:8])} | default({t()}{self.rng.choice(['', ', true'])}))",
            lambda: f"({t()} or {t()})",
            lambda: self.macro_call())

    def markup(self):
        """A text to which others are added with their special characters escaped."""
        t = self.text
        return self.deeper(lambda: self.one_of(
            lambda: f'({t()} | safe)', lambda: f'(s | safe).{self.text_method()}',
            lambda: f'({self.markup()} ~ {t()})', lambda: f'({self.markup()} * 2)',
            lambda: f'({self.markup()} | {self.text_filter()})',
            lambda: f'({self.markup()})[{self.bound()}:{self.bound()}]',
            lambda: f"('<%s>' | safe) % {t()}", lambda: f"('{{}}<{{}}>' | safe).format({t()}, {self.any()})",
            lambda: f"('%s%r' | safe | format({t()}, {t()}))", lambda: f'({t()} | escape)',
            lambda: f'(s | safe).join({self.list()})', lambda: f'({self.any()} | e)',
            lambda: f'[{self.markup()}, {t()}]'), lambda: '(s | safe)')

    def macro_call(self):
        if not self.macros:
            return self.simple_text()
        name, n = self.rng.choice(self.macros)
        positional = self.rng.randrange(n + 1)
        arguments = [self.any() for _ in range(positional)]
        if positional < n and self.chance(0.5):
            arguments.append(f'{NAMES[n - 1]}={self.text()}')
        return f'{name}({", ".join(arguments)})'

    def text_filter(self):
        return self.one_of(
            lambda: self.rng.choice(['trim', 'upper', 'lower', 'capitalize', 'title', 'string', 'reverse',
                                     'length', 'safe', 'escape', 'first', 'last', 'list', 'tojson', 'int',
                                     'float', 'count']),
            lambda: f'replace({self.simple_text()}, {self.simple_text()})',
            lambda: f"replace('a', 'b', {self.rng.randrange(3)})",
            lambda: f'indent({self.rng.choice(["2", "4, true", "2, true, true", "first=true", literal("> ", self.rng)])})',
            lambda: f'truncate({self.rng.randrange(4, 12)}{self.rng.choice(["", ", true", ", false, literal"])})'.replace(
                'literal', "'…', 0"),
            lambda: f'center({self.rng.randrange(20)})',
            lambda: "default('none')")

    def text_method(self):
        part = literal(self.rng.choice(['a', ' ', ',', 'l', 'ne', 'H', 'é', '\n', '語']), self.rng)
        return self.one_of(
            lambda: self.rng.choice(['strip()', 'lstrip()', 'rstrip()', 'upper()', 'lower()', 'title()',
                                     'capitalize()', 'split()', 'splitlines()', 'isdigit()', 'isalpha()',
                                     'isspace()', 'isupper()', 'islower()', 'isalnum()', 'rsplit()']),
            lambda: f'strip({part})', lambda: f'split({part})', lambda: f'split({part}, 1)',
            lambda: f'rsplit({part}, 1)', lambda: 'split(none, 1)', lambda: 'rsplit(none, 1)',
            lambda: f'split({part})[0]',
            lambda: f'split({part})[-1].lstrip({part})', lambda: f'startswith({part})',
            lambda: f'endswith({part})', lambda: f'endswith(({part}, {part}))',
            lambda: f"replace({part}, 'XY')", lambda: f"replace({part}, '', 1)",
            lambda: f'find({part})', lambda: f'rfind({part})', lambda: f'count({part})',
            lambda: f'removeprefix({part})', lambda: f'removesuffix({part})',
            lambda: f'partition({part})', lambda: f'rpartition({part})', lambda: 'ljust(9)',
            lambda: "rjust(9, '*')", lambda: 'center(8)', lambda: 'zfill(5)',
            lambda: f'join({self.list()})')

    def bound(self):
        return self.rng.choice(['', '', '0', '1', '-1', '2', '-3', '10', '-10', 'none', 'n'])

    def integer(self):
        return self.deeper(self.compound_integer, self.simple_integer)

    def simple_integer(self):
        if self.in_loop and self.chance(0.3):
            return self.rng.choice(['loop.index', 'loop.index0', 'loop.revindex', 'loop.length',
                                    'loop.revindex0', 'loop.depth'])
        return self.rng.choice(['n', 'n', str(self.rng.randrange(10)), '-2', '1_000', '2.5', 'f'])

    def compound_integer(self):
        n = self.integer
        return self.one_of(
            self.simple_integer,
            lambda: f'{n()} {self.rng.choice(["+", "-", "*", "//", "%", "/"])} {n()}',
            lambda: f'({n()} + {n()}) * 2', lambda: f'-{n()}', lambda: f'{n()} ** 2',
            lambda: f'{self.list()} | length', lambda: f'{self.text()} | length',
            lambda: f'{self.text()} | int', lambda: f"{self.text()} | int(-1)",
            lambda: f'{n()} | abs', lambda: f'{n()} | round', lambda: f'{n()} | round(1)',
            lambda: f"{n()} | round(0, 'floor')", lambda: f'{n()} | float', lambda: f'{n()} | int',
            lambda: 'numbers | sum', lambda: 'numbers | max', lambda: 'numbers | min',
            lambda: 'd | length', lambda: f'{self.list()} | list | length')

    def truth(self):
        return self.deeper(self.compound_truth, self.simple_truth)

    def simple_truth(self):
        if self.in_loop and self.chance(0.3):
            return self.rng.choice(['loop.first', 'loop.last', 'not loop.first', 'loop.previtem is defined',
                                    'loop.nextitem is defined', 'loop.changed(n % 2)'])
        return self.rng.choice(['add_generation_prompt', 'true', 'false', 'tools is defined', 'tools',
                                'nothing', 'not tools', 'nothing is defined', 'v', 'd', 's'])

    def compound_truth(self):
        test = self.rng.choice(['defined', 'none', 'string', 'mapping', 'iterable', 'sequence', 'number',
                                'integer', 'boolean', 'true', 'false', 'float', 'undefined', 'callable',
                                'sameas true', 'sameas none', 'escaped', 'eq 1', "in ['a', 1, none]", 'equalto(s)'])
        return self.one_of(
            self.simple_truth,
            lambda: f'{self.truth()} {self.rng.choice(["and", "or"])} {self.truth()}',
            lambda: f'not {self.truth()}',
            lambda: f'({self.any()}) is {self.rng.choice(["", "not "])}{test}',
            lambda: f'{self.simple_any()} is {test}',
            lambda: f'{self.integer()} {self.rng.choice(["<", ">", "<=", ">=", "==", "!="])} {self.integer()}',
            lambda: f'0 <= n < {self.rng.randrange(9)}',
            lambda: f'{self.any()} {self.rng.choice(["==", "!="])} {self.any()}',
            lambda: f'{self.text()} {self.rng.choice(["in", "not in"])} {self.text()}',
            lambda: f'{self.simple_any()} {self.rng.choice(["in", "not in"])} {self.list()}',
            lambda: f'{literal(self.rng.choice(KEYS), self.rng)} in d', lambda: f'{self.key()} in k',
            lambda: f'n is {self.rng.choice(["odd", "even", "divisibleby 3", "gt 2", "lt(3)"])}',
            lambda: f's is {self.rng.choice(["upper", "lower"])}')

    def list(self):
        return self.deeper(self.compound_list, self.simple_list)

    def simple_list(self):
        return self.rng.choice(['l', 'numbers', 'messages', 'tools', '[]', "['b', 'A', 'a', 'B']", '(1, 2)',
                                '[1, 2.5, none, true]', 'range(3)', 'nothing'])

    def compound_list(self):
        a_list = self.list
        attribute = self.rng.choice(['role', 'content', 'tool_calls', 'function.name', 'content.0.type'])
        return self.one_of(
            self.simple_list,
            lambda: f'[{self.any()}, {self.any()}]', lambda: f'({self.text()}, {self.integer()})',
            lambda: f'l[{self.bound()}:{self.bound()}]', lambda: f'messages[{self.bound()}:]',
            lambda: f'numbers[::{self.rng.choice([-1, 2, -2])}]',
            lambda: f'l + [{self.any()}]', lambda: f'({a_list()} | list) + l', lambda: f'{a_list()} | reverse | list',
            lambda: 'l | sort', lambda: 'l | sort(reverse=true)', lambda: 'l | sort(case_sensitive=true)',
            lambda: "messages | sort(attribute='role') | map(attribute='role') | list",
            lambda: f'{a_list()} | unique | list', lambda: f"messages | map(attribute='{attribute}') | list",
            lambda: f"messages | map(attribute='{attribute}', default='?') | list",
            lambda: f"{a_list()} | map({literal(self.rng.choice(['upper', 'string', 'trim', 'tojson', 'length', 'title']), self.rng)}) | list",
            lambda: f"messages | selectattr('role', '{self.rng.choice(['eq', 'equalto', 'ne', '!=', '=='])}', 'user') | list",
            lambda: f"messages | {self.rng.choice(['selectattr', 'rejectattr'])}('{attribute}') | list",
            lambda: f"messages | {self.rng.choice(['selectattr', 'rejectattr'])}('{attribute}', 'defined') | list",
            lambda: f"{a_list()} | {self.rng.choice(['select', 'reject'])}({self.rng.choice(['', repr('string'), repr('none'), repr('mapping')])}) | list",
            lambda: "l | map('replace', 'a', 'b') | list", lambda: 'd.items() | list', lambda: 'd | dictsort',
            lambda: 'k.items() | list', lambda: 'k | dictsort', lambda: 'k | list',
            lambda: 'd.keys() | list', lambda: 'd.values() | list', lambda: 'd | items | list', lambda: 'd | list',
            lambda: f'{self.text()} | list', lambda: f'{self.text()}.split(",")', lambda: 's.splitlines()',
            lambda: f'range({self.rng.randrange(-2, 5)}, {self.rng.randrange(-2, 5)}, {self.rng.choice([1, 2, -1])})')

    def dict(self):
        return self.one_of(
            lambda: 'd', lambda: 'messages[0]', lambda: '{}', lambda: "{'a': 1, 'b': [s, {'c': none}]}",
            lambda: f'{{{literal(self.rng.choice(KEYS), self.rng)}: {self.any()}}}',
            lambda: self.dict_of_any_keys(), lambda: f'dict([({self.key()}, {self.any()}), ("a", 1)])',
            lambda: f'dict(a={self.any()}, b={self.text()})', lambda: f'dict(d, extra={self.text()})',
            lambda: 'tools[0]', lambda: 'tools[0].function.parameters', lambda: 'd.copy()')

    def key(self):
        return self.rng.choice(['0', '1', '512', '-1', '2.5', '1.0', 'true', 'none', '"a"', '"1"', 'n', 'f', '(1, "a")'])

    def dict_of_any_keys(self):
        members = ', '.join(f'{self.key()}: {self.simple_any()}' for _ in range(self.rng.randrange(4)))
        return f'{{{members}}}'

    def simple_any(self):
        return self.rng.choice(['v', 's', 'n', 'd', 'l', 'f', 'nothing', 'none', 'true', 'messages[0].content',
                                'messages[-1]', 'd.a', "d['b']", 'd.items', "d['items']", 'd.role', 'l[0]', 'l[9]',
                                'v.a', "v['role']", 'tools', 'numbers', 'l | first', 'numbers | last',
                                "messages[0]['tool_calls']", 'reals', 'reals[0]', 'k', f'k[{self.key()}]', f'k.get({self.key()})'] + NAMES)

    def any(self):
        return self.deeper(
            lambda: self.one_of(self.simple_any, self.simple_any, self.text, self.integer, self.truth,
                                self.list, self.dict), self.simple_any)

    # ---- statements ----

    def tag(self, content):
        return ('{%' + self.rng.choice(['', '-', '-', '+']) + ' ' + content + ' '
                + self.rng.choice(['', '-', '-', '+']) + '%}')

    def output(self):
        expression = self.one_of(self.text, self.text, self.integer, self.any, self.list)
        return ('{{' + self.rng.choice(['', '-']) + ' ' + expression + ' ' + self.rng.choice(['', '-'])
                + '}}')

    def block(self, most=3):
        self.depth += 1
        try:
            return ''.join(self.statement() for _ in range(self.rng.randrange(1, most + 1)))
        finally:
            self.depth -= 1

    def plain(self):
        return self.rng.choice(['text ', '\n', '  ', '\n  ', ' a\n', '\t', '\n\n', '{ ', '} ', '日本'])

    def statement(self):
        if self.depth > 3:
            return self.one_of(self.plain, self.output)
        return self.one_of(self.plain, self.plain, self.output, self.output, self.output, self.if_statement,
                           self.for_statement, self.for_statement, self.set_statement,
                           self.set_statement, self.other_statement)

    def if_statement(self):
        parts = [self.tag(f'if {self.truth()}'), self.block()]
        if self.chance(0.3):
            parts += [self.tag(f'elif {self.truth()}'), self.block()]
        if self.chance(0.4):
            parts += [self.tag('else'), self.block()]
        return ''.join(parts) + self.tag('endif')

    def for_statement(self):
        name = self.rng.choice(NAMES)
        head = self.one_of(lambda: f'for {name} in {self.list()}', lambda: f'for {name} in messages',
                           lambda: 'for a, b in d.items()', lambda: 'for a, b in d | dictsort',
                           lambda: f'for {name} in {self.text()}', lambda: f'for {name} in d')
        if self.chance(0.2):
            head += f' if {self.truth()}'
        self.in_loop += 1
        body = self.block()
        if self.chance(0.15):
            body += self.tag(f'if {self.truth()}') + self.tag(
                self.rng.choice(['break', 'continue'])) + self.tag('endif') + self.block(1)
        self.in_loop -= 1
        if self.chance(0.2):
            body += self.tag('else') + self.block(1)
        return self.tag(head) + body + self.tag('endfor')

    def set_statement(self):
        name = self.rng.choice(NAMES)
        return self.one_of(
            lambda: self.tag(f'set {name} = {self.any()}'), lambda: self.tag(f'set {name} = {self.text()}'),
            lambda: self.tag(f'set {name}') + self.block(2) + self.tag('endset'),
            lambda: self.tag(f'set {name} | {self.rng.choice(["trim", "upper", "trim | title"])}')
            + self.block(2) + self.tag('endset'),
            lambda: self.tag(f'set a, b = {self.any()}, {self.text()}'),
            lambda: self.tag(f'set ns.{self.rng.choice(["i", "t"])} = {self.any()}'),
            lambda: self.tag('set ns.i = ns.i + 1') + '{{ ns.i }}')

    def other_statement(self):
        def macro():
            n = self.rng.randrange(3)
            name = f'm{len(self.macros)}'
            parameters = [NAMES[i] + self.rng.choice(['', '=' + self.text()]) for i in range(n)]
            # Python takes no parameter without a default after one that has one.
            for i in range(1, n):
                if '=' in parameters[i - 1] and '=' not in parameters[i]:
                    parameters[i] += "=''"
            in_loop, self.in_loop = self.in_loop, 0
            body = self.block()
            caller = '{{ caller(n) if caller is defined else "-" }}' if self.chance(0.3) else ''
            self.in_loop = in_loop
            if self.depth == 0:
                self.macros.append((name, n))
            return self.tag(f'macro {name}({", ".join(parameters)})') + body + caller + self.tag('endmacro')

        return self.one_of(
            macro, macro,
            lambda: self.tag('filter ' + self.rng.choice(['upper', 'trim', "replace('a', 'b')", 'indent(2)']))
            + self.block(2) + self.tag('endfilter'),
            lambda: self.tag(f'with {self.rng.choice(NAMES)} = {self.any()}') + self.block(2)
            + self.tag('endwith'),
            lambda: self.tag('generation') + self.block(2) + self.tag('endgeneration'),
            lambda: '{#' + self.rng.choice(['', '-']) + ' a comment ' + self.rng.choice(['', '-']) + '#}',
            lambda: self.tag('raw').replace('+', '') + ' {{ kept }} {% too %}\n' + self.tag('endraw'))

    def template(self):
        self.macros = []
        head = "{%- set ns = namespace(i=0, t='') -%}{%- set k = " + self.dict_of_any_keys() + ' -%}' + self.rng.choice(['', '\n'])
        return head + ''.join(self.statement() for _ in range(self.rng.randrange(1, 8))) + self.rng.choice(
            ['', '\n', '{{ ns.i }}{{ ns.t }}'])
