#!/usr/bin/env python3
"""Writes tests/cases/llava: a tiny LLaVA with its tokenizer and image processor, and what
transformers 4.57.6 and Pillow make of a text with an image and one without.

    python tests/tools/make_image_text_case.py tests/cases/gpt2 tests/cases/llava

expected.safetensors has the image [3, height, width], the batch of the processor, the logits of the
first text's last token and the tokens of `generate`.
"""
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import (AutoTokenizer, CLIPImageProcessor, CLIPVisionConfig, LlamaConfig,
                          LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor)

TEXTS = ['<image>a red heart', 'bone']

source, target = sys.argv[1], Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(source)
tokenizer.add_special_tokens(dict(additional_special_tokens=['<image>'], pad_token='<pad>'))
tokenizer.padding_side = 'left'
image_token = tokenizer.convert_tokens_to_ids('<image>')
vision = CLIPVisionConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                          num_attention_heads=2, image_size=12, patch_size=4, projection_dim=6)
text = LlamaConfig(vocab_size=len(tokenizer), hidden_size=4, intermediate_size=12,
                   num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                   max_position_embeddings=64, tie_word_embeddings=True,
                   eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
torch.manual_seed(20261128)
model = LlavaForConditionalGeneration(LlavaConfig(vision, text, image_token_index=image_token,
                                                  tie_word_embeddings=True)).eval()
for parameter in model.parameters():
    parameter.data.normal_(std=0.5)
crop = dict(height=12, width=12)
images = CLIPImageProcessor(size=dict(shortest_edge=12), crop_size=crop)
template = ("{% for m in messages %}{{ m.role }}: {% for part in m.content %}{% if part.type == 'image' "
            "%}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}")
processor = LlavaProcessor(images, tokenizer, patch_size=4, vision_feature_select_strategy='default',
                           num_additional_image_tokens=1, chat_template=template)
pixels = torch.randint(256, (20, 27, 3), dtype=torch.uint8)
batch = processor(text=TEXTS, images=[Image.fromarray(pixels.numpy())], padding=True,
                  return_tensors='pt')
model.save_pretrained(target)
tokenizer.chat_template = template
tokenizer.save_pretrained(target, save_jinja_files=False)
images.save_pretrained(target)
with torch.no_grad():
    logits = model(**batch).logits[:1, -1]
    tokens = model.generate(**batch, max_new_tokens=6, do_sample=False)
save_file({'image': pixels.permute(2, 0, 1).contiguous(), **batch, 'logits': logits,
           'tokens': tokens}, target / 'expected.safetensors')
for name in ('special_tokens_map.json', 'vocab.json', 'merges.txt', 'added_tokens.json'):
    (target / name).unlink(missing_ok=True)  # tokenizer.json has the same
place = target / 'tokenizer.json'
place.write_text(json.dumps(json.loads(place.read_text()), ensure_ascii=False,
                            separators=(',', ':')))
config = json.loads((target / 'config.json').read_text())
assert config['image_token_index'] == image_token
