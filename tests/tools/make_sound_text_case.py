#!/usr/bin/env python3
"""Writes tests/cases/qwen2_audio: a tiny Qwen2-Audio with windows of one second, its tokenizer and
feature extractor, and what transformers 4.57.6 makes of a text with a sound and one without.

    python tests/tools/make_sound_text_case.py tests/cases/gpt2 tests/cases/qwen2_audio

expected.safetensors has the sound [samples], the batch of the processor, the logits of the first
text's last token and the tokens of `generate`.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (AutoTokenizer, Qwen2AudioConfig, Qwen2AudioEncoderConfig,
                          Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor, Qwen2Config,
                          WhisperFeatureExtractor)

WORD = '<|audio_bos|><|AUDIO|><|audio_eos|>'
TEXTS = [WORD + 'a red heart', 'bone']

source, target = sys.argv[1], Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(source)
tokenizer.add_special_tokens(dict(pad_token='<pad>', additional_special_tokens=[
    '<|audio_bos|>', '<|AUDIO|>', '<|audio_eos|>']))
tokenizer.padding_side = 'left'
sound_token = tokenizer.convert_tokens_to_ids('<|AUDIO|>')
sound = Qwen2AudioEncoderConfig(num_mel_bins=8, d_model=8, encoder_layers=1,
                                encoder_attention_heads=2, encoder_ffn_dim=12,
                                max_source_positions=50)
text = Qwen2Config(vocab_size=len(tokenizer), hidden_size=2, intermediate_size=12,
                   num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                   max_position_embeddings=64, tie_word_embeddings=False,
                   eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
torch.manual_seed(20261130)
model = Qwen2AudioForConditionalGeneration(Qwen2AudioConfig(
    sound, text, audio_token_index=sound_token)).eval()
for parameter in model.parameters():
    parameter.data.normal_(std=0.5)
extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
template = ("{% for m in messages %}{{ m.role }}: {% for part in m.content %}{% if part.type == 'audio' "
            f"%}}{WORD}{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}\n{{% endfor %}}")
processor = Qwen2AudioProcessor(extractor, tokenizer, chat_template=template)
samples = torch.randn(1900) * torch.linspace(0, 0.3, 1900)
batch = processor(text=TEXTS, audio=[samples.numpy()], padding=True, return_tensors='pt',
                  sampling_rate=16000)
model.save_pretrained(target)
tokenizer.chat_template = template
tokenizer.save_pretrained(target, save_jinja_files=False)
extractor.save_pretrained(target)
with torch.no_grad():
    logits = model(**batch).logits[:1, -1]
    tokens = model.generate(**batch, max_new_tokens=6, do_sample=False)
arrays = {'sound': samples, **batch, 'logits': logits, 'tokens': tokens}
save_file({name: array.contiguous() for name, array in arrays.items()},
          target / 'expected.safetensors')
for name in ('special_tokens_map.json', 'vocab.json', 'merges.txt', 'added_tokens.json'):
    (target / name).unlink(missing_ok=True)  # tokenizer.json has the same
place = target / 'tokenizer.json'
place.write_text(json.dumps(json.loads(place.read_text()), ensure_ascii=False,
                            separators=(',', ':')))
place = target / 'preprocessor_config.json'
config = json.loads(place.read_text())
config.pop('mel_filters', None)
place.write_text(json.dumps(config, indent=2) + '\n')
for file in target.iterdir():
    file.chmod(0o644)
