"""Random configurations of decoders with mixtures of experts."""
import transformers

from .decoders import granite, layer_types, like_llama, turns_a_part
from .draw import ACTIVATIONS, DECODERS, common, draws


@draws("mixtral", of=DECODERS)
def mixtral(draw):
    n = draw.randint(2, 5)
    return like_llama(draw, sliding_window=draw.choice([None, 2, 5]), num_local_experts=n,
                      num_experts_per_tok=draw.randint(1, n), router_jitter_noise=0.0,
                      output_router_logits=draw.maybe(), router_aux_loss_coef=0.1,
                      head_dim=2 * draw.randint(2, 4), rope_scaling=None)


@draws("qwen3_moe", of=DECODERS)
def qwen3_moe(draw):
    n = draw.randint(2, 5)
    return like_llama(draw, attention_bias=draw.maybe(), num_experts=n,
                      num_experts_per_tok=draw.randint(1, n), norm_topk_prob=draw.maybe(),
                      moe_intermediate_size=draw.randint(3, 20),
                      num_hidden_layers=2, decoder_sparse_step=draw.randint(1, 2),
                      mlp_only_layers=draw.choice([[], [0]]), output_router_logits=draw.maybe(),
                      router_aux_loss_coef=0.1, use_sliding_window=draw.maybe(),
                      sliding_window=draw.randint(2, 6))


@draws("olmoe", of=DECODERS)
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


def groups(draw):
    n_group, in_group = draw.randint(1, 3), draw.randint(2, 3)
    topk_group = draw.randint(1, n_group)
    return dict(n_routed_experts=n_group * in_group, n_group=n_group, topk_group=topk_group,
                num_experts_per_tok=draw.randint(1, topk_group * in_group),
                moe_intermediate_size=draw.randint(3, 20), n_shared_experts=draw.randint(1, 2),
                first_k_dense_replace=draw.randint(0, 2),
                routed_scaling_factor=draw.number(0.5, 3))


@draws("deepseek_v3", of=DECODERS)
def deepseek_v3(draw):
    n_heads, turned = draw.randint(1, 4), 2 * draw.randint(1, 4)
    config = like_llama(
        draw, **groups(draw), num_attention_heads=n_heads, num_key_value_heads=n_heads,
        hidden_size=draw.randint(3, 40), q_lora_rank=draw.choice([None, draw.randint(2, 20)]),
        kv_lora_rank=draw.randint(2, 20), qk_rope_head_dim=turned,
        qk_nope_head_dim=draw.randint(1, 10), v_head_dim=draw.randint(1, 20),
        norm_topk_prob=draw.maybe(), rope_interleave=draw.maybe(0.7),
        attention_bias=draw.maybe(), rope_scaling=None)
    config.pop("head_dim", None)
    if draw.maybe():
        config["rope_scaling"] = dict(
            rope_type="yarn", factor=draw.number(1, 8), mscale=draw.choice([1.0, 0.7]),
            mscale_all_dim=draw.choice([0.0, 1.0, 0.7]), beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=draw.randint(4, 64))
    return config


@draws("glm4_moe_lite", of=DECODERS)
def glm4_moe_lite(draw):
    config = deepseek_v3(draw)
    del config["first_k_dense_replace"]
    if draw.maybe():
        config["mlp_layer_types"] = [draw.choice(["dense", "sparse"])
                                     for _ in range(config["num_hidden_layers"])]
    return config


@draws("minimax_m2", of=DECODERS)
def minimax_m2(draw):
    n = draw.randint(2, 5)
    config = like_llama(draw, num_local_experts=n, num_experts_per_tok=draw.randint(1, n))
    turns_a_part(draw, config)
    return config


@draws("qwen2_moe", of=DECODERS)
def qwen2_moe(draw):
    n = draw.randint(2, 5)
    config = like_llama(draw, qkv_bias=draw.maybe(), num_experts=n,
                        num_experts_per_tok=draw.randint(1, n), norm_topk_prob=draw.maybe(),
                        moe_intermediate_size=draw.randint(3, 20),
                        shared_expert_intermediate_size=draw.randint(3, 20),
                        num_hidden_layers=2, decoder_sparse_step=draw.randint(1, 2),
                        mlp_only_layers=draw.choice([[], [0]]), output_router_logits=draw.maybe(),
                        router_aux_loss_coef=0.1)
    config.pop("head_dim", None)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    config["rope_scaling"] = None
    return config


@draws("granitemoe", of=DECODERS)
def granitemoe(draw):
    config, n = granite(draw), draw.randint(2, 5)
    config.update(num_local_experts=n, num_experts_per_tok=draw.randint(1, n),
                  output_router_logits=draw.maybe(), router_aux_loss_coef=0.1, rope_scaling=None)
    del config["mlp_bias"]
    config.pop("head_dim", None)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    return config


