"""redco-lua prepares sounds and characters for models of samples as transformers does.

sound_peer.py REDCO_LUA SOURCE
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
LETTERS = "ABCDEFGHIJ'ÉÜß"


def compare(folder, draw):
    """Returns what differs, as texts."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *draw.sample(LETTERS, draw.randint(3, 12))]
    draw.shuffle(tokens)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"),
                                                  do_lower_case=draw.random() < 0.3)
    tokenizer.save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(
        do_normalize=draw.random() < 0.8, return_attention_mask=draw.random() < 0.5)
    extractor.save_pretrained(folder)
    letters = [token for token in tokens if len(token) == 1 and token != "|"]
    texts = ["".join(draw.choice([*letters, " ", "X"]) for _ in range(draw.randint(1, 20)))
             for _ in range(10)]
    ids = [[draw.randrange(len(tokens)) for _ in range(draw.randint(1, 30))] for _ in range(20)]
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    sounds = [torch.randn(draw.randint(20, 400), generator=generator) * 2 + 0.5 for _ in range(3)]
    save_file({f"sound{i}": sound for i, sound in enumerate(sounds, 1)},
              folder / "sounds.safetensors")
    (folder / "jobs.json").write_text(json.dumps(
        dict(texts=texts, ids=ids, n_sounds=len(sounds))))
    subprocess.run([PROGRAM, SOURCE / "tests" / "peers" / "sound.lua", folder], check=True)
    found = json.loads((folder / "found.json").read_text())
    wrong = []
    for text, has in zip(texts, found["ids"]):
        expected = tokenizer(text).input_ids
        if has != expected:
            wrong.append(f"{text!r}: {has}, expected {expected}")
    for row, has in zip(ids, found["texts"]):
        expected = tokenizer.decode(row)
        if has != expected:
            wrong.append(f"{row}: {has!r}, expected {expected!r}")
    arrays = load_file(folder / "found.safetensors")
    expected = extractor([sound.numpy() for sound in sounds], sampling_rate=16000, padding=True)
    values = torch.from_numpy(numpy.stack(expected["input_values"]))
    if not torch.allclose(arrays["values"], values, atol=1e-5):
        wrong.append(f"values differ by {(arrays['values'] - values).abs().max()}")
    mask = expected.get("attention_mask")
    if (mask is None) != ("mask" not in arrays):
        wrong.append("only one has a mask")
    elif mask is not None and arrays["mask"].tolist() != numpy.stack(mask).tolist():
        wrong.append("the masks differ")
    return wrong


n_wrong = 0
for seed in range(8):
    with tempfile.TemporaryDirectory() as folder:
        for message in compare(pathlib.Path(folder), random.Random(seed)):
            n_wrong += 1
            print(f"seed {seed}: {message}")
print(f"8 folders, {n_wrong} differences")
raise SystemExit(n_wrong > 0)
