"""Models of random configurations, made by transformers, and what they compute: the references of
random_models.lua, and the comparison with what it wrote.

A case is a folder: the model's (config.json, model.safetensors), `case.json` with the options of
its generations, `inputs.safetensors`. Tensors of expected.safetensors and result.safetensors have
the same names: logits, loss, grad.NAME, after.NAME (three steps of AdamW), tokens.I, scores.I,
changed.I.logits and changed.I.tokens: the same weights with one key of the configuration changed,
which redco-lua may also refuse. noise.safetensors has them as a float64 run gives them.
"""
import copy
import functools
import inspect
import json
import random

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

ACTIVATIONS = ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu",
               "swish", "tanh"]
STEPS = 3
ATTENTION = dict(gemma2="eager")  # the only one with soft caps
CHANGES = 4  # of the configuration, for each model
ORDER = ["logits", "loss", "tokens", "scores", "grad", "after", "changed"]  # of what is told first
ADAMW = dict(lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)


class Draw(random.Random):
    """Random choices of one case."""

    def maybe(self, share=0.5):
        return self.random() < share

    def number(self, low, high):
        return round(self.uniform(low, high), 3)

    def token(self, vocab_size):
        return self.randrange(vocab_size)


def rope_scaling(draw, pairs):
    kinds = ["default", "linear", "llama3", "yarn", "longrope"]
    if pairs > 1:  # else transformers divides by zero
        kinds.append("dynamic")
    kind = draw.choice(kinds)
    scaling = {draw.choice(["type", "rope_type"]): kind}
    if kind == "default":
        return draw.choice([None, scaling])
    if kind != "longrope" or draw.maybe(0.8):
        scaling["factor"] = draw.number(1, 8)
    if kind == "llama3":
        scaling.update(low_freq_factor=draw.number(0.5, 1.5), high_freq_factor=draw.number(2, 5),
                       original_max_position_embeddings=draw.randint(4, 64))
    elif kind == "yarn":
        for key, value in dict(attention_factor=draw.number(0.5, 2), beta_fast=draw.number(2, 40),
                               beta_slow=draw.number(0.5, 1.5), mscale=draw.number(0, 2),
                               mscale_all_dim=draw.number(0.1, 2), truncate=draw.maybe(),
                               original_max_position_embeddings=draw.randint(4, 64)).items():
            if draw.maybe(0.4):
                scaling[key] = value
    elif kind == "longrope":
        for key in ("short_factor", "long_factor"):
            scaling[key] = [draw.number(1, 5) for _ in range(pairs)]
        if "factor" not in scaling or draw.maybe(0.3):
            scaling["attention_factor"] = draw.number(0.5, 2)
        if draw.maybe(0.3):
            scaling["original_max_position_embeddings"] = draw.randint(2, 16)
    return scaling


def common(draw, padding=True):
    config = dict(vocab_size=draw.randint(12, 40))
    if padding and draw.maybe(0.7):
        config["pad_token_id"] = draw.choice([0, 1, config["vocab_size"] - 1,
                                              draw.token(config["vocab_size"])])
    return config


def heads(draw, most=4):
    n = draw.randint(1, most)
    return n, n * 2 * draw.randint(1, 4)


