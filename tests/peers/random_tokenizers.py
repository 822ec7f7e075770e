"""Random tokenizer.json files of every kind that is supported, and what to encode with them."""
import json

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f'<0x{byte:02X}>' for byte in range(256)]
BEHAVIORS = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']
PATTERNS = [{'String': ' '}, {'String': 'a'}, {'Regex': r'\s+'}, {'Regex': r'\d'}, {'Regex': r'\p{L}+'},
            {'Regex': r"'s|\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"}, {'Regex': r'[^a-z]'},
            {'String': 'é'}, {'Regex': r'(?i)the|in'}, {'Regex': r'\p{P}'}]


class RandomTokenizer:
    """`make_text(rng)` makes texts, of which the vocabulary comes too."""

    def __init__(self, rng, make_text, charsmap):
        self.rng, self.make_text, self.charsmap = rng, make_text, charsmap
        self.corpus = [make_text(rng) for _ in range(30)] + ['a']
        self.file = None

    def chance(self, p):
        return self.rng.random() < p

    def one_of(self, *values):
        return self.rng.choice(values)

    def make(self):
        kind = self.one_of('byte_level', 'bpe', 'unigram', 'wordpiece')
        prefix = self.chance(0.5)
        normalizers = [self.normalizer() for _ in range(self.rng.choice([0, 0, 1, 1, 2, 3]))]
        if kind == 'byte_level':
            model = self.bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), ALPHABET)
            steps = [self.pre_tokenizer() for _ in range(self.rng.choice([0, 0, 1, 2]))]
            steps.append({'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': True,
                          'use_regex': self.chance(0.7)})
            decoder = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True}
        elif kind == 'wordpiece':
            steps = [self.pre_tokenizer() for _ in range(self.rng.choice([0, 0, 0, 1]))]
            steps.append({'type': self.one_of(*3 * ['BertPreTokenizer'], 'Whitespace')})
            if self.chance(0.8):
                normalizers.append({'type': 'BertNormalizer', 'clean_text': self.chance(0.7),
                                    'handle_chinese_chars': self.chance(0.7),
                                    'strip_accents': self.one_of(None, True, False),
                                    'lowercase': self.chance(0.7)})
            model = self.wordpiece()
            prefix_of = self.one_of(model['continuing_subword_prefix'], '##')
            decoder = self.one_of({'type': 'WordPiece', 'prefix': prefix_of,
                                   'cleanup': self.chance(0.7)}, None)
        else:
            scheme = self.one_of('always', 'first', 'never')
            steps = [self.pre_tokenizer() for _ in range(self.rng.choice([0, 0, 0, 1]))]
            by_normalizer = self.chance(0.4)
            if by_normalizer:
                normalizers += [{'type': 'Prepend', 'prepend': '▁'}] if prefix else []
                normalizers.append({'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'})
            elif self.chance(0.8):
                steps.append({'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': scheme,
                              'split': self.chance(0.7)})
            metaspace = pre_tokenizers.Metaspace(prepend_scheme='first')
            model = self.bpe(metaspace, []) if kind == 'bpe' else self.unigram()
            decoder = self.one_of(
                {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': scheme, 'split': True},
                {'type': 'Sequence', 'decoders': [
                    {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
                    {'type': 'ByteFallback'}, {'type': 'Fuse'},
                    {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},
                {'type': 'BPEDecoder', 'suffix': '</w>'}, None)
        size = len(model['vocab'])
        self.file = {'version': '1.0', 'truncation': None, 'padding': None,
                     'added_tokens': self.added_tokens(size, model), 'normalizer': self.sequence(
                         'normalizers', normalizers),
                     'pre_tokenizer': self.sequence('pretokenizers', steps),
                     'post_processor': self.post_processor(kind, prefix),
                     'decoder': decoder, 'model': model}
        self.avoid_blank_tokens()
        return json.dumps(self.file)

    def avoid_blank_tokens(self):
        """`tokenizers` finds a token that is, or becomes, blank again in what it has stripped."""
        normalizer = tokenizers.Tokenizer.from_str(json.dumps(self.file)).normalizer
        tokens = self.file['added_tokens']
        for token in tokens:
            text = token['content']
            if normalizer and token['normalized'] and not normalizer.normalize_str(text).strip():
                token['normalized'] = False
        if any(not token['content'].strip() for token in tokens):
            for token in tokens:
                token['lstrip'] = token['rstrip'] = False

    @staticmethod
    def sequence(key, steps):
        if len(steps) < 2:
            return steps[0] if steps else None
        return {'type': 'Sequence', key: steps}

    # ---- models ----

    def trained(self, model, trainer, pre_tokenizer):
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.train_from_iterator(self.corpus, trainer)
        return json.loads(tokenizer.to_str())['model']

    def bpe(self, pre_tokenizer, alphabet):
        prefix = self.one_of(None, None, '##') if not alphabet else None
        suffix = self.one_of(None, None, '</w>') if not alphabet else None
        special = [] if alphabet else ['<unk>']
        trainer = trainers.BpeTrainer(
            vocab_size=len(alphabet) + self.rng.randrange(40, 300), initial_alphabet=alphabet,
            special_tokens=special, show_progress=False, limit_alphabet=256 if alphabet else 60,
            **({'continuing_subword_prefix': prefix} if prefix else {}),
            **({'end_of_word_suffix': suffix} if suffix else {}))
        model = self.trained(models.BPE(unk_token='<unk>' if special else None), trainer, pre_tokenizer)
        model['ignore_merges'] = self.chance(0.3)
        model['fuse_unk'] = self.chance(0.5)
        if not alphabet and not prefix and not suffix and self.chance(0.5):
            model['byte_fallback'] = True
            for token in BYTES:
                model['vocab'].setdefault(token, len(model['vocab']))
        return model

    def wordpiece(self):
        """The parts of words of the corpus, some of them left out."""
        bert = pre_tokenizers.BertPreTokenizer()
        words = [word for text in self.corpus for word, _ in bert.pre_tokenize_str(text.lower())]
        prefix = self.one_of('##', '##', '@', '')
        pieces = ['<unk>', '##', prefix]
        for word in words:
            if self.chance(0.8):
                pieces += list(word) + [prefix + character for character in word]
            begin = self.rng.randrange(len(word))
            end = self.rng.randrange(begin, len(word)) + 1
            pieces.append(word[begin:end] if begin == 0 else prefix + word[begin:end])
        vocab = {piece: i for i, piece in enumerate(dict.fromkeys(piece for piece in pieces if piece))}
        return {'type': 'WordPiece', 'unk_token': '<unk>', 'continuing_subword_prefix': prefix,
                'max_input_chars_per_word': self.one_of(100, 5), 'vocab': vocab}

    def unigram(self):
        text = ' '.join(self.corpus).replace(' ', '▁')
        characters = sorted(set(text))
        pieces = self.rng.sample(characters, len(characters) * 3 // 4)
        for _ in range(self.rng.randrange(50, 300)):
            at = self.rng.randrange(len(text))
            pieces.append(text[at:at + self.rng.randrange(2, 7)])
        # Sums with ties and without. `tokenizers` reads some decimal numbers inexactly, so that those
        # that differ are fractions of powers of two.
        score = self.one_of(
            lambda: -self.rng.randrange(1024, 9216) / 1024, lambda: -1.1,
            lambda: -float(self.rng.randrange(1, 4)), lambda: -self.rng.randrange(8, 32) / 8)
        vocab = [['<unk>', 0.0]] + [[piece, score()] for piece in dict.fromkeys(pieces)]
        fallback = self.chance(0.4)
        if fallback:
            vocab += [[token, 0.0] for token in BYTES]
        return {'type': 'Unigram', 'unk_id': 0, 'vocab': vocab, 'byte_fallback': fallback}

    # ---- steps ----

    def normalizer(self):
        kind = self.rng.randrange(12)
        if kind < 4:
            return {'type': ['NFC', 'NFD', 'NFKC', 'NFKD'][kind]}
        if kind == 4:
            return {'type': 'Lowercase'}
        if kind == 5:
            return {'type': 'Prepend', 'prepend': self.one_of('▁', 'a', 'é ')}
        if kind == 6:
            return {'type': 'Strip', 'strip_left': self.chance(0.5), 'strip_right': self.chance(0.5)}
        if kind == 11:
            return {'type': 'StripAccents'}
        if kind == 7 and self.charsmap:
            return {'type': 'Precompiled', 'precompiled_charsmap': self.charsmap}
        return {'type': 'Replace', 'pattern': self.rng.choice(PATTERNS),
                'content': self.one_of('', ' ', 'xy', '▁', 'é')}

    def pre_tokenizer(self):
        kind = self.rng.randrange(7)
        if kind == 6:
            return {'type': 'FixedLength', 'length': self.one_of(1, 2, 5, 9)}
        if kind == 0:
            return {'type': 'Digits', 'individual_digits': self.chance(0.5)}
        if kind == 1:
            return {'type': 'Punctuation', 'behavior': self.rng.choice(BEHAVIORS)}
        if kind == 2:
            return {'type': 'Whitespace'}
        if kind == 3:
            return {'type': 'WhitespaceSplit'}
        return {'type': 'Split', 'pattern': self.rng.choice(PATTERNS),
                'behavior': self.rng.choice(BEHAVIORS), 'invert': self.chance(0.3)}

    def added_tokens(self, size, model):
        contents = ['<s>', '</s>', '<pad>']
        for _ in range(self.rng.randrange(4)):
            text = self.make_text(self.rng).strip()
            contents.append(self.one_of(text[:3], text.split(' ')[0], '<|im_end|>', 'the', 'é', ' x', 'A b',
                                        '\u00a0', 'ＡＢ', 'e\u0301'))
        if '<unk>' in model['vocab'] or model['type'] == 'Unigram':
            contents.append('<unk>')
        known = model['vocab'] if isinstance(model['vocab'], dict) else {
            piece: i for i, (piece, score) in enumerate(model['vocab'])}
        tokens = []
        for content in dict.fromkeys(c for c in contents if c):
            special = content.startswith('<') or self.chance(0.2)
            number = known.get(content)
            if number is None:
                number, size = size, size + 1
            normalized = self.chance(0.2 if special else 0.7)
            tokens.append({'id': number, 'content': content, 'special': special,
                           'single_word': self.chance(0.2), 'lstrip': self.chance(0.2),
                           'rstrip': self.chance(0.2), 'normalized': normalized})
        self.numbers = {token['content']: token['id'] for token in tokens}
        return sorted(tokens, key=lambda token: token['id'])

    def post_processor(self, kind, prefix):
        bos, eos = self.numbers['<s>'], self.numbers['</s>']
        trim = {'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': self.chance(0.7),
                'use_regex': True}
        template = {'type': 'TemplateProcessing', 'single': [
            {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}],
            'pair': [
                {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}},
                {'SpecialToken': {'id': '</s>', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
            'special_tokens': {name: {'id': name, 'ids': [number], 'tokens': [name]}
                               for name, number in [('<s>', bos), ('</s>', eos)]}}
        roberta = {'type': 'RobertaProcessing', 'sep': ['</s>', eos], 'cls': ['<s>', bos],
                   'trim_offsets': self.chance(0.5), 'add_prefix_space': prefix}
        bert = {'type': 'BertProcessing', 'sep': ['</s>', eos], 'cls': ['<s>', bos]}
        choices = [None, template, bert]
        if kind == 'byte_level':
            choices += [trim, roberta, {'type': 'Sequence', 'processors': [trim, template]}]
        return self.rng.choice(choices)

    # ---- what to encode ----

    def job(self):
        """A text, and the options of its call."""
        text = self.make_text(self.rng)
        if self.chance(0.3):
            at = self.rng.randrange(len(text) + 1)
            text = text[:at] + self.rng.choice(list(self.numbers)) + text[at:]
        job = {'text': text, 'add_special_tokens': self.chance(0.7), 'skip_special_tokens': self.chance(0.5)}
        if self.chance(0.2):
            job['text_pair'] = self.make_text(self.rng)
        if self.chance(0.3):
            job['max_length'] = self.rng.randrange(4, 14)
            job['truncation_side'] = self.one_of('left', 'right')
        if self.chance(0.2):
            post = self.file['post_processor'] or {}
            if post.get('type') == 'RobertaProcessing':
                # Without special tokens its parts have other types than the text they are of.
                job['add_special_tokens'] = True
            job['max_length'] = self.rng.randrange(8, 14)
            job['truncation_side'] = self.one_of('left', 'right')
            job['stride'] = self.rng.randrange(4)
        if 'max_length' in job and self.chance(0.4):
            job['truncation'] = self.one_of('only_first', 'only_second')
        return job
