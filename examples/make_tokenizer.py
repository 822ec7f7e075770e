"""Makes the examples' tokenizers, of byte-level BPE or word pieces; takes Python's package `tokenizers`.

    python3 make_tokenizer.py t5 2000 pairs.jsonl text_to_text/data/tokenizer
    python3 make_tokenizer.py gpt2 600 image_to_text/data/captions.txt image_to_text/data/processor
    python3 make_tokenizer.py whisper 300 speech_to_text/data/words.txt speech_to_text/data/processor
    python3 make_tokenizer.py gpt2 2048 language_modeling/data/corpus.txt language_modeling/data/tokenizer
    python3 make_tokenizer.py clip 900 image_to_text/data/captions.txt zero_shot/data/processor
    python3 make_tokenizer.py bert 3000 classification/data/glosses.txt classification/data/tokenizer

text_to_text/data/make_pairs.lua writes pairs.jsonl. t5: texts end with </s>; gpt2: nothing is
added; whisper: texts begin with language and task; clip: the files of a CLIPTokenizer; bert: word
pieces, those of a BertTokenizer.
"""
import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

kind, size, data, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
is_t5 = kind == "t5"
special = ["<pad>", "</s>"] if is_t5 else ["<|endoftext|>"]
# Whisper's follow the vocabulary: what is after them are times.
last = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
is_whisper = kind == "whisper"


def texts():
    for line in open(data, encoding="utf-8"):
        yield from json.loads(line).values() if data.suffix == ".jsonl" else [line]


def write_clip():
    """Bytes, bytes at the end of a word, merges, and the two special tokens."""
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "removed", True), pre_tokenizers.ByteLevel(False)]
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        (text.lower() for text in texts()),
        trainers.BpeTrainer(
            vocab_size=size - 2,
            initial_alphabet=letters,
            end_of_word_suffix="</w>",
            show_progress=False,
        ),
    )
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = letters + [letter + "</w>" for letter in letters]
    merges = merges[: size - len(tokens) - 2]
    tokens += [left + right for left, right in merges] + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", "utf-8")
    lines = ["#version: 0.2"] + [" ".join(merge) for merge in merges]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_bert():
    """Word pieces; the files of a BertTokenizer."""
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        texts(),
        trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, first.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}
    config |= {"model_max_length": 512} | dict(zip(names, first))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if kind in ("clip", "bert"):
    write_clip() if kind == "clip" else write_bert()
    sys.exit()

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=is_t5)
tokenizer.decoder = decoders.ByteLevel()
if is_t5:
    # Without the space that add_prefix_space puts before a text.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", special.index("</s>"))]
    )
tokenizer.train_from_iterator(
    texts(),
    trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[] if is_whisper else special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
if is_whisper:
    tokenizer.add_special_tokens(last)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{' '.join(last[1:])} $A {last[0]}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in last],
    )
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
config = {
    "tokenizer_class": "WhisperTokenizer" if is_whisper else "PreTrainedTokenizerFast",
    "pad_token": special[0],
    "eos_token": special[1] if is_t5 else special[0],
    "add_prefix_space": is_t5,  # transformers goes by this one
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}
(folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