def llama(draw):
    config = common(draw)
    n_kv = draw.randint(1, 2)
    n_heads = n_kv * draw.randint(1, 3)
    size = 2 * draw.randint(2, 5)
    config.update(
        hidden_size=n_heads * size, intermediate_size=draw.randint(3, 40),
        num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        num_key_value_heads=n_kv, hidden_act=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(4, 32), rms_norm_eps=draw.choice([1e-6, 1e-5, 0.1]),
        rope_theta=draw.choice([100.0, 10000.0, 500000.0]), attention_bias=draw.maybe(),
        mlp_bias=draw.maybe(), tie_word_embeddings=draw.maybe())
    if draw.maybe(0.3):
        size = 2 * draw.randint(2, 5)
        config.update(head_dim=size)
        if draw.maybe():
            config.update(hidden_size=draw.randint(3, 30))
    config["rope_scaling"] = rope_scaling(draw, size // 2)
    if draw.maybe(0.3):
        config["original_max_position_embeddings"] = draw.randint(2, 16)
    if config.get("pad_token_id") is not None and draw.maybe(0.2):
        config["pad_token_id"] = -1
    return config


def like_llama(draw, **more):
    """A decoder with rotary positions and groups of heads."""
    config = llama(draw)
    for key in ("attention_bias", "mlp_bias", "original_max_position_embeddings"):
        config.pop(key, None)
    if config["hidden_size"] % config["num_attention_heads"]:
        config.setdefault("head_dim", 4)
    if config["rope_scaling"]:  # some families know only the newer name
        kind = config["rope_scaling"].pop("type", None)
        config["rope_scaling"].setdefault("rope_type", kind)
    config.update(more)
    return config


def layer_types(draw, config):
    """Some of the layers get windows by name."""
    if draw.maybe(0.4):
        config["layer_types"] = [draw.choice(["full_attention", "sliding_attention"])
                                 for _ in range(config["num_hidden_layers"])]


def qwen2(draw):
    config = like_llama(draw, use_sliding_window=draw.maybe(0.7),
                        sliding_window=draw.randint(2, 6), max_window_layers=draw.randint(0, 2))
    if config["use_sliding_window"]:
        layer_types(draw, config)
    return config


def qwen3(draw):
    config = qwen2(draw)
    config.update(attention_bias=draw.maybe())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def mistral(draw):
    config = like_llama(draw, sliding_window=draw.choice([None, 2, 3, 5, 30]))
    if config["rope_scaling"] or draw.maybe():  # some scalings fail without it
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def gemma2(draw):
    config = like_llama(
        draw, hidden_activation=draw.choice(ACTIVATIONS), attention_bias=draw.maybe(),
        query_pre_attn_scalar=draw.randint(2, 30), sliding_window=draw.randint(2, 6),
        final_logit_softcapping=draw.choice([None, 3.0, 30.0]),
        attn_logit_softcapping=draw.choice([None, 2.0, 50.0]))
    config.pop("hidden_act")
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    layer_types(draw, config)
    return config


def gemma3(draw):
    config = gemma2(draw)
    config.update(rope_local_base_freq=draw.choice([100.0, 10000.0]), attn_logit_softcapping=None,
                  sliding_window_pattern=draw.randint(1, 3))
    return config


def phi3(draw):
    size = 2 * draw.randint(2, 6)
    n_kv = draw.randint(1, 2)
    n_heads = n_kv * draw.randint(1, 3)
    factor = draw.choice([1.0, 0.5, 0.75])
    context = draw.randint(3, 20)
    config = like_llama(
        draw, hidden_size=n_heads * size, num_attention_heads=n_heads, num_key_value_heads=n_kv,
        sliding_window=draw.choice([None, 2, 3, 5]), partial_rotary_factor=factor,
        original_max_position_embeddings=context, max_position_embeddings=context * 2,
        rope_scaling=None)
    config.pop("head_dim", None)
    config.setdefault("pad_token_id", 0)
    pairs = int(size * factor) // 2
    if int(size * factor) % 2:
        config["partial_rotary_factor"], pairs = 1.0, size // 2
    if draw.maybe():
        config["sliding_window"] = None  # see new_inputs
        config["rope_scaling"] = dict(type=draw.choice(["su", "longrope", "yarn"]),
                                      short_factor=[draw.number(1, 5) for _ in range(pairs)],
                                      long_factor=[draw.number(1, 5) for _ in range(pairs)])
    return config


def smollm3(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
                        use_sliding_window=draw.maybe(), sliding_window=draw.randint(2, 6),
                        no_rope_layer_interval=draw.randint(1, 4))
    if draw.maybe(0.4):
        config["no_rope_layers"] = [draw.randint(0, 1) for _ in range(config["num_hidden_layers"])]
    if config["use_sliding_window"]:
        layer_types(draw, config)
    config.setdefault("pad_token_id", 0)
    return config


def olmo2(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    config["rope_scaling"] = draw.choice([None, dict(type="linear", factor=2.5)])
    return config


def granite(draw):
    return like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
                      embedding_multiplier=draw.number(0.5, 12),
                      logits_scaling=draw.number(0.5, 16),
                      residual_multiplier=draw.number(0.1, 1),
                      attention_multiplier=draw.number(0.01, 1))


def mixtral(draw):
    n = draw.randint(2, 5)
    return like_llama(draw, sliding_window=draw.choice([None, 2, 5]), num_local_experts=n,
                      num_experts_per_tok=draw.randint(1, n), router_jitter_noise=0.0,
                      output_router_logits=draw.maybe(), router_aux_loss_coef=0.1,
                      head_dim=2 * draw.randint(2, 4), rope_scaling=None)


def qwen3_moe(draw):
    n = draw.randint(2, 5)
    return like_llama(draw, attention_bias=draw.maybe(), num_experts=n,
                      num_experts_per_tok=draw.randint(1, n), norm_topk_prob=draw.maybe(),
                      moe_intermediate_size=draw.randint(3, 20),
                      num_hidden_layers=2, decoder_sparse_step=draw.randint(1, 2),
                      mlp_only_layers=draw.choice([[], [0]]), output_router_logits=draw.maybe(),
                      router_aux_loss_coef=0.1, use_sliding_window=draw.maybe(),
                      sliding_window=draw.randint(2, 6))


def olmoe(draw):
    n = draw.randint(2, 5)
    config = like_llama(draw, attention_bias=draw.maybe(), num_experts=n,
                        num_experts_per_tok=draw.randint(1, n), norm_topk_prob=draw.maybe(),
                        output_router_logits=draw.maybe(), router_aux_loss_coef=0.1,
                        clip_qkv=draw.choice([None, 0.5, 2.0]))
    config.pop("head_dim", None)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    config["rope_scaling"] = None
    return config


def with_weights_in_double():
    """In float64 the router's float32 weights fail in the library."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    moe = DeepseekV3MoE.moe
    DeepseekV3MoE.moe = lambda self, x, numbers, weights: moe(self, x, numbers, weights.to(x.dtype))


with_weights_in_double()


def deepseek_v3(draw):
    n_heads, turned = draw.randint(1, 4), 2 * draw.randint(1, 4)
    n_group, in_group = draw.randint(1, 3), draw.randint(2, 3)
    topk_group = draw.randint(1, n_group)
    config = like_llama(
        draw, num_attention_heads=n_heads, num_key_value_heads=n_heads,
        hidden_size=draw.randint(3, 40), q_lora_rank=draw.choice([None, draw.randint(2, 20)]),
        kv_lora_rank=draw.randint(2, 20), qk_rope_head_dim=turned,
        qk_nope_head_dim=draw.randint(1, 10), v_head_dim=draw.randint(1, 20),
        moe_intermediate_size=draw.randint(3, 20), n_shared_experts=draw.randint(1, 2),
        n_routed_experts=n_group * in_group, n_group=n_group, topk_group=topk_group,
        num_experts_per_tok=draw.randint(1, topk_group * in_group),
        first_k_dense_replace=draw.randint(0, 2), norm_topk_prob=draw.maybe(),
        routed_scaling_factor=draw.number(0.5, 3), rope_interleave=draw.maybe(0.7),
        attention_bias=draw.maybe(), rope_scaling=None)
    config.pop("head_dim", None)
    if draw.maybe():
        config["rope_scaling"] = dict(
            rope_type="yarn", factor=draw.number(1, 8), mscale=draw.choice([1.0, 0.7]),
            mscale_all_dim=draw.choice([0.0, 1.0, 0.7]), beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=draw.randint(4, 64))
    return config


def starcoder2(draw):
    config = like_llama(draw, use_bias=draw.maybe(0.7), norm_epsilon=draw.choice([1e-5, 0.1]),
                        sliding_window=draw.choice([None, 2, 3, 30]))
    del config["rms_norm_eps"]
    return config


def gpt_neox(draw):
    config = common(draw)
    size = 2 * draw.randint(2, 6)
    n_heads = draw.randint(1, 4)
    pairs = draw.randint(1, size // 2)
    config.update(
        hidden_size=n_heads * size, num_attention_heads=n_heads,
        num_hidden_layers=draw.randint(1, 3), intermediate_size=draw.randint(3, 40),
        hidden_act=draw.choice(ACTIVATIONS), rotary_pct=2 * pairs / size + 1e-6,
        rotary_emb_base=draw.choice([100, 10000]), max_position_embeddings=draw.randint(4, 32),
        layer_norm_eps=draw.choice([1e-5, 0.1]), use_parallel_residual=draw.maybe(),
        attention_bias=draw.maybe(0.7), tie_word_embeddings=draw.maybe(0.3))
    config["rope_scaling"] = rope_scaling(draw, pairs)
    return config


def falcon(draw):
    config = common(draw)
    n_kv = draw.randint(1, 2)
    n_heads = n_kv * draw.randint(1, 3)
    size = 2 * draw.randint(2, 5)
    is_new = draw.maybe()
    config.update(
        hidden_size=n_heads * size, num_attention_heads=n_heads,
        num_hidden_layers=draw.randint(1, 3), layer_norm_epsilon=draw.choice([1e-5, 0.1]),
        alibi=draw.maybe(0.4), new_decoder_architecture=is_new, multi_query=draw.maybe(),
        parallel_attn=is_new or draw.maybe(), bias=draw.maybe(), activation="gelu",
        max_position_embeddings=draw.randint(4, 32), tie_word_embeddings=draw.maybe(0.7),
        ffn_hidden_size=draw.choice([None, draw.randint(3, 40)]))
    if is_new:
        config.update(num_kv_heads=n_kv, num_ln_in_parallel_attn=draw.choice([None, 1, 2]))
    if not config["alibi"] and draw.maybe():
        config["rope_scaling"] = dict(rope_type="linear", factor=2.5)
    return config


def bloom(draw):
    config = common(draw)
    n_heads, width = heads(draw, 6)
    config.update(
        hidden_size=width, n_head=n_heads, n_layer=draw.randint(1, 3),
        layer_norm_epsilon=draw.choice([1e-5, 0.1]), tie_word_embeddings=draw.maybe(0.7),
        apply_residual_connection_post_layernorm=draw.maybe())
    return config


def gpt2(draw, padding=True):
    config = common(draw, padding)
    n_heads, width = heads(draw)
    config.update(
        n_positions=draw.randint(20, 40), n_embd=width, n_head=n_heads, n_layer=draw.randint(1, 3),
        n_inner=draw.choice([None, draw.randint(3, 40)]), tie_word_embeddings=draw.maybe(0.8),
        activation_function=draw.choice(ACTIVATIONS), embd_pdrop=0.0, resid_pdrop=0.0,
        attn_pdrop=0.0, layer_norm_epsilon=draw.choice([1e-5, 1e-3, 0.1]),
        reorder_and_upcast_attn=draw.maybe(0.3))
    return config


def gptj(draw):
    config = gpt2(draw)
    del config["reorder_and_upcast_attn"]
    config["rotary_dim"] = 2 * draw.randint(1, config["n_embd"] // config["n_head"] // 2)
    config["tie_word_embeddings"] = draw.maybe(0.3)
    return config


def opt(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), ffn_dim=draw.randint(3, 40),
        max_position_embeddings=draw.randint(20, 40), do_layer_norm_before=draw.maybe(0.7),
        _remove_final_layer_norm=draw.maybe(0.2), dropout=0.0, num_attention_heads=n_heads,
        activation_function=draw.choice(ACTIVATIONS), enable_bias=draw.maybe(0.8),
        tie_word_embeddings=draw.maybe(0.7))
    if draw.maybe(0.3):
        config["word_embed_proj_dim"] = draw.randint(3, 20)
    return config


def bart(draw):
    config = common(draw)
    n_heads, width = heads(draw, 3)
    n_layers = draw.randint(1, 3)
    config.update(
        d_model=width, encoder_layers=n_layers, decoder_layers=draw.randint(1, n_layers),
        encoder_attention_heads=n_heads, decoder_attention_heads=draw.choice([1, n_heads]),
        encoder_ffn_dim=draw.randint(3, 30), decoder_ffn_dim=draw.randint(3, 30), dropout=0.0,
        max_position_embeddings=draw.randint(20, 40), activation_function=draw.choice(ACTIVATIONS),
        scale_embedding=draw.maybe(), decoder_start_token_id=draw.token(config["vocab_size"]),
        forced_eos_token_id=draw.choice([None, 2]))
    return config


def t5(draw):
    config = common(draw)
    gate = draw.choice(["", "gated-"])
    config.update(
        d_model=draw.randint(3, 20), d_kv=draw.randint(1, 8), d_ff=draw.randint(3, 30),
        num_layers=draw.randint(1, 3), num_heads=draw.randint(1, 4), dropout_rate=0.0,
        relative_attention_num_buckets=2 * draw.randint(2, 8),
        relative_attention_max_distance=draw.randint(17, 64),
        layer_norm_epsilon=draw.choice([1e-6, 1e-3, 0.1]),
        feed_forward_proj=gate + draw.choice(["relu", "gelu", "silu", "tanh"]),
        tie_word_embeddings=draw.maybe(), decoder_start_token_id=draw.token(config["vocab_size"]))
    config.setdefault("pad_token_id", 0)
    if draw.maybe():
        # With more than in the encoder, the library's cache is too short.
        config["num_decoder_layers"] = draw.randint(1, config["num_layers"])
    return config


def vit(draw):
    n_heads, width = heads(draw)
    patch = draw.randint(2, 4)
    return dict(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 30), hidden_act=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), image_size=patch * draw.randint(1, 4),
        patch_size=patch, num_channels=draw.choice([1, 3]), qkv_bias=draw.maybe(0.7))


def marian(draw):
    config = bart(draw)
    config["share_encoder_decoder_embeddings"] = draw.maybe(0.7)
    config.setdefault("pad_token_id", 0)
    if not config["share_encoder_decoder_embeddings"]:
        config["decoder_vocab_size"] = config["vocab_size"]
    return config


def mbart(draw):
    config = bart(draw)
    config.setdefault("pad_token_id", 1)
    return config


def whisper(draw):
    config = bart(draw)
    config.setdefault("pad_token_id", 0)
    config.update(num_mel_bins=draw.randint(1, 12), max_source_positions=draw.randint(2, 9),
                  max_target_positions=config.pop("max_position_embeddings"),
                  begin_suppress_tokens=draw.choice([None, [1, 2]]), suppress_tokens=None)
    if config["d_model"] < 4:  # the library divides by the number of frequencies less 1
        config["d_model"] *= 2
    del config["forced_eos_token_id"]
    return config


def whisper_classes(draw):
    config = whisper(draw)
    config.update(classifier_proj_size=draw.randint(2, 20), use_weighted_layer_sum=draw.maybe(),
                  id2label={i: f"class {i}" for i in range(draw.randint(2, 7))}, problem_type=None)
    return config


def classifier(draw, of_images):
    config = of_images(draw)
    config["id2label"] = {i: f"class {i}" for i in range(draw.randint(1, 7))}
    config["problem_type"] = draw.choice([None, None, "multi_label_classification", "regression"])
    if len(config["id2label"]) == 1:
        config["problem_type"] = None
    return config


def vit_features(draw):
    config = vit(draw)
    config.update(pooler_act=draw.choice(ACTIVATIONS), pooler_output_size=draw.randint(2, 20))
    return config


def tower(draw, **more):
    """Of texts or images, in CLIP and SigLIP."""
    n_heads, width = heads(draw)
    return dict(more, hidden_size=width, num_hidden_layers=draw.randint(1, 3),
                num_attention_heads=n_heads, intermediate_size=draw.randint(3, 30),
                hidden_act=draw.choice(ACTIVATIONS),
                layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]))


def clip_text(draw):
    config = tower(draw, **common(draw), projection_dim=draw.randint(2, 20),
                   max_position_embeddings=draw.randint(9, 20))
    config["eos_token_id"] = draw.choice([2, draw.token(config["vocab_size"])])
    return config


def clip_image(draw):
    patch = draw.randint(2, 4)
    return tower(draw, image_size=patch * draw.randint(1, 4) + draw.randint(0, 1), patch_size=patch,
                 num_channels=draw.choice([1, 3]), projection_dim=draw.randint(2, 20))


def clip(draw):
    return dict(text_config=clip_text(draw), vision_config=clip_image(draw),
                projection_dim=draw.randint(2, 20))


def siglip_text(draw):
    config = clip_text(draw)
    config["projection_size"] = config.pop("projection_dim")
    return config


def siglip_image(draw):
    config = clip_image(draw)
    config.pop("projection_dim")
    return config


def siglip(draw):
    config = dict(text_config=siglip_text(draw), vision_config=siglip_image(draw))
    config["text_config"]["projection_size"] = config["vision_config"]["hidden_size"]
    return config


def captioner(draw):
    encoder, decoder = vit(draw), gpt2(draw, padding=False)
    decoder.update(add_cross_attention=True, is_decoder=True, tie_word_embeddings=True)
    decoder["n_positions"] += 20  # the library does not know where its positions end
    if draw.maybe():  # then there is no projection between them
        encoder["hidden_size"] = decoder["n_embd"]
        encoder["num_attention_heads"] = decoder["n_head"]
    return dict(encoder=dict(encoder, model_type="vit"), decoder=dict(decoder, model_type="gpt2"),
                tie_word_embeddings=False, pad_token_id=draw.token(decoder["vocab_size"]),
                decoder_start_token_id=draw.token(decoder["vocab_size"]))


def bert(draw, **more):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 40), hidden_act=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(10, 40), type_vocab_size=draw.randint(1, 3),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **more)
    return config


def roberta(draw):
    config = bert(draw)
    config.setdefault("pad_token_id", 1)
    config["max_position_embeddings"] += config["pad_token_id"] + 1
    return config


def electra(draw):
    config = bert(draw)
    config["embedding_size"] = draw.choice([config["hidden_size"], draw.randint(3, 20)])
    return config


def distilbert(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        dim=width, n_layers=draw.randint(1, 3), n_heads=n_heads, hidden_dim=draw.randint(3, 40),
        activation=draw.choice(ACTIVATIONS), max_position_embeddings=draw.randint(10, 40),
        dropout=0.0, attention_dropout=0.0, qa_dropout=0.0, seq_classif_dropout=0.0)
    return config


def deberta(draw):
    config = bert(draw)
    config.update(
        type_vocab_size=draw.randint(0, 3), position_biased_input=draw.maybe(),
        pooler_dropout=0, pooler_hidden_act=draw.choice(ACTIVATIONS))
    if draw.maybe(0.8):
        config.update(
            relative_attention=True, share_att_key=draw.maybe(),
            pos_att_type=draw.choice([["c2p"], ["p2c"], ["p2c", "c2p"], "c2p|p2c"]),
            norm_rel_ebd=draw.choice(["none", "layer_norm"]))
    if draw.maybe():
        config.update(position_buckets=draw.randint(2, 6), max_relative_positions=draw.randint(8, 20))
    if draw.maybe(0.3):
        config["embedding_size"] = draw.randint(3, 20)
    if draw.maybe(0.4):
        config.update(conv_kernel_size=draw.choice([1, 3, 5]), conv_act=draw.choice(ACTIVATIONS),
                      conv_groups=draw.choice([1, config["num_attention_heads"]]))
    return config


def modernbert(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.setdefault("pad_token_id", draw.token(config["vocab_size"]))
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 4), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 40), hidden_activation=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(10, 40), norm_eps=draw.choice([1e-5, 1e-3, 0.1]),
        norm_bias=draw.maybe(), attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
        decoder_bias=draw.maybe(0.7), classifier_bias=draw.maybe(),
        global_rope_theta=draw.choice([100.0, 160000.0]),
        local_rope_theta=draw.choice([None, 50.0, 10000.0]),
        global_attn_every_n_layers=draw.randint(1, 3), local_attention=draw.randint(1, 12),
        classifier_pooling=draw.choice(["cls", "mean"]),
        classifier_activation=draw.choice(ACTIVATIONS))
    return config


FAMILIES = {
    "llama": (llama, "LlamaForCausalLM"), "gpt2": (gpt2, "GPT2LMHeadModel"),
    "gptj": (gptj, "GPTJForCausalLM"), "opt": (opt, "OPTForCausalLM"),
    "bart": (bart, "BartForConditionalGeneration"), "t5": (t5, "T5ForConditionalGeneration"),
    "vision-encoder-decoder": (captioner, "VisionEncoderDecoderModel"),
    "qwen2": (qwen2, "Qwen2ForCausalLM"), "qwen3": (qwen3, "Qwen3ForCausalLM"),
    "mistral": (mistral, "MistralForCausalLM"), "gemma2": (gemma2, "Gemma2ForCausalLM"),
    "gemma3_text": (gemma3, "Gemma3ForCausalLM"), "phi3": (phi3, "Phi3ForCausalLM"),
    "smollm3": (smollm3, "SmolLM3ForCausalLM"), "olmo2": (olmo2, "Olmo2ForCausalLM"),
    "gpt_neox": (gpt_neox, "GPTNeoXForCausalLM"), "falcon": (falcon, "FalconForCausalLM"),
    "mt5": (t5, "MT5ForConditionalGeneration"), "umt5": (t5, "UMT5ForConditionalGeneration"),
    "mbart": (mbart, "MBartForConditionalGeneration"), "marian": (marian, "MarianMTModel"),
    "pegasus": (mbart, "PegasusForConditionalGeneration"),
    "mixtral": (mixtral, "MixtralForCausalLM"), "qwen3_moe": (qwen3_moe, "Qwen3MoeForCausalLM"),
    "olmoe": (olmoe, "OlmoeForCausalLM"), "deepseek_v3": (deepseek_v3, "DeepseekV3ForCausalLM"),
    "bloom": (bloom, "BloomForCausalLM"),
    "granite": (granite, "GraniteForCausalLM"), "starcoder2": (starcoder2, "Starcoder2ForCausalLM"),
    "whisper": (whisper, "WhisperForConditionalGeneration"),
}
ENCODER_DECODERS = {"bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5",
                    "vision-encoder-decoder", "whisper"}
# Other heads, as FAMILY.TASK.
HEADS = {"sequence_classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
         "token_classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
         "question_answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES}
for _family, (_draw, _) in list(FAMILIES.items()):
    for _task, _names in HEADS.items():
        if _family in _names:
            FAMILIES[f"{_family}.{_task}"] = (_draw, _names[_family])


CLASSIFIERS = {"vit": (vit, "ViTForImageClassification"),
               "clip.image_classification": (clip, "CLIPForImageClassification"),
               "siglip.image_classification": (siglip, "SiglipForImageClassification")}
FAMILIES.update({_family: (functools.partial(classifier, of_images=_draw), _class)
                 for _family, (_draw, _class) in CLASSIFIERS.items()})
CLASSIFIERS["whisper.audio_classification"] = (whisper_classes, "WhisperForAudioClassification")
FAMILIES["whisper.audio_classification"] = CLASSIFIERS["whisper.audio_classification"]
PAIRED = {"clip.similarity": (clip, "CLIPModel"), "siglip.similarity": (siglip, "SiglipModel")}
OF_TEXTS = {
    "clip_text_model.features": (clip_text, "CLIPTextModel"),
    "clip_text_model.projection": (clip_text, "CLIPTextModelWithProjection"),
    "siglip_text_model.features": (siglip_text, "SiglipTextModel"),
}
OF_IMAGES = {
    "vit.features": (vit_features, "ViTModel"),
    "clip_vision_model.features": (clip_image, "CLIPVisionModel"),
    "clip_vision_model.projection": (clip_image, "CLIPVisionModelWithProjection"),
    "siglip_vision_model.features": (siglip_image, "SiglipVisionModel"),
}
FAMILIES.update({**PAIRED, **OF_TEXTS, **OF_IMAGES})
ENCODERS = {
    "bert": (bert, "Bert"), "roberta": (roberta, "Roberta"), "electra": (electra, "Electra"),
    "distilbert": (distilbert, "DistilBert"), "xlm-roberta": (roberta, "XLMRoberta"),
    "deberta-v2": (deberta, "DebertaV2"), "modernbert": (modernbert, "ModernBert"),
}
ENCODER_TASKS = {
    "masked_lm": "ForMaskedLM", "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering", "multiple_choice": "ForMultipleChoice",
}
for _family, (_draw, _name) in ENCODERS.items():
    for _task, _class in ENCODER_TASKS.items():
        FAMILIES[f"{_family}.{_task}"] = (_draw, _name + _class)
FAMILIES["electra.replaced_token_detection"] = (electra, "ElectraForPreTraining")


def is_encoder(family):
    return family.partition(".")[0] in ENCODERS


def attention_of(family):
    return ATTENTION.get(family.partition(".")[0])


def takes_positions(family):
    forward = getattr(transformers, FAMILIES[family][1]).forward
    return "position_ids" in inspect.signature(forward).parameters


def is_generative(family):
    return family not in CLASSIFIERS and "." not in family


def labelled(draw, config, task):
    """A configuration for a task."""
    if task == "sequence_classification":
        config["num_labels"] = draw.choice([1, 2, 4])
        config["problem_type"] = draw.choice([None, None, "multi_label_classification",
                                              "regression"])
        if config["num_labels"] == 1:
            config["problem_type"] = None
        if config.get("pad_token_id") in (None, -1):
            config["pad_token_id"] = 0
    elif task == "masked_lm":
        config["tie_word_embeddings"] = draw.maybe(0.6)
        if "pooler_hidden_act" in config and not config["tie_word_embeddings"] and draw.maybe():
            config["legacy"] = False  # with tied embeddings transformers fails
            config.pop("embedding_size", None)
    elif task == "token_classification":
        config.update(num_labels=draw.choice([2, 4]), classifier_dropout=0.0)


def task_labels(config, task, rows, length, generator):
    n = config.get("num_labels", 2)
    if task == "masked_lm":
        labels = torch.randint(config["vocab_size"], (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.6] = -100
        labels[:, length // 2] = 3
        return dict(labels=labels)
    if task == "replaced_token_detection":
        return dict(labels=torch.randint(2, (rows, length), generator=generator))
    if task == "token_classification":
        labels = torch.randint(n, (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.3] = -100
        labels[:, 1] = 1
        return dict(labels=labels)
    if task == "question_answering":
        return {key: torch.randint(length + 1, (rows,), generator=generator).clamp(0, length - 1)
                for key in ("start_positions", "end_positions")}
    if config["problem_type"] == "multi_label_classification":
        return dict(labels=torch.rand(rows, n, generator=generator).round())
    if n == 1 or config["problem_type"] == "regression":
        shape = (rows,) if n == 1 else (rows, n)
        return dict(labels=torch.randn(shape, generator=generator))
    return dict(labels=torch.randint(n, (rows,), generator=generator))


def new_model(draw, family):
    config = FAMILIES[family][0](draw)
    labelled(draw, config, family.partition(".")[2])
    vocab_size = config.get("vocab_size") or config.get("decoder", {}).get("vocab_size")
    if vocab_size and "eos_token_id" not in config:
        config["eos_token_id"] = draw.token(vocab_size)
        config["bos_token_id"] = draw.token(vocab_size)
        if family == "whisper":  # the library fails on padding that is no end
            config["pad_token_id"] = config["eos_token_id"]
        if "decoder" in config:
            config["decoder"].update(eos_token_id=config["eos_token_id"],
                                     bos_token_id=config["bos_token_id"])
    given = json.loads(json.dumps(config))  # what makes them writes into nested tables
    if family == "vision-encoder-decoder":
        parts = {kind: AutoConfig.for_model(**given.pop(kind)) for kind in ("encoder", "decoder")}
        made = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            parts["encoder"], parts["decoder"], **given)
    elif family.startswith("siglip_text_model"):  # which AutoConfig does not know
        made = transformers.SiglipTextConfig(**given)
    else:
        made = AutoConfig.for_model(family.partition(".")[0], **given)
    made._attn_implementation = attention_of(family)
    model = getattr(transformers, FAMILIES[family][1])(made)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point() or "inv_freq" in name or "embed_scale" in name:
            continue
        if not tensor.requires_grad and "embed_positions" in name:  # sinusoids
            continue
        values = torch.randn(tensor.shape, generator=generator)
        is_norm = "norm" in name or "ln_" in name
        tensor.data.copy_(values * 0.2 + 1 if is_norm and name.endswith("weight") else values * 0.4)
    return config, model.eval(), vocab_size


def mask_of(draw, rows, length, side):
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in mask:
        n = draw.randint(0, (length - 1) // 3)  # the middle is always a token
        if n and side == "left":
            row[:n] = 0
        elif n:
            row[length - n:] = 0
    return mask


def image_and_text_inputs(draw, config, family):
    rows, length = draw.randint(1, 3), draw.randint(3, 9)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    inputs = {}
    if family not in OF_TEXTS:
        image = config.get("vision_config", config)
        inputs["pixel_values"] = torch.randn(rows, image["num_channels"], image["image_size"],
                                             image["image_size"], generator=generator)
    if family not in OF_IMAGES:
        text = config.get("text_config", config)
        ids = torch.randint(text["vocab_size"], (rows, length), generator=generator)
        ids[torch.rand(ids.shape, generator=generator) < 0.2] = text["eos_token_id"]
        inputs["input_ids"] = ids
        if draw.maybe(0.6):
            # With padding on the left CLIP in transformers has NaN.
            sides = ["left", "right"] if family.startswith("siglip") else ["right"]
            inputs["attention_mask"] = mask_of(draw, rows, length, draw.choice(sides))
    return inputs


def new_inputs(draw, config, vocab_size, family):
    if family in PAIRED or family in OF_TEXTS or family in OF_IMAGES:
        return image_and_text_inputs(draw, config, family)
    rows, length = draw.randint(1, 3), draw.randint(3, 9)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))

    def tokens(*shape):
        ids = torch.randint(vocab_size, shape, generator=generator)
        pad = config.get("pad_token_id")
        if pad is not None and draw.maybe():
            ids[torch.rand(shape, generator=generator) < 0.3] = pad % vocab_size
        return ids

    def some_labels(*shape):
        labels = tokens(*shape)
        labels[torch.rand(shape, generator=generator) < 0.2] = -100
        labels[:, shape[1] // 2] = 3
        return labels

    inputs = {}
    if family in CLASSIFIERS or family == "vision-encoder-decoder":
        image = config.get("vision_config") or config.get("encoder") or config
        if family.startswith("whisper"):
            inputs["input_features"] = torch.randn(
                rows, config["num_mel_bins"], 2 * config["max_source_positions"],
                generator=generator)
        else:
            inputs["pixel_values"] = torch.randn(
                rows, image["num_channels"], image["image_size"], image["image_size"],
                generator=generator)
        if family in CLASSIFIERS:
            kind = dict(num_labels=len(config["id2label"]), problem_type=config["problem_type"])
            return dict(inputs, **task_labels(kind, "", rows, length, generator))
    elif family == "whisper":
        inputs["input_features"] = torch.randn(rows, config["num_mel_bins"],
                                               2 * config["max_source_positions"],
                                               generator=generator)
    else:
        inputs["input_ids"] = tokens(rows, length)
        # When the library computes a text of Phi-3 anew, its mask shows later tokens.
        is_restarted = family == "phi3" and config["rope_scaling"]
        if draw.maybe(0.6) and not is_restarted:
            # DeBERTa reads the arbitrary state of padding if that is first; others count it.
            is_counted = family.startswith("falcon.") and not takes_positions(family)
            sides = ["left", "right"][family.startswith("deberta") or is_counted:]
            inputs["attention_mask"] = mask_of(draw, rows, length, draw.choice(sides))
    task = family.partition(".")[2]
    if is_encoder(family) and config.get("type_vocab_size", 1) > 1 and draw.maybe():
        inputs["token_type_ids"] = torch.randint(config["type_vocab_size"], (rows, length),
                                                 generator=generator)
    if task == "multiple_choice":
        n = draw.randint(2, 4)
        if family.startswith("modernbert"):  # whose means need it
            inputs.setdefault("attention_mask", torch.ones(rows, length, dtype=torch.int64))
        inputs = {key: value.unsqueeze(1).repeat(1, n, 1) for key, value in inputs.items()}
        inputs["input_ids"] = tokens(rows, n, length)
        return dict(inputs, labels=torch.randint(n, (rows,), generator=generator))
    if task:
        inputs.update(task_labels(config, task, rows, length, generator))
        if family.startswith("mbart."):  # each row needs a token that is no padding
            inputs["input_ids"][:, 0] = (config["pad_token_id"] + 1) % vocab_size
        if task == "question_answering":  # it reads the arbitrary logits of padding
            inputs.pop("attention_mask", None)
        pad = config.get("pad_token_id")
        if task == "sequence_classification" and "attention_mask" in inputs and pad is not None:
            # A decoder reads the last token that is no padding, by its id.
            hidden = inputs["attention_mask"] == 0
            inputs["input_ids"] = inputs["input_ids"].masked_fill(hidden, max(pad, 0))
            inputs["input_ids"][:, length // 2] = (max(pad, 0) + 1) % vocab_size
        if task == "sequence_classification" and family.partition(".")[0] in ENCODER_DECODERS:
            # They read the end token, of which each row must have the same number.
            ids, end = inputs["input_ids"], config["eos_token_id"]
            ids[ids == end] = (end + 1) % vocab_size
            ids[:, draw.randrange(length)] = end
        if task in ("token_classification", "masked_lm") and "attention_mask" in inputs:
            inputs["labels"][inputs["attention_mask"] == 0] = -100
        return inputs
    if family in ENCODER_DECODERS:
        inputs["labels"] = some_labels(rows, draw.randint(2, 7))
        if draw.maybe(0.4):
            inputs["decoder_input_ids"] = tokens(*inputs["labels"].shape)
            if draw.maybe(0.6):
                inputs["decoder_attention_mask"] = mask_of(draw, *inputs["labels"].shape,
                                                           draw.choice(["left", "right"]))
    else:
        inputs["labels"] = some_labels(rows, length)
    # What stands on padding, and what it predicts, is arbitrary.
    mask = inputs.get("attention_mask" if "decoder_input_ids" not in inputs
                      else "decoder_attention_mask")
    if mask is not None and mask.shape == inputs["labels"].shape:
        is_padding = mask == 0
        if family not in ENCODER_DECODERS:
            is_padding[:, 1:] |= mask[:, :-1] == 0
        inputs["labels"][is_padding] = -100
    return inputs


def some_processors(draw, vocab_size, prompt, is_text, is_beam):
    """Options that change scores; None where transformers has nothing."""
    def some_tokens(n):
        return [draw.token(vocab_size) for _ in range(draw.randint(1, n))]

    options = dict(
        sequence_bias=[[[draw.randint(1, vocab_size - 1) for _ in range(draw.randint(1, 2))],
                        draw.number(-5, 5)] for _ in range(6)],
        repetition_penalty=draw.number(0.5, 2), no_repeat_ngram_size=draw.randint(1, 3),
        bad_words_ids=[some_tokens(2) for _ in range(6)], min_length=prompt + draw.randint(0, 4),
        min_new_tokens=draw.randint(0, 4), forced_bos_token_id=draw.token(vocab_size),
        forced_eos_token_id=draw.choice([draw.token(vocab_size), some_tokens(2)]),
        remove_invalid_values=draw.maybe(), suppress_tokens=some_tokens(4) + [vocab_size + 3],
        begin_suppress_tokens=some_tokens(4), renormalize_logits=draw.maybe(),
        exponential_decay_length_penalty=[draw.randint(0, 3), draw.number(1, 1.5)])
    if is_text:
        options["encoder_no_repeat_ngram_size"] = draw.randint(1, 3)
        if not is_beam:
            options["encoder_repetition_penalty"] = draw.number(0.5, 2)
    chosen = {key: options[key] for key in draw.sample(sorted(options), draw.randint(0, 4))}
    if any(key in chosen for key in ("min_length", "min_new_tokens", "bad_words_ids",
                                     "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
                                     "suppress_tokens", "forced_bos_token_id",
                                     "forced_eos_token_id", "begin_suppress_tokens")):
        chosen.pop("exponential_decay_length_penalty", None)  # -inf + inf
    return chosen


def some_warpers(draw):
    options = dict(temperature=draw.number(0.3, 3), top_k=draw.choice([0, 1, 5, 100]),
                   top_p=draw.number(0.05, 1), min_p=draw.number(0, 1),
                   typical_p=draw.number(0.05, 1), epsilon_cutoff=draw.number(0, 0.2),
                   eta_cutoff=draw.number(0, 0.2))
    chosen = draw.sample(sorted(options), draw.randint(1, 3))
    return dict({key: options[key] for key in chosen}, do_sample=True)


def new_generations(draw, vocab_size, prompt, is_text):
    """(how it is compared, options) of each."""
    found = []
    for is_beam in (False, True):
        options = some_processors(draw, vocab_size, prompt, is_text, is_beam)
        if draw.maybe(0.8):
            options["max_new_tokens"] = draw.randint(1, 8)
        if is_beam:
            options.update(num_beams=draw.randint(2, 3), length_penalty=draw.number(-1, 2),
                           early_stopping=draw.choice([True, False, "never"]))
            options["num_return_sequences"] = draw.randint(1, options["num_beams"])
        if draw.maybe(0.3):
            options["eos_token_id"] = [draw.token(vocab_size) for _ in range(draw.randint(1, 2))]
        found.append(("tokens", options))
    for _ in range(2):
        options = some_processors(draw, vocab_size, prompt, is_text, False)
        options.update(some_warpers(draw), max_new_tokens=4)
        found.append(("scores", options))
    return found


def processed(model, options, prompt, scores, ids, encoder_ids):
    """What transformers' processors make of the scores of the next token."""
    config, _ = model._prepare_generation_config(None, **options)
    model._prepare_special_tokens(config, device="cpu")
    config = model._prepare_generated_length(config, True, "min_length" not in options, "input_ids",
                                             prompt, ids)
    return model._get_logits_processor(config, prompt, encoder_ids, device="cpu")(ids, scores)


def prompts_of(inputs, is_encoder_decoder, pad_token_id):
    prompts = {key: value.clone() for key, value in inputs.items()
               if key in ("input_ids", "attention_mask", "pixel_values", "input_features")}
    if is_encoder_decoder:
        for key in ("decoder_input_ids", "decoder_attention_mask"):
            if key in inputs:
                prompts[key] = inputs[key]
    elif "attention_mask" in prompts:  # that of a prompt is on the left
        lengths = prompts["attention_mask"].sum(1)
        for row, n in zip(prompts["attention_mask"], lengths):
            row[:] = 0
            row[len(row) - n:] = 1
    else:  # a padding token at the end would be padding on the right
        prompts["input_ids"][:, -1] = 4 if pad_token_id == 5 else 5
    return prompts


def used(model):
    """The parameters, without those that the library makes with every ViT and that captions don't
    use."""
    return [(name, parameter) for name, parameter in model.named_parameters()
            if ("pooler" not in name or model.config.model_type in ENCODERS
                or name.startswith("pooler"))
            and parameter.requires_grad]


def with_positions(inputs, model, family):
    """The inputs with the positions that redco-lua counts in a mask; OPT does it by itself."""
    mask = inputs.get("attention_mask")
    if mask is None or is_encoder(family) or family in PAIRED or family in OF_TEXTS or \
            family.partition(".")[0] in {"opt", "bloom", *ENCODER_DECODERS} or \
            not takes_positions(family):
        return dict(inputs)
    return dict(inputs, position_ids=(mask.cumsum(1) - 1).clamp(min=0))


def in_double(inputs):
    return {key: value.double() if value.is_floating_point() else value
            for key, value in inputs.items()}


def generated(model, prompts, options, is_double=False):
    """The tokens, by a copy: rope_type "dynamic" remembers the longest text."""
    own = copy.deepcopy(model)
    own.config.output_router_logits = False  # it fails with a cache
    own = own.double() if is_double else own
    generate = own.generate
    if "input_features" in prompts and "decoder_input_ids" in prompts:  # as of other models
        generate = functools.partial(transformers.GenerationMixin.generate, own)
    with torch.no_grad():
        return generate(**prompts, **options)


def features_of(out):
    """What models of texts and images return in redco-lua."""
    for key in ("logits_per_image", "text_embeds", "image_embeds", "pooler_output"):
        if out.get(key) is not None:
            return out[key]
    return None


def logits_of(out):
    """Those of the begin and the end of an answer as redco-lua has them."""
    if features_of(out) is not None and "logits" not in out:
        return features_of(out).detach()
    if "logits" in out:
        logits = out.logits.detach()
        # DeBERTa-v2 returns those of a regression without their dimension.
        return logits.unsqueeze(-1) if logits.dim() == 1 else logits
    return torch.stack([out.start_logits, out.end_logits], -1).detach()


def reference(model, inputs, family):
    """Everything that is compared, and the generations."""
    known, found = with_positions(inputs, model, family), {}
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(STEPS):
        out = model(**known, **(dict(return_loss=True) if family in PAIRED else {}))
        loss = out.loss if out.get("loss") is not None else features_of(out).pow(2).mean()
        if family == "vision-encoder-decoder":  # transformers 4.57 shifts these labels twice
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1),
                                                     inputs["labels"].flatten())
        model.zero_grad()
        loss.backward()
        for name, parameter in used(model):
            if "experts" in name and parameter.grad is None:  # chosen for no token
                parameter.grad = torch.zeros_like(parameter)
        if step == 0:
            found["logits"], found["loss"] = logits_of(out).clone(), loss.detach().clone()
            for name, parameter in used(model):
                grad = parameter.grad
                if grad is None and family in CLASSIFIERS:  # behind what they read
                    continue
                found["grad." + name] = (torch.zeros_like(parameter) if grad is None
                                         else grad.clone())
        optimizer.step()
    for name, parameter in used(model):
        found["after." + name] = parameter.detach().clone()
    return found


