"""Makes a tokenizer of 2,000 tokens from the pairs of a JSONL file; takes Python's `tokenizers`.

    python3 make_tokenizer.py verses.jsonl tokenizer
"""
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

pairs, folder = Path(sys.argv[1]), Path(sys.argv[2])
special = ["<pad>", "</s>"]  # T5's numbers for them: 0 and 1

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
# Without the space that add_prefix_space puts before a text.
tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
tokenizer.post_processor = processors.TemplateProcessing(
    single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
)
tokenizer.train_from_iterator(
    (text for line in open(pairs, encoding="utf-8") for text in json.loads(line).values()),
    trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "clean_up_tokenization_spaces": False,
}
(folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
