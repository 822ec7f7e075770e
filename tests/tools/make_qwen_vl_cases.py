#!/usr/bin/env python3
"""Writes tests/cases/qwen2_5_vl and qwen3_vl: tiny models of images of any size, and what
transformers 4.57.6 and Pillow make of texts with images.

    python tests/tools/make_qwen_vl_cases.py tests/cases/llava tests/cases

The first folder has the tokenizer, whose image token is <image>. qwen2_5_vl has tokenizer and image
processor. expected.safetensors has the inputs, the logits of the last tokens, and the tokens of
`generate`; that of qwen2_5_vl also the images of which they are, [3, height, width].
"""
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import (AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
                          Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen3VLConfig,
                          Qwen3VLForConditionalGeneration)

source, cases = sys.argv[1], Path(sys.argv[2])
torch.manual_seed(20261128)
TEXT = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True)


class Processor(Qwen2_5_VLProcessor):
    """With a tokenizer of another class, and without a processor of films."""

    def check_argument_for_proper_class(self, *_):
        pass


def written(model, folder, batch, **more):
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    model.eval().save_pretrained(folder)
    with torch.no_grad():
        logits = model(**batch).logits[:, -1]
        tokens = model.generate(**batch, max_new_tokens=6, do_sample=False)
    expected = dict(batch, logits=logits, tokens=tokens, **more)
    save_file({key: value.contiguous() for key, value in expected.items()},
              folder / 'expected.safetensors')


def qwen2_5_vl(folder):
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.image_token, tokenizer.video_token = '<image>', 'Q'
    token = tokenizer.convert_tokens_to_ids('<image>')
    text = dict(TEXT, hidden_size=4, num_hidden_layers=1, num_attention_heads=1,
                vocab_size=len(tokenizer), rope_scaling=dict(type='mrope', mrope_section=[0, 1, 1]),
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    vision = dict(depth=2, hidden_size=4, intermediate_size=6, num_heads=1, patch_size=2,
                  out_hidden_size=4, window_size=8, fullatt_block_indexes=[1], temporal_patch_size=1)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=token,
        vision_start_token_id=token - 1, tie_word_embeddings=True))
    images = Qwen2VLImageProcessor(patch_size=2, temporal_patch_size=1, min_pixels=30,
                                   max_pixels=100)
    processor = Processor(images, tokenizer, chat_template=tokenizer.chat_template)
    start = tokenizer.convert_ids_to_tokens(token - 1)
    pixels = [torch.randint(256, shape, dtype=torch.uint8) for shape in ((20, 31, 3), (10, 5, 3))]
    batch = processor(text=[f'{start}<image>a red heart {start}<image>', 'bone'], padding=True,
                      images=[Image.fromarray(image.numpy()) for image in pixels],
                      return_tensors='pt')
    named = {f'image_{i}': image.permute(2, 0, 1) for i, image in enumerate(pixels)}
    written(model, folder, batch, **named)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    images.save_pretrained(folder)
    for name in ('special_tokens_map.json', 'vocab.json', 'merges.txt', 'added_tokens.json'):
        (folder / name).unlink(missing_ok=True)  # tokenizer.json has the same
    place = folder / 'tokenizer.json'
    place.write_text(json.dumps(json.loads(place.read_text()), ensure_ascii=False,
                                separators=(',', ':')))


def qwen3_vl(folder):
    text = dict(TEXT, vocab_size=40, head_dim=8, rope_scaling=dict(
        rope_type='default', mrope_interleaved=True, mrope_section=[2, 1, 1]))
    vision = dict(depth=3, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2,
                  out_hidden_size=8, num_position_embeddings=9, temporal_patch_size=1,
                  deepstack_visual_indexes=[2, 0])
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=31, video_token_id=32,
        vision_start_token_id=33, vision_end_token_id=34, tie_word_embeddings=True))
    ids = torch.tensor([[5, 33, 31, 31, 31, 34, 7, 33, 31, 31, 34, 8],
                        [0, 0, 0, 0, 0, 9, 4, 33, 31, 34, 7, 3]])
    grids = torch.tensor([[1, 2, 6], [1, 4, 2], [1, 2, 2]])
    batch = dict(input_ids=ids, attention_mask=(ids > 0).long(), image_grid_thw=grids,
                 pixel_values=torch.randn(int(grids.prod(1).sum()), 12))
    written(model, folder, batch)


qwen2_5_vl(cases / 'qwen2_5_vl')
qwen3_vl(cases / 'qwen3_vl')