# Keys that config.json may have besides those that transformers writes.
MORE_KEYS = dict(
    attention_chunk_size=2, chunk_size_feed_forward=2, cross_attention_hidden_size=4,
    decoder_layerdrop=0.5, dense_act_fn="tanh", head_dim=4, hidden_size=8, is_decoder=True,
    is_gated_act=True, layer_norm_elementwise_affine=False, layer_types=["full_attention"],
    layerdrop=0.5, n_ctx=4, normalize_before=True, num_attention_heads=1, num_hidden_layers=1,
    num_labels=5, original_max_position_embeddings=4, partial_rotary_factor=0.5, pretraining_tp=2,
    problem_type="regression", pruned_heads={"0": [0]}, quantization_config=dict(
        quant_method="bitsandbytes", load_in_8bit=True),
    rope_theta=77.0, rotary_pct=0.5, scale_attn_by_inverse_layer_idx=True,
    scale_attn_weights=False, scale_embedding=True, sliding_window=2,
    static_position_embeddings=True, use_sliding_window=True, max_window_layers=1,
    use_bidirectional_attention=True, no_rope_layer_interval=2,
    tie_encoder_decoder=True, tie_word_embeddings=False, torchscript=True,
    position_embedding_type="relative_key", add_cross_attention=True, sinusoidal_pos_embds=True,
    classifier_dropout=0.5)
