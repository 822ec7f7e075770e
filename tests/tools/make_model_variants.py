#!/usr/bin/env python3
"""Writes tests/lua/model_variants.safetensors and .json: for tiny models whose configurations are
not those of tests/cases, the parameters and what transformers 4.57.6 makes of them.

    python tests/tools/make_model_variants.py tests/lua/model_variants

In the .json a list of configurations; in the other, for its i-th, `i.p.NAME` the parameters and
`i.KIND.*` the inputs and `logits`, where KIND is plain (no mask) or left (padded on the left).
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = dict(model_type='llama', vocab_size=11, hidden_size=8, intermediate_size=12,
             num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=8)
OPT = dict(model_type='opt', vocab_size=11, hidden_size=8, num_hidden_layers=1, ffn_dim=12,
           num_attention_heads=2, max_position_embeddings=8, dropout=0.0)
GPTJ = dict(model_type='gptj', vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2,
            rotary_dim=2)

SHARED = dict(LLAMA, num_attention_heads=4, num_key_value_heads=2, hidden_size=16)
GEMMA = dict(LLAMA, head_dim=6, hidden_activation='gelu', query_pre_attn_scalar=5,
             num_key_value_heads=1, tie_word_embeddings=False, sliding_window=3)
FALCON = dict(model_type='falcon', vocab_size=11, hidden_size=16, num_hidden_layers=2,
              num_attention_heads=4)

DEEPSEEK = dict(LLAMA, model_type='deepseek_v3', num_key_value_heads=2, qk_rope_head_dim=4,
                qk_nope_head_dim=3, v_head_dim=5, q_lora_rank=5, kv_lora_rank=6,
                n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2,
                moe_intermediate_size=6, n_shared_experts=1)

SMALL = dict(LLAMA, num_key_value_heads=1, num_hidden_layers=1)

CONFIGS = [
    dict(LLAMA, attention_bias=True, mlp_bias=True, rms_norm_eps=0.1),
    dict(LLAMA, tie_word_embeddings=True, head_dim=6, hidden_act='gelu', pad_token_id=2),
    dict(LLAMA, rope_theta=100.0, rope_scaling=dict(rope_type='linear', factor=2.0)),
    # Shorter than the text, which is what these look at.
    dict(LLAMA, max_position_embeddings=4, rope_scaling=dict(type='dynamic', factor=2.0)),
    dict(LLAMA, max_position_embeddings=4, rope_scaling=dict(
        rope_type='longrope', short_factor=[1.0, 1.5], long_factor=[1.2, 3.0], factor=4.0)),
    dict(LLAMA, rope_scaling=dict(rope_type='yarn', factor=4.0, beta_fast=2.0,
                                  original_max_position_embeddings=4)),
    dict(OPT, _remove_final_layer_norm=True, enable_bias=False),
    dict(OPT, tie_word_embeddings=False, word_embed_proj_dim=6, activation_function='gelu'),
    dict(OPT, do_layer_norm_before=False),
    dict(GPTJ, tie_word_embeddings=True, n_inner=12, activation_function='relu'),
    dict(GPTJ, rotary_dim=4),
    dict(SHARED, model_type='mistral', sliding_window=3),
    dict(SHARED, model_type='granite', embedding_multiplier=3.0, attention_multiplier=0.2,
         residual_multiplier=0.5, logits_scaling=4.0),
    dict(SHARED, model_type='smollm3', no_rope_layers=[0, 1], use_sliding_window=True,
         sliding_window=3, layer_types=['full_attention', 'sliding_attention'], pad_token_id=0),
    dict(SHARED, model_type='olmo2'),
    dict(SHARED, model_type='starcoder2', sliding_window=3),
    dict(SHARED, model_type='qwen3', head_dim=6, use_sliding_window=True, sliding_window=3,
         max_window_layers=1, attention_bias=True),
    dict(GEMMA, model_type='gemma2', attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    dict(GEMMA, model_type='gemma3_text', sliding_window_pattern=2, final_logit_softcapping=3.0,
         rope_scaling=dict(rope_type='linear', factor=4.0)),
    dict(SHARED, model_type='phi3', partial_rotary_factor=0.5, sliding_window=3, pad_token_id=0,
         max_position_embeddings=8, original_max_position_embeddings=4, rope_scaling=dict(
             type='longrope', short_factor=[1.5], long_factor=[3.0])),
    dict(model_type='gpt_neox', vocab_size=11, hidden_size=16, num_hidden_layers=2,
         num_attention_heads=2, intermediate_size=12, rotary_pct=0.5, max_position_embeddings=8),
    dict(model_type='gpt_neox', vocab_size=11, hidden_size=16, num_hidden_layers=2,
         num_attention_heads=2, intermediate_size=12, use_parallel_residual=False,
         attention_bias=False, tie_word_embeddings=True),
    dict(FALCON, bias=True),
    dict(FALCON, new_decoder_architecture=True, num_kv_heads=2),
    dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    dict(FALCON, multi_query=False, alibi=True, parallel_attn=False, tie_word_embeddings=False),
    dict(model_type='bloom', vocab_size=11, hidden_size=24, n_layer=2, n_head=3,
         apply_residual_connection_post_layernorm=True),
    dict(model_type='bloom', vocab_size=11, hidden_size=24, n_layer=1, n_head=2),
    dict(SHARED, model_type='olmoe', num_experts=5, num_experts_per_tok=2, clip_qkv=0.5),
    dict(DEEPSEEK, v_head_dim=10, topk_group=1, rope_interleave=False,
         first_k_dense_replace=1),
    dict(DEEPSEEK, attention_bias=True, n_shared_experts=2, first_k_dense_replace=0,
         rope_scaling=dict(rope_type='yarn', factor=4.0, mscale=0.7, mscale_all_dim=1.0,
                           original_max_position_embeddings=4)),
    # Facts of llama_like.lua and gpt_like.lua that no row above has.
    dict(SMALL, model_type='gemma', head_dim=4, pad_token_id=0),
    dict(SMALL, model_type='cohere', use_qk_norm=True, logit_scale=0.5, pad_token_id=0),
    dict(SMALL, model_type='cohere2', layer_types=['full_attention'], pad_token_id=0),
    dict(SMALL, model_type='glm4', head_dim=6, partial_rotary_factor=0.67, pad_token_id=0),
    dict(SMALL, model_type='phi', qk_layernorm=True, partial_rotary_factor=0.5),
    dict(SMALL, model_type='olmo', clip_qkv=0.5),
    dict(SMALL, model_type='olmo3', layer_types=['sliding_attention'], sliding_window=3,
         rope_scaling=dict(rope_type='linear', factor=4.0)),
    dict(SMALL, model_type='stablelm', use_parallel_residual=True, partial_rotary_factor=0.5),
    dict(SMALL, model_type='hunyuan_v1_dense', head_dim=4, rope_scaling=dict(
        type='dynamic', factor=1.0, alpha=100.0)),
    dict(SMALL, model_type='nemotron', partial_rotary_factor=0.5),
    dict(SMALL, model_type='qwen2_moe', num_experts=3, num_experts_per_tok=2,
         moe_intermediate_size=4, shared_expert_intermediate_size=4),
    dict(SMALL, model_type='granitemoe', num_local_experts=3, num_experts_per_tok=2,
         intermediate_size=4),
    dict(model_type='gpt_bigcode', vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2),
    dict(model_type='gpt_neo', vocab_size=11, max_position_embeddings=8, hidden_size=8,
         num_layers=2, num_heads=2, attention_types=[[['global', 'local'], 1]], window_size=3),
    dict(GPTJ, model_type='codegen', n_head=4),
]


def main():
    tensors = {}
    generator = torch.Generator().manual_seed(1)
    for i, config in enumerate(CONFIGS):
        # It writes into nested tables.
        kind = AutoConfig.for_model(**json.loads(json.dumps(config)))
        # Falcon's eager attention differs from the default one.
        attention = 'sdpa' if config['model_type'] == 'falcon' else 'eager'
        model = AutoModelForCausalLM.from_config(kind, attn_implementation=attention).eval()
        for name, parameter in model.named_parameters():
            values = 0.7 * torch.randn(parameter.shape, generator=generator)
            parameter.data = values + 1 if 'norm' in name and 'weight' in name else values
            tensors[f'{i}.p.{name}'] = parameter.data
        for name, buffer in model.named_buffers():
            if name.endswith('correction_bias'):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
                tensors[f'{i}.p.{name}'] = buffer
        ids = torch.randint(3, 11, (2, 7), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad():
            tensors[f'{i}.plain.logits'] = model(ids).logits
            more = {} if config['model_type'] == 'bloom' else dict(position_ids=positions)
            tensors[f'{i}.left.logits'] = model(ids, attention_mask=mask, **more).logits
        tensors[f'{i}.plain.input_ids'] = ids
        tensors[f'{i}.left.input_ids'] = ids.clone()
        tensors[f'{i}.left.attention_mask'] = mask
    with open(sys.argv[1] + '.json', 'w', encoding='utf-8') as f:
        f.write('[\n' + ',\n'.join(json.dumps(config) for config in CONFIGS) + '\n]\n')
    save_file(tensors, sys.argv[1] + '.safetensors')


main()
