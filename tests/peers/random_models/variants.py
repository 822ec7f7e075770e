"""Random configurations of decoders that combine parts of others."""
import transformers

from .decoders import (exaone4, gemma2, granite, hunyuan, layer_types, like_llama, olmo2,
                       rope_scaling, with_newer_name)
from .draw import DECODERS, draws
from .mixtures import deepseek_v3, glm4_moe, granitemoe, groups

IS_OLD = transformers.__version__.startswith("4.")


@draws("iquestcoder", of=DECODERS)
def iquestcoder(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("exaone", of=DECODERS)
def exaone(draw):
    config = like_llama(draw)
    for key, name in dict(num_hidden_layers="num_layers", hidden_act="activation_function",
                          rms_norm_eps="layer_norm_epsilon").items():
        config[name] = config.pop(key)
    config["hidden_size"] = config["num_attention_heads"] * 4 * draw.randint(1, 3)
    config.pop("head_dim", None)
    config["rope_scaling"] = with_newer_name(rope_scaling(
        draw, config["hidden_size"] // config["num_attention_heads"] // 2))
    return config


@draws("internlm3", of=DECODERS)
def internlm3(draw):
    config = iquestcoder(draw)
    config["qkv_bias"] = config["bias"] = config.pop("attention_bias")
    del config["mlp_bias"]
    return config


@draws("cwm", of=DECODERS)
def cwm(draw):
    config = like_llama(draw, mlp_bias=draw.maybe(), sliding_window=draw.randint(2, 6))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    layer_types(draw, config)
    if config["rope_scaling"] is None:
        del config["rope_scaling"]  # then it is that of the public model
    return config


@draws("ministral", of=DECODERS)
def ministral(draw):
    config = like_llama(draw, sliding_window=draw.choice([2, 3, 5, 30]))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    layer_types(draw, config)
    return config


@draws("hyperclovax", of=DECODERS)
def hyperclovax(draw):
    config = granite(draw)
    config["use_post_norm"] = draw.maybe()
    if draw.maybe():
        del config["attention_multiplier"]
    return config


@draws("jais2", of=DECODERS)
def jais2(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
                        layer_norm_eps=draw.choice([1e-5, 0.1]))
    del config["rms_norm_eps"]
    return config


@draws("youtu", of=DECODERS)
def youtu(draw):
    config = deepseek_v3(draw)
    for key in [*groups(draw), "norm_topk_prob"]:
        del config[key]
    config.pop("pad_token_id", None)  # whose row the library sets to zero when it opens a folder
    return config


@draws("vaultgemma", of=DECODERS)
def vaultgemma(draw):
    return gemma2(draw)


@draws("nanochat", of=DECODERS)
def nanochat(draw):
    config = like_llama(draw, attention_bias=draw.maybe(),
                        final_logit_softcapping=draw.choice([None, 3.0, 30.0]))
    config.pop("head_dim", None)
    config["hidden_size"] = config["num_attention_heads"] * 4 * draw.randint(1, 3)
    pairs = config["hidden_size"] // config["num_attention_heads"] // 2
    config["rope_scaling"] = with_newer_name(rope_scaling(draw, pairs))
    return config


@draws("solar_open", of=DECODERS)
def solar_open(draw):
    config = glm4_moe(draw)
    for key in ("first_k_dense_replace", "use_qk_norm", "intermediate_size",
                "partial_rotary_factor"):
        del config[key]
    config["rope_scaling"] = with_newer_name(rope_scaling(draw, config["head_dim"] // 2))
    return config


@draws("dots1", of=DECODERS)
def dots1(draw):
    config = like_llama(draw, **groups(draw), attention_bias=draw.maybe(),
                        norm_topk_prob=draw.maybe(), sliding_window=draw.choice([None, 2, 3, 5]),
                        max_window_layers=draw.randint(0, 2))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if config["sliding_window"]:
        layer_types(draw, config)
    return config


@draws("flex_olmo", of=DECODERS)
def flex_olmo(draw):
    config, n = olmo2(draw), draw.randint(2, 5)
    config.setdefault("pad_token_id", 0)
    config.update(num_experts=n, num_experts_per_tok=draw.randint(1, n),
                  norm_topk_prob=draw.maybe(), output_router_logits=draw.maybe(),
                  router_aux_loss_coef=0.1)
    return config


@draws("granitemoeshared", of=DECODERS)
def granitemoeshared(draw):
    config = granitemoe(draw)
    config["shared_intermediate_size"] = draw.choice([0, draw.randint(3, 20)])
    return config


@draws("hunyuan_v1_moe", of=DECODERS)
def hunyuan_moe(draw):
    config, n_layers = hunyuan(draw), draw.randint(1, 3)
    n = [draw.randint(2, 5) for _ in range(n_layers)]
    k = [draw.randint(1, m) for m in n]
    is_list = draw.maybe() and IS_OLD  # version 5 has one of both
    config.update(num_hidden_layers=n_layers, num_experts=n if is_list else n[0],
                  moe_topk=k if is_list else k[0])
    return config


@draws("exaone_moe", of=DECODERS)
def exaone_moe(draw):
    config, given = exaone4(draw), groups(draw)
    if config["sliding_window"] is None:
        config["sliding_window"] = 3
    config.update(given, num_experts=given.pop("n_routed_experts"),
                  num_shared_experts=given.pop("n_shared_experts"), norm_topk_prob=draw.maybe())
    if draw.maybe():
        config["mlp_layer_types"] = [draw.choice(["dense", "sparse"])
                                     for _ in range(config["num_hidden_layers"])]
    return config


@draws("phimoe", of=DECODERS)
def phimoe(draw):
    config = like_llama(
        draw, num_local_experts=draw.randint(2, 6), num_experts_per_tok=2,
        attention_bias=draw.maybe(), lm_head_bias=draw.maybe(), output_router_logits=draw.maybe(),
        router_aux_loss_coef=0.1, router_jitter_noise=draw.choice([0.01, 0.3]),
        # With windows the cache of version 4 has other numbers than the whole text.
        sliding_window=None if IS_OLD else draw.choice([None, 2, 5]), rope_scaling=None)
    config.pop("head_dim", None)
    size = 2 * draw.randint(2, 5)
    config["hidden_size"] = config["num_attention_heads"] * size
    if draw.maybe():
        config["sliding_window"] = None  # see new_inputs
        # Version 5 takes the short factors for all texts.
        config["rope_scaling"] = dict(
            type="longrope", short_factor=[draw.number(1, 5) for _ in range(size // 2)],
            long_factor=[draw.number(1, 5) for _ in range(size // 2)],
            short_mscale=draw.number(0.5, 2), long_mscale=draw.number(0.5, 2),
            # When a text becomes longer than that, the mask of version 4 shows later tokens.
            original_max_position_embeddings=draw.choice([2, 64]) if IS_OLD else 64)
    return config


@draws("gemma4_text", of=DECODERS)
def gemma4(draw):
    config = gemma2(draw)
    for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "rope_theta", "rope_scaling"):
        del config[key]
    config.setdefault("pad_token_id", 0)
    n = config["num_hidden_layers"] = draw.randint(2, 4)
    kinds = ["full_attention", "sliding_attention"][:draw.randint(1, 2)]
    config["layer_types"] = kinds[::-1] + [draw.choice(kinds) for _ in range(n - len(kinds))]
    config["layer_types"][-1] = "full_attention"  # as it becomes anyway
    n_own = draw.randint(len(kinds), n)
    has_experts = draw.maybe()
    size, experts = 2 * draw.randint(2, 5), draw.randint(2, 5)
    config.update(
        num_kv_shared_layers=n - n_own, global_head_dim=size,
        hidden_size_per_layer_input=draw.choice([0, draw.randint(2, 8)]),
        vocab_size_per_layer_input=config["vocab_size"], attention_k_eq_v=draw.maybe(),
        num_global_key_value_heads=draw.choice([None, config["num_attention_heads"], 1]),
        use_double_wide_mlp=draw.maybe(), enable_moe_block=has_experts,
        use_bidirectional_attention=draw.choice([None, "vision"]))
    if config["hidden_size_per_layer_input"] == 0:  # with both the library fails
        config["num_kv_shared_layers"] = 0
    if has_experts:
        config.update(num_experts=experts, top_k_experts=draw.randint(1, experts),
                      moe_intermediate_size=draw.randint(3, 20))
    if draw.maybe(0.7):
        far = dict(rope_type="proportional", rope_theta=draw.choice([100.0, 10000.0]),
                   partial_rotary_factor=draw.choice([0.25, 0.5, 1.0]))
        if draw.maybe(0.3):
            far["factor"] = draw.number(1, 8)
        config["rope_parameters"] = dict(
            full_attention=far, sliding_attention=dict(rope_type="default", rope_theta=100.0))
    return config