# Without a cache, positions that depend on the length are those of the whole text for each token.
SETTLED = {"architectures", "dtype", "model_type", "transformers_version", "id2label", "label2id",
           "use_cache"}


def changed(draw, config):
    """The configuration with one other value, at any depth."""
    config = json.loads(json.dumps(config))
    parts = [config] + [part for part in config.values()
                        if isinstance(part, dict) and "model_type" in part]
    part = draw.choice(parts)
    if draw.maybe(0.4):
        key = draw.choice(sorted(MORE_KEYS))
        part[key] = MORE_KEYS[key]
        return config
    key = draw.choice(sorted(set(part) - SETTLED))
    value = part[key]
    if isinstance(value, dict) and value:
        inner = draw.choice(sorted(value))
        part, key, value = value, inner, value[inner]
    if key == "sliding_window":  # 1 is wrong in the library's cache: it keeps all tokens
        part[key] = draw.choice([2, 3, 4, 50])
    elif isinstance(value, bool):
        part[key] = not value
    elif isinstance(value, (int, float)):
        part[key] = draw.choice([value + 1, value * 2, value / 2, 0.25, 1, 2])
        if isinstance(value, int):
            part[key] = int(part[key])
    elif isinstance(value, str):
        part[key] = draw.choice(ACTIVATIONS)
    else:
        part[key] = draw.choice([1, 2, True, "gelu"])
    return config


