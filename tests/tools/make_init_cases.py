#!/usr/bin/env python3
"""Writes tests/lua/init_cases.json: how transformers 4.57.6 initialises its models. For each
configuration, by the name of the parameter: shape, mean and standard deviation (of many models, so
that they are nearly exact), and which rows are zero although others are not.

    python tests/tools/make_init_cases.py tests/lua/init_cases.json
"""
import copy
import json
import sys

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification,
                          AutoModelForMaskedLM, AutoModelForSeq2SeqLM,
                          AutoModelForSequenceClassification, VisionEncoderDecoderModel)

N_MODELS = 30
LLAMA = dict(model_type='llama', vocab_size=90, hidden_size=64, intermediate_size=96,
             num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2)
OPT = dict(model_type='opt', vocab_size=90, hidden_size=64, num_hidden_layers=2, ffn_dim=96,
           num_attention_heads=4, max_position_embeddings=40)
GPTJ = dict(model_type='gptj', vocab_size=90, n_positions=40, n_embd=64, n_layer=2, n_head=4,
            rotary_dim=8)
T5 = dict(model_type='t5', vocab_size=90, d_model=48, d_kv=8, d_ff=96, num_layers=2, num_heads=4)
BART = dict(model_type='bart', vocab_size=90, d_model=48, max_position_embeddings=40,
            encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=96,
            decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64)
VIT = dict(model_type='vit', hidden_size=48, num_hidden_layers=1, num_attention_heads=4,
           intermediate_size=96, image_size=16, patch_size=4)
BERT = dict(vocab_size=90, hidden_size=64, num_hidden_layers=2, intermediate_size=96,
            num_attention_heads=4, max_position_embeddings=40, pad_token_id=3)
ENCODERS = [dict(BERT, model_type=name) for name in ('bert', 'roberta', 'electra', 'modernbert')] + [
    dict(BERT, model_type='deberta-v2', relative_attention=True, pos_att_type=['c2p', 'p2c']),
    dict(model_type='distilbert', vocab_size=90, dim=64, n_layers=1, n_heads=4, hidden_dim=96,
         max_position_embeddings=40),
    dict(BERT, model_type='modernbert', architectures=['ModernBertForSequenceClassification'],
         initializer_range=0.1, classifier_bias=True, norm_bias=True)]
NO_CAUSAL_LM = {'t5': AutoModelForSeq2SeqLM, 'bart': AutoModelForSeq2SeqLM,
                'vit': AutoModelForImageClassification}

CONFIGS = [
    dict(model_type='gpt2', vocab_size=90, n_positions=40, n_embd=64, n_layer=2, n_head=4),
    GPTJ,
    dict(GPTJ, tie_word_embeddings=True, n_inner=96, initializer_range=0.05),
    LLAMA,
    dict(LLAMA, tie_word_embeddings=True, head_dim=16, attention_bias=True, mlp_bias=True,
         pad_token_id=3, initializer_range=0.05),
    OPT,
    dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=48, init_std=0.05, pad_token_id=7),
    dict(OPT, _remove_final_layer_norm=True, tie_word_embeddings=False, enable_bias=False),
    T5,
    dict(T5, feed_forward_proj='gated-gelu', tie_word_embeddings=False, initializer_factor=0.5,
         num_decoder_layers=1),
    BART,
    dict(BART, init_std=0.05, pad_token_id=7),
    dict(VIT, num_labels=5),
    dict(VIT, qkv_bias=False, initializer_range=0.9, num_channels=1),
    dict(model_type='vision-encoder-decoder', encoder=VIT,
         decoder=dict(model_type='gpt2', vocab_size=90, n_positions=40, n_embd=64, n_layer=2,
                      n_head=4, add_cross_attention=True)),
    *ENCODERS,
]


def new_model(config, seed):
    torch.manual_seed(seed)
    kind = AutoConfig.for_model(**copy.deepcopy(config))
    if config['model_type'] == 'vision-encoder-decoder':
        model = VisionEncoderDecoderModel(kind)
    elif config in ENCODERS:
        is_head = 'architectures' in config
        model = (AutoModelForSequenceClassification if is_head else AutoModelForMaskedLM).from_config(
            kind)
    else:
        model = NO_CAUSAL_LM.get(config['model_type'], AutoModelForCausalLM).from_config(kind)
    stored = model.state_dict()
    tensors = dict(model.named_parameters())
    tensors.update({name: t for name, t in model.named_buffers() if name in stored})
    return {name: t.detach().double() for name, t in tensors.items() if 'pooler' not in name}


def zero_rows(t):
    if t.dim() < 2 or not t.any():
        return []
    return [i for i in range(t.shape[0]) if not t[i].any()]


def main():
    cases = []
    for config in CONFIGS:
        models = [new_model(config, seed) for seed in range(N_MODELS)]
        params = {}
        for name, first in models[0].items():
            all_values = torch.stack([model[name] for model in models])
            params[name] = dict(shape=list(first.shape), mean=round(all_values.mean().item(), 5),
                                std=round(all_values.std().item(), 5), zero_rows=zero_rows(first))
        cases.append(dict(config=config, params=params))
    with open(sys.argv[1], 'w', encoding='utf-8') as f:
        f.write('[\n')
        for i, case in enumerate(cases):
            f.write('{"config": %s, "params": {\n' % json.dumps(case['config']))
            lines = [f' {json.dumps(k)}: {json.dumps(v)}' for k, v in case['params'].items()]
            f.write(',\n'.join(lines) + '\n}}' + (',\n' if i + 1 < len(cases) else '\n'))
        f.write(']\n')


main()
