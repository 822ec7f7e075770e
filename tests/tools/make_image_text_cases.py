#!/usr/bin/env python3
"""Writes cases of tiny models of texts and images, and what transformers 4.57.6 makes of them, in the
format of tests/cases/README.md:

    python tests/tools/make_image_text_cases.py tests/cases

Models that return features have fwd.logits for these; their loss is the mean of the squares.
"""
import copy
import functools
import sys
from pathlib import Path

import torch
import transformers
from trained_case import STEPS, write_case

TEXT = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=8, bos_token_id=38, eos_token_id=39,
            pad_token_id=39)
IMAGE = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
             image_size=12, patch_size=4)
ONE_LAYER = dict(IMAGE, num_hidden_layers=1)
SIGLIP_TEXT = dict(TEXT, pad_token_id=1, eos_token_id=1, projection_size=24)
CASES = {
    'clip': ('CLIPModel', dict(model_type='clip', text_config=TEXT, vision_config=IMAGE,
                               projection_dim=20)),
    # The end token of old folders: that with the largest number.
    'clip_text': ('CLIPTextModelWithProjection', dict(
        TEXT, model_type='clip_text_model', eos_token_id=2, hidden_act='gelu', projection_dim=20)),
    'clip_vision': ('CLIPVisionModel', dict(ONE_LAYER, model_type='clip_vision_model',
                                            image_size=13)),
    'siglip': ('SiglipModel', dict(model_type='siglip', text_config=SIGLIP_TEXT,
                                   vision_config=IMAGE)),
    'vit': ('ViTForImageClassification', dict(ONE_LAYER, model_type='vit', num_labels=5)),
    'vit_features': ('ViTModel', dict(ONE_LAYER, model_type='vit')),
}
ROWS = 4


def new_model(name, generator):
    architecture, config = CASES[name]
    kind = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    model = getattr(transformers, architecture)(kind).eval()
    for key, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if 'norm' in key or 'layrnorm' in key:
            values = values * 0.2 + (1 if key.endswith('weight') else 0)
        elif 'logit' in key:
            values = torch.full(parameter.shape, 1.5 if 'scale' in key else -0.7)
        else:
            values *= 0.3
        parameter.data.copy_(values)
    return model


def new_batch(name, config, generator):
    batch = {}
    text = config.text_config if name in ('clip', 'siglip') else config
    image = config.vision_config if name in ('clip', 'siglip') else config
    if hasattr(text, 'vocab_size'):
        ids = torch.randint(3, 38, (ROWS, 8), generator=generator)
        mask = torch.ones_like(ids)
        for row in range(ROWS):
            length = int(torch.randint(3, 9, (), generator=generator))
            ids[row, length - 1:] = text.pad_token_id
            mask[row, length:] = 0
        batch['input_ids'] = ids
        if name != 'siglip':
            batch['attention_mask'] = mask
    if hasattr(image, 'image_size'):
        size = image.image_size
        batch['pixel_values'] = torch.randn(ROWS, 3, size, size, generator=generator)
    if name == 'vit':
        batch['labels'] = torch.randint(5, (ROWS,), generator=generator)
    return batch


def run(name, model, batch):
    """The output and the loss."""
    out = model(**batch, **(dict(return_loss=True) if name in ('clip', 'siglip') else {}))
    if name in ('clip', 'siglip'):
        return out.logits_per_image, out.loss
    if name == 'vit':
        return out.logits, out.loss
    features = out.text_embeds if name == 'clip_text' else out.pooler_output
    return features, features.pow(2).mean()


for number, case in enumerate(sorted(CASES)):
    generator = torch.Generator().manual_seed(number)
    made = new_model(case, generator)
    write_case(Path(sys.argv[1]) / case, CASES[case][0], made,
               [new_batch(case, made.config, generator) for _ in range(STEPS)],
               functools.partial(run, case))