def write_changed(draw, folder, i, family, inputs, prompts):
    """A folder with the weights of another one, and what transformers makes of it; {} where it
    fails or has no such weights."""
    place = folder / f"changed-{i}"
    place.mkdir()
    config = changed(draw, json.loads((folder / "config.json").read_text()))
    (place / "config.json").write_text(json.dumps(config))
    for file in (*folder.glob("model*"), *folder.glob("pytorch_model*")):
        (place / file.name).symlink_to(file)
    try:
        model, info = getattr(transformers, FAMILIES[family][1]).from_pretrained(
            place, attn_implementation=attention_of(family), output_loading_info=True)
        if any("pooler" not in key for key in info["missing_keys"]) or info["mismatched_keys"]:
            return {}
        found = {}
        with torch.no_grad():
            found[f"changed.{i}.logits"] = logits_of(model.eval()(**inputs)).clone()
            if is_generative(family):
                found[f"changed.{i}.tokens"] = generated(model, prompts, dict(max_new_tokens=4))
        return found
    except Exception:  # whatever it is: there is nothing to compare with
        return {}


def write_model(draw, model, folder, family, vocab_size):
    """Files of torch.save or safetensors, one or several, in one of three dtypes."""
    dtype = draw.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    if family in ("marian", "pegasus"):  # whose sinusoids are computed, not read rounded
        dtype = torch.float32
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(dtype))
    if is_generative(family) and family != "whisper" and draw.maybe(0.4):
        for key, value in generation_config(draw, vocab_size).items():
            setattr(model.generation_config, key, value)
    copy.deepcopy(model).to(dtype).save_pretrained(
        folder, safe_serialization=draw.maybe(0.7),
        max_shard_size="20KB" if draw.maybe(0.3) else "1GB")


