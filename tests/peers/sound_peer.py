"""redco-lua prepares sounds and texts for models of sound as transformers does.

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


def wav2vec2(folder, draw):
    """Samples, and characters."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *draw.sample(LETTERS, draw.randint(3, 12))]
    draw.shuffle(tokens)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"),
                                                  do_lower_case=draw.random() < 0.3)
    extractor = transformers.Wav2Vec2FeatureExtractor(
        do_normalize=draw.random() < 0.8, return_attention_mask=draw.random() < 0.5)
    letters = [token for token in tokens if len(token) == 1 and token != "|"]
    texts = ["".join(draw.choice([*letters, " ", "X"]) for _ in range(draw.randint(1, 20)))
             for _ in range(10)]
    ids = [[draw.randrange(len(tokens)) for _ in range(draw.randint(1, 30))] for _ in range(20)]
    return extractor, [draw.randint(20, 400) for _ in range(3)], tokenizer, texts, ids


def parakeet(folder, draw):
    """Spectra, and the tokens of a vocabulary."""
    place = SOURCE / "tests/cases/llama/tokenizer.json"
    tokenizer = transformers.ParakeetTokenizer(tokenizer_file=str(place), pad_token="<pad>",
                                               unk_token="<unk>")
    n_fft = draw.choice([64, 100, 128])
    hop = draw.randint(10, 40)
    extractor = transformers.ParakeetFeatureExtractor(
        feature_size=draw.randint(4, 12), n_fft=n_fft, win_length=draw.randint(n_fft // 2, n_fft),
        hop_length=hop, preemphasis=draw.choice([0.97, 0.5, 0.0]))
    texts = [" ".join(draw.choices(["the", "matter", "of", "a", "school", "principal"],
                                   k=draw.randint(1, 8))) for _ in range(10)]
    ids = [[draw.randrange(3, 300) for _ in range(draw.randint(1, 30))] for _ in range(20)]
    for row in ids:
        row[::3] = [row[0]] * len(row[::3])
        row[1::4] = [tokenizer.pad_token_id] * len(row[1::4])
    return extractor, [draw.randint(3 * hop, 900) for _ in range(3)], tokenizer, texts, ids


def clap(folder, draw):
    """Spectra of one length: some sounds are shorter, one may be longer."""
    n_fft, rate = draw.choice([64, 128]), draw.choice([500, 1000])
    extractor = transformers.ClapFeatureExtractor(
        feature_size=64, sampling_rate=rate, max_length_s=draw.randint(1, 2),
        hop_length=draw.randint(10, 40), fft_window_size=n_fft, frequency_min=draw.choice([0, 50]),
        frequency_max=rate // 2, truncation=draw.choice(["fusion", "rand_trunc"]),
        padding=draw.choice(["repeatpad", "repeat", "pad"]))
    most = extractor.nb_max_samples
    lengths = [draw.randint(n_fft, most) for _ in range(2)] + [most]
    if draw.random() < 0.6:
        lengths.append(most + draw.randint(1, most))
    return extractor, lengths, None, [], []


KINDS = [wav2vec2, clap]
if transformers.__version__.startswith("5."):  # which does without librosa
    KINDS.append(parakeet)


def of_clap(extractor, sounds, found):
    """What of CLAP's features is wrong. Longer sound is cut at random places."""
    fuses = extractor.truncation == "fusion"
    most, filters = extractor.nb_max_samples, (extractor.mel_filters if fuses
                                               else extractor.mel_filters_slaney)
    n_frames = most // extractor.hop_length + 1
    # The library's own number for no sound that is longer is drawn.
    has_longer = any(len(sound) > most for sound in sounds)
    for i, (sound, own, is_longer) in enumerate(zip(sounds, found["values"], found["mask"])):
        expected, longer = extractor._get_input_mel(sound, most, extractor.truncation,
                                                    extractor.padding)
        expected = torch.from_numpy(expected)
        if is_longer.item() != (longer or fuses and not has_longer and i == 0):
            yield f"sound {i} is longer: {is_longer.item()}"
        if own.shape != expected.shape:
            yield f"{tuple(own.shape)}, expected {tuple(expected.shape)}"
            continue
        parts = own if fuses else own[:1]
        if longer:
            mel = torch.from_numpy(extractor._np_extract_fbank_features(sound, filters))
            starts = range(len(mel) - n_frames + 1) if fuses else range(len(sound) - most + 1)
            places = [[start for start in starts if torch.allclose(
                part, mel[start:start + n_frames] if fuses else torch.from_numpy(
                    extractor._np_extract_fbank_features(sound[start:start + most], filters)),
                atol=2e-3)] for part in parts[fuses:]]
            thirds = numpy.array_split(list(starts), 3) if fuses else [list(starts)]
            for own_places, third in zip(places, thirds):
                if not {*own_places} & ({*third} or {0}):
                    yield f"a part of sound {i} is from {own_places}, expected one of {third}"
            parts, expected = own[:int(fuses)], expected[:int(fuses)]
        if not torch.allclose(parts, expected, atol=2e-3):
            yield f"values of sound {i} differ by {(parts - expected).abs().max()}"


def of_others(extractor, sounds, found):
    options = {} if isinstance(extractor, transformers.Wav2Vec2FeatureExtractor) else dict(
        return_tensors="np")
    expected = extractor(sounds, sampling_rate=16000, padding="longest", **options)
    values = torch.from_numpy(numpy.stack(
        expected["input_values" if "input_values" in expected else "input_features"]))
    if found["values"].shape != values.shape:
        yield f"{tuple(found['values'].shape)}, expected {tuple(values.shape)}"
    elif not torch.allclose(found["values"], values, atol=1e-5 if not options else 1e-3):
        yield f"values differ by {(found['values'] - values).abs().max()}"
    mask = expected.get("attention_mask")
    if (mask is None) != ("mask" not in found):
        yield "only one has a mask"
    elif mask is not None and found["mask"].tolist() != numpy.stack(mask).astype(int).tolist():
        yield "the masks differ"


def compare(folder, kind, draw):
    """Returns what differs, as texts."""
    extractor, lengths, tokenizer, texts, ids = kind(folder, draw)
    extractor.save_pretrained(folder)
    if tokenizer:
        tokenizer.save_pretrained(folder)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    sounds = [torch.randn(length, generator=generator) * 2 + 0.5 for length in lengths]
    save_file({f"sound{i}": sound for i, sound in enumerate(sounds, 1)},
              folder / "sounds.safetensors")
    (folder / "jobs.json").write_text(json.dumps(
        dict(texts=texts, ids=ids, n_sounds=len(sounds))))
    subprocess.run([PROGRAM, SOURCE / "tests" / "peers" / "sound.lua", folder], check=True)
    results = json.loads((folder / "found.json").read_text())
    wrong = []
    for text, has in zip(texts, results["ids"]):
        expected = tokenizer(text, add_special_tokens=False).input_ids
        if has != expected:
            wrong.append(f"{text!r}: {has}, expected {expected}")
    for row, has in zip(ids, results["texts"]):
        expected = tokenizer.decode(row)
        if has != expected:
            wrong.append(f"{row}: {has!r}, expected {expected!r}")
    of_kind = of_clap if kind is clap else of_others
    return wrong + list(of_kind(extractor, [sound.numpy() for sound in sounds],
                                load_file(folder / "found.safetensors")))


n_wrong = 0
for kind in KINDS:
    for seed in range(8):
        with tempfile.TemporaryDirectory() as folder:
            for message in compare(pathlib.Path(folder), kind, random.Random(seed)):
                n_wrong += 1
                print(f"{kind.__name__}, seed {seed}: {message}")
print(f"{8 * len(KINDS)} folders, {n_wrong} differences")
raise SystemExit(n_wrong > 0)
