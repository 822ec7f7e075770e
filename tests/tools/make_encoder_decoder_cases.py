"""Writes tests/lua/encoder_decoder_cases.json and .safetensors: tiny encoder-decoders and a ViT of
forms that the reference cases leave out, and what transformers makes of them.

    python tests/tools/make_encoder_decoder_cases.py tests/lua/encoder_decoder_cases

Names: CASE.p.NAME parameters, CASE.in.NAME inputs, CASE.out.NAME logits and loss, CASE.g.NAME
gradients. Needs torch 2.11 and transformers 4.57.6.
"""

import json
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

torch.manual_seed(20261121)
configs, tensors = {}, {}


def case(name, model, inputs, labels):
    """`inputs` and `labels` as the model's forward takes them; its logits are not shifted."""
    model = model.eval()
    fixed = {n for n, p in model.named_parameters() if not p.requires_grad}  # sinusoids
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if key in fixed:
                continue
            is_scale = value.dim() == 1 and key.endswith('weight')
            value.copy_(torch.randn(value.shape) * (0.2 if is_scale else 0.4) + is_scale)
    logits = model(**inputs).logits
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    parameters = dict(model.named_parameters())
    buffers = {n: b for n, b in model.named_buffers() if n in model.state_dict()}
    for key, value in (parameters | buffers).items():
        if 'pooler' not in key and key not in fixed:
            tensors[f'{name}.p.{key}'] = value.detach()
    for key, value in parameters.items():
        if value.grad is not None:
            tensors[f'{name}.g.{key}'] = value.grad
    for key, value in (inputs | {'labels': labels}).items():
        tensors[f'{name}.in.{key}'] = value
    tensors[f'{name}.out.logits'], tensors[f'{name}.out.loss'] = logits.detach(), loss.detach()
    configs[name] = json.loads(model.config.to_json_string())


def ids(*sizes):
    return torch.randint(3, 19, sizes)


def mask(n_rows, length, n_last):
    """All ones, but for the last row, which has `n_last`."""
    whole = torch.ones(n_rows, length, dtype=torch.long)
    whole[-1, n_last:] = 0
    return whole


# Distances on both sides of the largest that has a bucket of its own; an odd number of layers.
t5 = transformers.T5Config(vocab_size=19, d_model=8, d_kv=4, d_ff=12, num_layers=1,
                           num_decoder_layers=2, num_heads=2, relative_attention_num_buckets=8,
                           relative_attention_max_distance=20, feed_forward_proj='gated-silu',
                           decoder_start_token_id=0)
case('t5_long', transformers.T5ForConditionalGeneration(t5),
        {'input_ids': ids(2, 40), 'attention_mask': mask(2, 40, 31), 'decoder_input_ids': ids(2, 33)},
        ids(2, 33))

bart = transformers.BartConfig(vocab_size=19, d_model=8, max_position_embeddings=12, encoder_layers=2,
                               encoder_attention_heads=4, encoder_ffn_dim=12, decoder_layers=1,
                               decoder_attention_heads=2, decoder_ffn_dim=10, scale_embedding=True,
                               activation_function='relu')
inputs = {'input_ids': ids(2, 9), 'attention_mask': mask(2, 9, 6), 'decoder_input_ids': ids(2, 7)}
inputs['input_ids'][1, 6:] = 1
inputs['decoder_input_ids'][1, 5:] = 1
case('bart_uneven', transformers.BartForConditionalGeneration(bart), inputs, ids(2, 7))

vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                             intermediate_size=12, image_size=8, patch_size=4, num_channels=2,
                             qkv_bias=False, num_labels=3)
case('vit', transformers.ViTForImageClassification(vit), {'pixel_values': torch.randn(4, 2, 8, 8)},
        torch.tensor([2, 0, 1, 2]))

gpt2 = transformers.GPT2Config(vocab_size=19, n_positions=8, n_embd=12, n_layer=1, n_head=3,
                               bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, gpt2)
case('vit_gpt2_projected', transformers.VisionEncoderDecoderModel(both),
        {'pixel_values': torch.randn(2, 2, 8, 8), 'decoder_input_ids': ids(2, 6)}, ids(2, 6))

# Rows of the same implementations.
umt5 = transformers.UMT5Config(vocab_size=19, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2,
                               relative_attention_num_buckets=8, relative_attention_max_distance=20)
mt5 = transformers.MT5Config(vocab_size=19, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2)
small = dict(vocab_size=19, d_model=8, max_position_embeddings=12, encoder_layers=2,
             encoder_attention_heads=4, encoder_ffn_dim=12, decoder_layers=1,
             decoder_attention_heads=2, decoder_ffn_dim=10, pad_token_id=1)
for name, model in {
        'umt5': transformers.UMT5ForConditionalGeneration(umt5),
        'mt5': transformers.MT5ForConditionalGeneration(mt5),
        'mbart': transformers.MBartForConditionalGeneration(transformers.MBartConfig(**small)),
        'pegasus': transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**small)),
        'marian': transformers.MarianMTModel(transformers.MarianConfig(
            **small, share_encoder_decoder_embeddings=False, decoder_vocab_size=19))}.items():
    case(name, model, inputs, ids(2, 7))

with open(sys.argv[1] + '.json', 'w') as file:
    json.dump(configs, file, indent=1, sort_keys=True)
    file.write('\n')
save_file({k: v.clone().contiguous() for k, v in tensors.items()}, sys.argv[1] + '.safetensors')