def generation_config(draw, vocab_size):
    """What generation_config.json says beside special tokens."""
    options = dict(repetition_penalty=draw.number(0.5, 2), no_repeat_ngram_size=draw.randint(1, 3),
                   suppress_tokens=[draw.token(vocab_size)], max_length=draw.randint(8, 20),
                   begin_suppress_tokens=[draw.token(vocab_size)],
                   bad_words_ids=[[draw.token(vocab_size)], [1, 2]],
                   min_new_tokens=draw.randint(1, 3), renormalize_logits=True)
    return {key: options[key] for key in draw.sample(sorted(options), draw.randint(1, 3))}


def write_config(draw, folder):
    """The configuration as other versions of the library write it."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    if draw.maybe(0.3) and "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if draw.maybe(0.4):
        config = of_version_5(config)
    place.write_text(json.dumps(config))


def of_version_5(config):
    """rope_parameters has all settings of the positions; of two kinds of layers there are two."""
    config = dict(config)
    keys = dict(gpt_neox=("rotary_emb_base", "rotary_pct")).get(
        config["model_type"], ("rope_theta", "partial_rotary_factor"))
    if config["model_type"] == "modernbert":
        thetas = [config.pop("global_rope_theta"), config.pop("local_rope_theta")]
        kinds = ["full_attention", "sliding_attention"]
        n = config.pop("global_attn_every_n_layers")
        config["layer_types"] = [kinds[i % n != 0] for i in range(config["num_hidden_layers"])]
        config["rope_parameters"] = {
            kind: dict(rope_type="default", rope_theta=theta or thetas[0])
            for kind, theta in zip(kinds, thetas)}
    elif keys[0] in config:
        rope = config.pop("rope_scaling", None) or {}
        rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
        rope["rope_theta"] = config.pop(keys[0])
        if rope["rope_type"] == "longrope":  # version 4 does not read this one
            rope.pop("original_max_position_embeddings", None)
        if config.get("original_max_position_embeddings"):  # there `factor` counts before it
            rope.pop("factor" if rope["rope_type"] == "longrope" else None, None)
        if config["model_type"] == "gemma3_text":
            near = dict(rope_type="default", rope_theta=config.pop("rope_local_base_freq"))
            rope = dict(full_attention=rope, sliding_attention=near)
        elif keys[1] in config:
            rope["partial_rotary_factor"] = config.pop(keys[1])
        config["rope_parameters"] = rope
    return config


def write_case(folder, seed, family):
    draw = Draw(f"{seed} {family}")
    config, model, vocab_size = new_model(draw, family)
    inputs = new_inputs(draw, config, vocab_size, family)
    if config.get("pad_token_id") == -1 and is_generative(family):  # which counts from the end; no option of generate does
        model.generation_config.pad_token_id = None
    write_model(Draw(f"{seed} files"), model, folder, family, vocab_size)
    expected, noise, case = {}, {}, dict(family=family, generations=[], changes=CHANGES)
    if is_generative(family):
        prompts = prompts_of(inputs, model.config.is_encoder_decoder,
                             config.get("pad_token_id"))
        encoder_ids = next(prompts[key] for key in ("input_ids", "pixel_values", "input_features")
                           if key in prompts)
        own_ids = (inputs.get("decoder_input_ids") if model.config.is_encoder_decoder
                   else encoder_ids)
        prompt = own_ids.shape[1] if own_ids is not None else 1
        for i, (kind, options) in enumerate(
                new_generations(draw, vocab_size, prompt, "input_ids" in prompts)):
            if family == "whisper":
                options.pop("eos_token_id", None)
            case["generations"].append(dict(kind=kind, options=options, prompt_length=prompt))
            if kind == "tokens":
                try:
                    expected[f"tokens.{i}"] = generated(model, prompts, options)
                    noise[f"tokens.{i}"] = generated(model, in_double(prompts), options, True)
                except ValueError:  # both must refuse it
                    pass
                except IndexError:  # the library's Whisper fails on a text without any token
                    case["generations"][-1]["kind"] = "none"
                continue
            rows = encoder_ids.shape[0]
            length = prompt + draw.randint(0, 3)
            ids = torch.randint(vocab_size, (rows, length))
            scores = 3 * torch.randn(rows, vocab_size)
            if draw.maybe(0.2):
                scores[:, draw.token(vocab_size)] = -float("inf")
            inputs[f"ids.{i}"], inputs[f"scores.{i}"] = ids, scores
            expected[f"scores.{i}"] = processed(model, options, prompt, scores, ids, encoder_ids)
        inputs.update({"prompt." + key: value.clone() for key, value in prompts.items()})
    batch = {key: value for key, value in inputs.items() if "." not in key}
    expected.update(reference(copy.deepcopy(model), batch, family))
    if family in PAIRED or family in OF_TEXTS:  # CLIP makes its mask in this type
        torch.set_default_dtype(torch.float64)
    noise.update(reference(copy.deepcopy(model).double(), in_double(batch), family))
    torch.set_default_dtype(torch.float32)
    known = {key: value for key, value in with_positions(inputs, model, family).items()
             if "." not in key and "labels" not in key and "_positions" not in key}
    is_text = model.config.is_encoder_decoder and is_generative(family)
    if is_text and "decoder_input_ids" not in known:
        known["labels"] = inputs["labels"]
    prompts = {key.removeprefix("prompt."): value for key, value in inputs.items()
               if key.startswith("prompt.")}
    for i in range(CHANGES):
        expected.update(write_changed(draw, folder, i, family, known, prompts))
    write_config(Draw(f"{seed} config"), folder)
    save_file({key: value.contiguous() for key, value in inputs.items()},
              folder / "inputs.safetensors")
    for name, arrays in dict(expected=expected, noise=noise).items():
        save_file({key: value.contiguous() for key, value in arrays.items()},
                  folder / f"{name}.safetensors")
    (folder / "case.json").write_text(json.dumps(case))


def write_cases(folder, seed, count, families):
    """`count` cases; the families take turns. Returns their folders."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    folders = []
    for i in range(count):
        family = families[(seed + i) % len(families)]
        folders.append(folder / f"{seed + i}-{family}")
        write_case(folders[-1], seed + i, family)
    return folders


