"""Makes the examples' byte-level BPE tokenizers; takes Python's package `tokenizers`.

    python3 make_tokenizer.py t5 2000 text_to_text/data/verses.jsonl text_to_text/data/tokenizer
    python3 make_tokenizer.py gpt2 600 image_to_text/data/captions.txt image_to_text/data/processor
    python3 make_tokenizer.py gpt2 2048 language_modeling/data/corpus.txt language_modeling/data/tokenizer

t5: texts end with </s>; gpt2: nothing is added.
"""
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

kind, size, data, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
is_t5 = kind == "t5"
special = ["<pad>", "</s>"] if is_t5 else ["<|endoftext|>"]


def texts():
    for line in open(data, encoding="utf-8"):
        yield from json.loads(line).values() if data.suffix == ".jsonl" else [line]


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
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": special[0],
    "eos_token": special[-1],
    "add_prefix_space": is_t5,  # transformers goes by this one
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}
(folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
