#!/usr/bin/env python3
"""Writes cases of tiny models of sound and of pictures, and what transformers 5.24.0 makes of them, in
the format of tests/cases/README.md:

    python tests/tools/make_sound_picture_cases.py tests/cases
"""
import sys
from pathlib import Path

import torch
import transformers
from trained_case import STEPS, write_case

ROWS = 3


def parakeet(generator):
    mask = torch.ones(ROWS, 29, dtype=torch.int64)
    mask[1, 23:] = 0
    labels = torch.tensor([[1, 2, 2], [3, 0, 0], [4, 1, 0]])
    return dict(input_features=torch.randn(ROWS, 29, 8, generator=generator), attention_mask=mask,
                labels=labels[torch.randperm(ROWS, generator=generator)])


def logits_and_loss(model, batch):
    out = model(**batch)
    return out.logits, out.loss


CASES = {
    'parakeet_ctc': ('ParakeetForCTC', dict(
        model_type='parakeet_ctc', vocab_size=6, pad_token_id=0, encoder_config=dict(
            hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            conv_kernel_size=3, subsampling_factor=4, subsampling_conv_channels=4,
            num_mel_bins=8)), parakeet, logits_and_loss),
}


def new_model(architecture, config, generator):
    kind = transformers.AutoConfig.for_model(**config)
    model = getattr(transformers, architecture)(kind).eval()
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point() or 'inv_freq' in key:
            continue
        values = torch.randn(tensor.shape, generator=generator)
        is_norm = 'norm' in key and key.endswith('weight')
        values = values * 0.2 + 1 if is_norm else values * 0.3
        tensor.data.copy_(values.abs() + 0.5 if key.endswith('running_var') else values)
    return model


def main():
    for number, (case, (architecture, config, new_batch, run)) in enumerate(CASES.items()):
        generator = torch.Generator().manual_seed(number)
        model = new_model(architecture, config, generator)
        write_case(Path(sys.argv[1]) / case, architecture, model,
                   [new_batch(generator) for _ in range(STEPS)], run)


main()