def difference(name, ours, theirs, in_double, inputs, case):
    """How far they are apart, in words; None where they agree as well as transformers does with
    itself in float64."""
    if ours.shape != theirs.shape:
        return f"has the shape {list(ours.shape)}, expected {list(theirs.shape)}"
    if name.startswith("tokens") or name.endswith(".tokens"):
        is_close_call = in_double is not None and not torch.equal(in_double, theirs)
        if is_close_call or torch.equal(ours, theirs):
            return None
        return f"{ours.tolist()}, expected {theirs.tolist()}"
    if name.endswith("logits"):  # what stands on padding is arbitrary
        decoder = "decoder_attention_mask" in inputs or case["family"] in ENCODER_DECODERS
        mask = inputs.get("decoder_attention_mask" if decoder else "attention_mask")
        if mask is not None and mask.shape == ours.shape[:2]:
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
            in_double = in_double[mask.bool()] if in_double is not None else None
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().masked_fill(same, 0)
    finite = theirs[theirs.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 1
    most = apart.max().item() if apart.numel() else 0
    bound = 1e-6 if name.startswith("scores") else 5e-4 if name.startswith("grad") else 2e-4
    if name.startswith("after"):  # of parameters near 1, and of biases that begin at 0.4 or less
        scale = max(scale, 1)
    noise = 0
    if in_double is not None:  # NaN where transformers' attention rounds -inf to float32
        noise = (in_double - theirs).nan_to_num(0).abs().max().item()
    if most <= bound * max(scale, 1e-3) + 10 * noise:
        return None
    return f"differs by up to {most:.2g}; the largest is {scale:.2g}"


def difference_of(before, after):
    return {key: (before.get(key), after.get(key)) for key in {*before, *after}
            if before.get(key) != after.get(key)}


def wrong(folder):
    """What differs in one case, in words."""
    case = json.loads((folder / "case.json").read_text())
    if (folder / "error.txt").exists():
        return [(folder / "error.txt").read_text().strip()]
    expected, found = load_file(folder / "expected.safetensors"), load_file(
        folder / "result.safetensors")
    inputs = load_file(folder / "inputs.safetensors")
    noise = load_file(folder / "noise.safetensors")
    named = {**expected, **found}
    largest = max([value.abs().max().item() for key, value in expected.items()
                   if key.startswith("grad.")], default=1)
    messages = []
    for name in sorted(named, key=lambda name: (ORDER.index(name.split(".")[0]), name)):
        if name.startswith("changed.") and not (name in expected and name in found):
            continue  # one of them refused it
        if name not in expected or name not in found:
            where = "transformers" if name not in found else "redco-lua"
            messages.append(f"{name}: only {where} has it")
            continue
        message = difference(name, found[name], expected[name], noise.get(name), inputs, case)
        if message and name.startswith("grad."):
            # Of what is zero except for rounding.
            if (found[name] - expected[name]).abs().max() <= 1e-5 * largest:
                continue
        if message and name.startswith("changed."):
            place = folder / f"changed-{name.split('.')[1]}" / "config.json"
            before = json.loads((folder / "config.json").read_text())
            message += f"\n    {difference_of(before, json.loads(place.read_text()))}"
        if message and name.startswith(("tokens.", "scores.")):
            message += f"\n    {case['generations'][int(name.split('.')[1])]['options']}"
        if message:
            messages.append(f"{name}: {message}")
    try:
        reloaded = getattr(transformers, FAMILIES[case["family"]][1]).from_pretrained(
            folder / "saved").eval()
        state = dict(reloaded.named_parameters())
        for name, value in found.items():
            if name.startswith("after.") and not torch.equal(
                    state[name.removeprefix("after.")], value):
                messages.append(f"saved: {name} differs")
    except Exception as error:  # any of them is a difference
        messages.append(f"saved: {error}")
    return messages[:6] + [f"and {len(messages) - 6} more"] if len(messages) > 7 else messages