@draws("jetmoe", of=DECODERS)
def jetmoe(draw):
    config, n = like_llama(draw), draw.randint(2, 5)
    for key in ("num_attention_heads", "head_dim", "hidden_act", "rope_scaling"):
        config.pop(key, None)
    config.update(num_local_experts=n, num_experts_per_tok=draw.randint(1, n),
                  num_key_value_heads=draw.randint(1, 3), kv_channels=2 * draw.randint(1, 4),
                  activation_function=draw.choice(ACTIVATIONS))
    return config


@draws("dbrx", of=DECODERS)
def dbrx(draw):
    config, n = common(draw), draw.randint(2, 5)
    n_kv, is_new = draw.randint(1, 2), transformers.__version__.startswith("5.")
    n_heads = n_kv * draw.randint(1, 2)
    config.update(  # of two numbers LayerNorm keeps little but the sign
        d_model=n_heads * 2 * draw.randint(2, 5), n_heads=n_heads, n_layers=draw.randint(1, 3),
        max_seq_len=64, attn_config=dict(
            clip_qkv=draw.choice([None, 0.5, 8][is_new:]), kv_n_heads=n_kv,  # version 5 needs it,
            rope_theta=draw.choice([100.0, 10000.0][is_new:])),  # and does not read this
        ffn_config=dict(
            ffn_act_fn=dict(name=draw.choice(ACTIVATIONS)), ffn_hidden_size=draw.randint(3, 20),
            moe_num_experts=n, moe_top_k=draw.randint(1, n),
            moe_normalize_expert_weights=draw.choice([None, 1, 2])))
    return config


@draws("glm4_moe", of=DECODERS)
def glm4_moe(draw):
    config = like_llama(draw, **groups(draw), attention_bias=draw.maybe(),
                        norm_topk_prob=draw.maybe(), use_qk_norm=draw.maybe())
    turns_a_part(draw, config)
    return config


@draws("deepseek_v2", of=DECODERS)
def deepseek_v2(draw):
    config = deepseek_v3(draw)
    del config["norm_topk_prob"], config["rope_interleave"]
    config["topk_method"] = draw.choice(["greedy", "group_limited_greedy"])
    for key in ("kv_lora_rank", "qk_nope_head_dim"):  # whose views are complex numbers
        config[key] += config[key] % 2
    if config["rope_scaling"] and transformers.__version__.startswith("4."):
        # Version 4 has no such factor of the scores, which the model needs.
        config["rope_scaling"]["mscale_all_dim"] = 0.0
    return config


@draws("ernie4_5_moe", of=DECODERS)
def ernie_moe(draw):
    n, start = draw.randint(2, 5), draw.randint(0, 1)
    end = draw.choice([-1, start])  # at least one layer has experts, else version 4 fails
    return like_llama(draw, moe_num_experts=n, moe_k=draw.randint(1, n),
                      moe_num_shared_experts=draw.randint(0, 2), moe_layer_start_index=start,
                      moe_layer_end_index=end,
                      moe_layer_interval=draw.randint(1, 2) if end == -1 else 1,
                      moe_intermediate_size=draw.randint(3, 20), num_hidden_layers=2)


@draws("gpt_oss", of=DECODERS)
def gpt_oss(draw):
    n = draw.randint(2, 5)
    config = like_llama(draw, num_local_experts=n, num_experts_per_tok=draw.randint(1, n),
                        sliding_window=draw.randint(2, 6))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    layer_types(draw, config)
    if config["rope_scaling"] is None or draw.maybe(0.3):
        del config["rope_scaling"]  # then it is YaRN
    if transformers.__version__.startswith("5."):  # else these are fixed
        config.update(attention_bias=draw.maybe(), swiglu_alpha=draw.number(0.5, 2),
                      swiglu_limit=draw.number(0.1, 8))
    return config


@draws("llama4_text", of=DECODERS)
def llama4(draw):
    n = draw.randint(2, 5)
    config = like_llama(
        draw, num_local_experts=n, num_experts_per_tok=draw.randint(1, n), rope_scaling=None,
        intermediate_size_mlp=draw.randint(3, 40), interleave_moe_layer_step=draw.randint(1, 2),
        use_qk_norm=draw.maybe(), attention_chunk_size=draw.randint(2, 6),
        no_rope_layer_interval=draw.randint(1, 4), attn_temperature_tuning=draw.maybe(0.7),
        floor_scale=draw.randint(1, 5), attn_scale=draw.number(0.05, 1))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    n_layers = config["num_hidden_layers"]
    if draw.maybe(0.3):
        config["no_rope_layers"] = [draw.randint(0, 1) for _ in range(n_layers)]
    if draw.maybe(0.3):
        config["moe_layers"] = draw.sample(range(n_layers), draw.randint(1, n_layers))
    if draw.maybe(0.3):
        config["layer_types"] = [draw.choice(["full_attention", "chunked_attention"])
                                 for _ in range(n_layers)]
    if draw.maybe(0.3):  # whatever else it names, version 4 reads this kind
        config["rope_scaling"] = dict(
            rope_type="llama3", factor=draw.number(1, 8), low_freq_factor=draw.number(0.5, 1.5),
            high_freq_factor=draw.number(2, 5), original_max_position_embeddings=draw.randint(4, 64))
    return config
