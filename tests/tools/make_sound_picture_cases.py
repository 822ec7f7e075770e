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


def clap(generator):
    return dict(input_features=torch.randn(ROWS, 4, 16, 4, generator=generator),
                is_longer=torch.tensor([[True], [False], [True]]),
                input_ids=torch.randint(4, 12, (ROWS, 5), generator=generator))


def sam2(generator):
    """Points and boxes of two objects of each image, and a mask of each image."""
    labels = torch.randint(-1, 2, (2, 2, 2), generator=generator)
    labels[0, 1, 1] = -10
    return dict(pixel_values=torch.randn(2, 1, 16, 16, generator=generator),
                input_points=torch.rand(2, 2, 2, 2, generator=generator) * 16,
                input_labels=labels, input_boxes=torch.rand(2, 2, 4, generator=generator) * 16,
                input_masks=torch.randn(2, 1, 8, 8, generator=generator))


def masks_and_loss(model, batch):
    out = model(**batch)
    found = out.pred_masks, out.iou_scores, out.object_score_logits
    return out.pred_masks, torch.cat([each.flatten(1) for each in found], 1).pow(2).mean()


def angles_and_loss(model, batch):
    out = model(**batch, return_loss=True)
    return out.logits_per_audio, out.loss


def logits_and_loss(model, batch):
    out = model(**batch)
    return out.logits, out.loss


CASES = {
    'clap': ('ClapModel', dict(
        model_type='clap', projection_dim=6, text_config=dict(
            vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=8, pad_token_id=1), audio_config=dict(
                window_size=2, num_mel_bins=4, spec_size=8, patch_size=2, patch_stride=[2, 2],
                depths=[1, 1], num_attention_heads=[1, 2], hidden_size=8,
                patch_embeds_hidden_size=4, enable_fusion=True, aff_block_r=2)),
        clap, angles_and_loss),
    'parakeet_ctc': ('ParakeetForCTC', dict(
        model_type='parakeet_ctc', vocab_size=6, pad_token_id=0, encoder_config=dict(
            hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            conv_kernel_size=3, subsampling_factor=4, subsampling_conv_channels=4,
            num_mel_bins=8)), parakeet, logits_and_loss),
    'sam2': ('Sam2Model', dict(
        model_type='sam2', vision_config=dict(
            model_type='sam2_vision_model', fpn_hidden_size=16, fpn_top_down_levels=[0, 1],
            backbone_channel_list=[8, 6, 4], backbone_feature_sizes=[[8, 8], [4, 4], [2, 2]],
            backbone_config=dict(
                model_type='sam2_hiera_det_model', hidden_size=4, num_channels=1,
                patch_kernel_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1],
                num_query_pool_stages=2, window_positional_embedding_background_size=[2, 2],
                mlp_ratio=1.0, blocks_per_stage=[1, 1, 1], embed_dim_per_stage=[4, 6, 8],
                num_attention_heads_per_stage=[1, 1, 2], window_size_per_stage=[4, 2, 2],
                global_attention_blocks=[0])),
        prompt_encoder_config=dict(hidden_size=16, image_size=16, patch_size=8,
                                   mask_input_channels=16),
        mask_decoder_config=dict(hidden_size=16, mlp_dim=6, num_hidden_layers=1,
                                 num_attention_heads=2, iou_head_depth=2, iou_head_hidden_dim=4,
                                 num_multimask_outputs=2)),
        sam2, masks_and_loss),
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
        if key.startswith('logit_scale'):
            values = torch.tensor(1.5)
        tensor.data.copy_(values.abs() + 0.5 if key.endswith('running_var') else values)
    if hasattr(model, 'shared_image_embedding'):  # one in all folders
        own = model.shared_image_embedding.positional_embedding
        model.prompt_encoder.shared_embedding.positional_embedding.copy_(own)
    return model


def main():
    for number, (case, (architecture, config, new_batch, run)) in enumerate(CASES.items()):
        generator = torch.Generator().manual_seed(number)
        model = new_model(architecture, config, generator)
        write_case(Path(sys.argv[1]) / case, architecture, model,
                   [new_batch(generator) for _ in range(STEPS)], run)


main()
