"""Writes tests/lua/audio_cases: small sound files of every kind that is read, with the samples that
are in them (of Ogg files those that soundfile reads), sounds that torchaudio has resampled, features
as of transformers, and error rates of jiwer: make_audio_cases.py tests/lua/audio_cases

Needs torch 2.11, torchaudio 2.11, soundfile, transformers 4.57.6 and jiwer.
"""
import json
import random
import sys
from pathlib import Path

import jiwer
import numpy as np
import soundfile
import torch
import torchaudio.functional
from safetensors.torch import save_file
from transformers import WhisperFeatureExtractor

RATE = 8000
RATIOS = [(8000, 16000), (16000, 8000), (44100, 16000), (22050, 16000), (16000, 22050),
          (48000, 16000), (11025, 8000), (16000, 16001), (7, 3), (3, 7)]
FEATURES = {
    'short': dict(chunk_length=1), 'mels128': dict(chunk_length=1, feature_size=128),
    'other': dict(chunk_length=2, feature_size=13, sampling_rate=8000, hop_length=100, n_fft=256),
}


def sound(n, rate, generator):
    t = np.arange(n) / rate
    x = sum(generator.uniform(0.05, 0.3) * np.sin(2 * np.pi * f * t + f)
            for f in generator.uniform(50, rate / 3, 4))
    return x * np.hanning(n) + 0.02 * generator.standard_normal(n)


def files(out, generator, arrays):
    stereo = np.stack([sound(800, RATE, generator) for _ in range(2)], 1).clip(-0.99, 0.99)
    for name, data, subtype, bits in [
            ('pcm8.wav', stereo, 'PCM_U8', 8), ('pcm16.wav', stereo, 'PCM_16', 16),
            ('pcm24.wav', stereo[:, :1], 'PCM_24', 24), ('pcm32.wav', stereo[:400], 'PCM_32', 32),
            ('float.wav', stereo[:300], 'FLOAT', 0), ('pcm16.flac', stereo, 'PCM_16', 16),
            ('mono24.flac', stereo[:, :1], 'PCM_24', 24), ('vorbis.ogg', stereo, 'VORBIS', None),
            ('opus.ogg', stereo, 'OPUS', None)]:
        path = str(out / name)
        if bits:
            numbers = np.round(data * 2 ** (bits - 1)).astype(np.int64)
            kind = dict(file=path, samplerate=RATE, subtype=subtype)
            if bits == 16:
                soundfile.write(data=numbers.astype(np.int16), **kind)
            else:
                soundfile.write(data=(numbers << (32 - bits)).astype(np.int32), **kind)
            data = numbers / 2 ** (bits - 1)
        else:
            soundfile.write(path, data, RATE, subtype=subtype)
            if bits is None:
                data = soundfile.read(path, always_2d=True)[0]
        arrays[f'file.{name}'] = torch.from_numpy(np.ascontiguousarray(data.T)).float()


def error_rates():
    draw, words = random.Random(1), ['a', 'red', 'heart', 'über', 'zwei', 'x', '日本', 'the  ', ' and\t']
    cases = []
    for _ in range(40):
        references = [' '.join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(3)]
        predictions = [' '.join(draw.choices(words, k=draw.randint(0, 9))) if draw.random() < 0.3
                       else ' '.join(w for w in r.split(' ') if draw.random() < 0.8)
                       for r in references]
        cases.append(dict(predictions=predictions, references=references,
                          wer=jiwer.wer(references, predictions),
                          cer=jiwer.cer(references, predictions)))
    return cases


def main(out):
    out.mkdir(exist_ok=True)
    generator, arrays = np.random.default_rng(1), {}
    files(out, generator, arrays)
    for source, target in RATIOS:
        x = torch.from_numpy(np.stack([sound(300, 300, generator) for _ in range(2)])).float()
        arrays[f'resample.{source}.{target}.from'] = x
        arrays[f'resample.{source}.{target}.to'] = torch.cat(
            [torchaudio.functional.resample(row, source, target) for row in x.split(1)])
    sounds = [sound(n, 16000, generator).astype(np.float32) for n in (5000, 2345)]
    for i, x in enumerate(sounds):
        arrays[f'sound.{i}'] = torch.from_numpy(x)
    for name, config in FEATURES.items():
        extractor = WhisperFeatureExtractor(**config)
        arrays[f'features.{name}'] = torch.as_tensor(extractor(
            sounds, sampling_rate=extractor.sampling_rate)['input_features'])[:, :, ::5].clone()
    longest = WhisperFeatureExtractor(chunk_length=1)(
        sounds, sampling_rate=16000, padding='longest', truncation=False, return_attention_mask=True)
    arrays['features.longest'] = torch.as_tensor(longest['input_features'])
    arrays['mask.longest'] = torch.as_tensor(longest['attention_mask']).long()
    save_file({key: value.contiguous() for key, value in arrays.items()}, out / 'expected.safetensors')
    (out / 'cases.json').write_text(json.dumps(dict(features=FEATURES, error_rates=error_rates()),
                                               ensure_ascii=False) + '\n')


main(Path(sys.argv[1]))
