"""Writes tests/lua/whisper_cases.json: what transformers' generate of Whisper gives on the model and
the features of tests/cases/whisper: make_whisper_cases.py tests/cases/whisper OUT.json
"""
import json
import sys

import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, WhisperForConditionalGeneration

GENERATION_CONFIG = dict(
    bos_token_id=560, eos_token_id=560, pad_token_id=560, decoder_start_token_id=561,
    is_multilingual=True, lang_to_id={'<|en|>': 562, '<|es|>': 563},
    task_to_id={'translate': 564, 'transcribe': 565}, no_timestamps_token_id=569,
    max_initial_timestamp_index=40, begin_suppress_tokens=[220, 560],
    suppress_tokens=[1, 2, 7, 81, 566, 567, 568], max_length=40, alignment_heads=[[0, 1]],
    forced_decoder_ids=[[1, None], [2, 565]], prev_sot_token_id=567)
# Name, features, options of the call, changes of the generation config.
CASES = [
    ('detected', 'short', {}, {}),
    ('language_and_task', 'short', dict(language='es', task='translate'), {}),
    ('language_name', 'short', dict(language='English', max_new_tokens=12), {}),
    ('two_languages', 'short', dict(language=['<|en|>', 'spanish'], task='transcribe'), {}),
    ('times', 'short', dict(return_timestamps=True, language='en'), {}),
    ('times_detected', 'short', dict(return_timestamps=True), {}),
    ('times_beam', 'short', dict(return_timestamps=True, num_beams=3, max_new_tokens=14), {}),
    ('beam', 'short', dict(num_beams=4, language='en', length_penalty=0.6, max_new_tokens=20), {}),
    ('rows', 'short', dict(num_return_sequences=2, num_beams=2, max_new_tokens=9), {}),
    ('penalty', 'short', dict(return_timestamps=True, repetition_penalty=1.5,
                              no_repeat_ngram_size=2), {}),
    ('times_of_the_file', 'short', {}, dict(return_timestamps=True, language='es')),
    ('only_english', 'short', {}, dict(is_multilingual=False, lang_to_id=None, task_to_id=None,
                                       forced_decoder_ids=None)),
    ('forced', 'short', {}, dict(forced_decoder_ids=[[1, 563], [2, 564]])),
    ('first_at_once', 'short', dict(return_timestamps=True, language='en'),
     dict(max_initial_timestamp_index=0)),
    ('no_limit_of_the_first', 'short', dict(return_timestamps=True, language='en'),
     dict(max_initial_timestamp_index=None)),
    ('few_frames', 'few', dict(return_timestamps=True, language='en'), {}),
    ('long', 'long', dict(return_timestamps=True), {}),
    ('long_in_spanish', 'long', dict(language='es', task='transcribe', max_new_tokens=10), {}),
    ('long_beam', 'long', dict(num_beams=2, language='en', max_new_tokens=16), {}),
    ('long_without_early_times', 'long', dict(language='en'), dict(
        suppress_tokens=list(range(570, 600)) + [81])),
    ('two_long', 'two_long', dict(language='en'), {}),
    ('two_long_beam', 'two_long', dict(language='en', num_beams=3), {}),
]


def main(folder, out):
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    arrays = load_file(f'{folder}/expected.safetensors')
    features = [arrays[f'batch{i}.input_features'] for i in range(5)]
    long = torch.cat(features, 2)[:, :, :430]
    mask = torch.ones(2, 430, dtype=torch.int64)
    mask[1, 260:] = 0
    inputs = dict(short=dict(input_features=features[0]),
                  few=dict(input_features=features[1][:, :, :64]),
                  long=dict(input_features=long[:1]),
                  two_long=dict(input_features=long, attention_mask=mask))
    cases = []
    for name, kind, options, changes in CASES:
        config = {key: value for key, value in {**GENERATION_CONFIG, **changes}.items()
                  if value is not None}
        model.generation_config = GenerationConfig(**config)
        torch.manual_seed(0)
        found = model.generate(**inputs[kind], return_segments=True, **options)
        segments = [[dict(start=round(float(s['start']), 6), end=round(float(s['end']), 6),
                          tokens=s['tokens'].tolist()) for s in row] for row in found['segments']]
        cases.append(dict(name=name, features=kind, options=options, generation_config=config,
                          sequences=found['sequences'].tolist(), segments=segments))
        print(name, [len(row) for row in segments], found['sequences'].shape)
    with open(out, 'w') as file:
        json.dump(cases, file, separators=(',', ':'))
        file.write('\n')


main(*sys.argv[1:])
