"""Random configurations of decoders whose layers have convolutions and recurrent states."""
import transformers

from .decoders import granite, like_llama, turns_a_part
from .draw import ACTIVATIONS, DECODERS, common, draws


STATES = {"lfm2", "lfm2_moe", "qwen3_next", "mamba2", "granitemoehybrid", "bamba", "falcon_h1",
          "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "mamba", "falcon_mamba",
          "jamba", "zamba2"}
IS_OLD = transformers.__version__.startswith("4.")


def padding_leaks(family, config, rows):
    """Whether transformers lets padding into a state: by the bias of what it multiplies by zero,
    and version 4 in some more cases."""
    return family.partition(".")[0] in STATES and (
        any(config.get(key) for key in ("conv_bias", "use_bias", "mamba_proj_bias",
                                       "add_bias_linear"))
        or IS_OLD and (rows == 1 or family.startswith(("lfm2", "zamba2"))))


def mamba(draw, config):
    """The layers of Mamba-2 of a hybrid."""
    n_groups = 1 if IS_OLD else draw.randint(1, 2)  # version 4 normalises all groups together
    n_heads = n_groups * draw.randint(1, 3)
    expand = draw.randint(1, 2)
    config["hidden_size"] = config["num_attention_heads"] * 2 * n_heads * draw.randint(1, 2)
    config.pop("head_dim", None)
    config["rope_scaling"] = None
    config.update(
        mamba_n_heads=n_heads, mamba_n_groups=n_groups, mamba_expand=expand,
        mamba_d_head=expand * config["hidden_size"] // n_heads, mamba_d_state=draw.randint(2, 6),
        mamba_d_conv=draw.randint(2, 4), mamba_conv_bias=draw.maybe(0.7),
        mamba_proj_bias=draw.maybe(0.3), hidden_act="silu", mamba_chunk_size=draw.randint(2, 8))
    return config


def settle(config):
    """Version 4 generates without a cache, where some positions depend on the length."""
    kind = (config["rope_scaling"] or {}).get("rope_type")
    if IS_OLD and kind in ("dynamic", "longrope"):
        config["rope_scaling"] = None


def some_layers(draw, config, *kinds):
    """The kinds of the layers, each of which occurs: version 4 needs it."""
    n = config["num_hidden_layers"] = draw.randint(len(kinds), 4)
    types = [*kinds] + [draw.choice(kinds) for _ in range(n - len(kinds))]
    draw.shuffle(types)
    return types


@draws("lfm2", of=DECODERS)
def lfm2(draw):
    config = like_llama(draw, norm_eps=draw.choice([1e-6, 1e-5, 0.1]), conv_bias=draw.maybe(),
                        conv_L_cache=draw.randint(2, 4), block_multiple_of=draw.randint(1, 8),
                        block_ffn_dim_multiplier=draw.choice([1.0, 1.3]),
                        block_auto_adjust_ff_dim=draw.maybe())
    for key in ("rms_norm_eps", "hidden_act"):
        del config[key]
    settle(config)
    config.setdefault("pad_token_id", 0)
    config["layer_types"] = some_layers(draw, config, "full_attention", "conv")
    if draw.maybe():
        types = config.pop("layer_types")
        config["full_attn_idxs"] = [i for i, kind in enumerate(types) if kind != "conv"]
    return config


@draws("lfm2_moe", of=DECODERS)
def lfm2_moe(draw):
    n = draw.randint(2, 5)
    config = lfm2(draw)
    for key in [key for key in config if key.startswith("block_") or key == "full_attn_idxs"]:
        del config[key]
    config["layer_types"] = some_layers(draw, config, "full_attention", "conv")
    config.update(num_experts=n, num_experts_per_tok=draw.randint(1, n),
                  moe_intermediate_size=draw.randint(3, 20), num_dense_layers=draw.randint(0, 2),
                  use_expert_bias=draw.maybe(), norm_topk_prob=draw.maybe(),
                  routed_scaling_factor=draw.number(0.5, 2))
    return config


@draws("qwen3_next", of=DECODERS)
def qwen3_next(draw):
    n, n_keys = draw.randint(2, 5), draw.randint(1, 3)
    config = like_llama(
        draw, attention_bias=draw.maybe(), num_experts=n, num_experts_per_tok=draw.randint(1, n),
        norm_topk_prob=draw.maybe(), moe_intermediate_size=draw.randint(3, 20),
        shared_expert_intermediate_size=draw.randint(3, 20), decoder_sparse_step=draw.randint(1, 2),
        mlp_only_layers=draw.choice([[], [0]]), output_router_logits=draw.maybe(),
        router_aux_loss_coef=0.1, hidden_act="silu", linear_conv_kernel_dim=draw.randint(2, 4),
        linear_key_head_dim=draw.randint(2, 8), linear_value_head_dim=draw.randint(2, 8),
        linear_num_key_heads=n_keys, linear_num_value_heads=n_keys * draw.randint(1, 3))
    turns_a_part(draw, config)
    settle(config)
    config["layer_types"] = some_layers(draw, config, "full_attention", "linear_attention")
    return config


@draws("qwen3_5_text", of=DECODERS)
def qwen3_5(draw):
    config = qwen3_next(draw)
    for key in [key for key in config if "expert" in key or "moe" in key or "mlp_only" in key]:
        del config[key]
    for key in ("norm_topk_prob", "decoder_sparse_step", "output_router_logits",
                "router_aux_loss_coef"):
        del config[key]
    return config


@draws("qwen3_5_moe_text", of=DECODERS)
def qwen3_5_moe(draw):
    config = qwen3_next(draw)
    for key in ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size"):
        del config[key]
    return config


@draws("mamba2", of=DECODERS)
def mamba2(draw):
    n_groups = 1 if IS_OLD else draw.randint(1, 3)  # version 4 normalises all groups together
    n_heads, expand = n_groups * draw.randint(1, 3), draw.randint(1, 2)
    size = 2 * draw.randint(1, 4)
    config = common(draw)
    config.update(
        num_heads=n_heads, head_dim=size, hidden_size=n_heads * size // expand, expand=expand,
        num_hidden_layers=draw.randint(1, 3), state_size=draw.randint(2, 8), n_groups=n_groups,
        conv_kernel=draw.randint(2, 4), use_bias=draw.maybe(0.3), use_conv_bias=draw.maybe(0.7),
        hidden_act="silu", layer_norm_epsilon=draw.choice([1e-5, 0.1]),
        chunk_size=draw.randint(2, 8),
        tie_word_embeddings=draw.maybe() and not IS_OLD)  # which version 4 cannot save
    config.setdefault("pad_token_id", 1)
    return config


@draws("granitemoehybrid", of=DECODERS)
def granitemoehybrid(draw):
    n = draw.randint(0, 4)
    config = mamba(draw, granite(draw))
    del config["mlp_bias"]
    config.update(num_local_experts=n, num_experts_per_tok=draw.randint(min(n, 1), n),
                  shared_intermediate_size=draw.randint(3, 20),
                  output_router_logits=draw.maybe() and n > 0, router_aux_loss_coef=0.1,
                  position_embedding_type=draw.choice(["rope", "nope"]))
    config["layer_types"] = some_layers(draw, config, "attention", "mamba")
    return config


@draws("bamba", of=DECODERS)
def bamba(draw):
    config = mamba(draw, like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe()))
    config["hidden_size"] = 2 * config["hidden_size"]
    config["mamba_d_head"] = 2 * config["mamba_d_head"]
    types = some_layers(draw, config, "attention", "mamba")
    config["attn_layer_indices"] = [i for i, kind in enumerate(types) if kind == "attention"]
    config.setdefault("pad_token_id", 0)
    return config


@draws("falcon_h1", of=DECODERS)
def falcon_h1(draw):
    config = mamba(draw, like_llama(draw, projectors_bias=draw.maybe(0.3)))
    if not IS_OLD:
        config.update(attention_bias=draw.maybe(), mlp_bias=draw.maybe())
    config["mamba_d_ssm"] = draw.choice([None, config["mamba_n_heads"] * 6])
    if config["mamba_d_ssm"]:
        config["mamba_d_head"] = 6
    for key in ("lm_head", "embedding", "key", "attention_in", "attention_out", "ssm_in",
                "ssm_out"):
        config[key + "_multiplier"] = draw.number(0.3, 2)
    config.update(mlp_multipliers=[draw.number(0.3, 2), draw.number(0.3, 2)],
                  ssm_multipliers=[draw.number(0.3, 2) for _ in range(5)],
                  mamba_rms_norm=draw.maybe(), mamba_norm_before_gate=draw.maybe())
    config.setdefault("pad_token_id", 0)
    return config


@draws("nemotron_h", of=DECODERS)
def nemotron_h(draw):
    config, n, n_groups = like_llama(draw), draw.randint(2, 5), draw.randint(1, 2)
    for key in ("hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "num_hidden_layers"):
        del config[key]
    config.setdefault("head_dim", 4)
    config.update(
        layers_block_type=["mamba", "attention", "moe", "mlp"][:draw.randint(2, 4)],
        mlp_hidden_act=draw.choice(["relu2", "silu"]), mlp_bias=draw.maybe(),
        layer_norm_epsilon=draw.choice([1e-5, 0.1]), n_groups=n_groups,
        conv_kernel=draw.randint(2, 4),
        mamba_num_heads=n_groups * draw.randint(1, 3), mamba_head_dim=2 * draw.randint(1, 4),
        ssm_state_size=draw.randint(2, 8), use_conv_bias=draw.maybe(0.7), use_bias=draw.maybe(0.3),
        chunk_size=draw.randint(2, 8), n_routed_experts=n, num_experts_per_tok=draw.randint(1, n),
        moe_intermediate_size=draw.randint(3, 20), norm_topk_prob=draw.maybe(),
        moe_shared_expert_intermediate_size=draw.randint(3, 20),
        routed_scaling_factor=draw.number(0.5, 2), time_step_min=1e-6)
    config.setdefault("pad_token_id", 0)
    draw.shuffle(config["layers_block_type"])
    return config


@draws("mamba", "falcon_mamba", of=DECODERS)
def mamba1(draw):
    config = common(draw)
    config.update(
        hidden_size=draw.randint(3, 20), num_hidden_layers=draw.randint(1, 3),
        state_size=draw.randint(2, 8), expand=draw.randint(1, 2), conv_kernel=draw.randint(2, 4),
        use_bias=draw.maybe(0.3), use_conv_bias=draw.maybe(0.7), hidden_act="silu",
        layer_norm_epsilon=draw.choice([1e-5, 0.1]), tie_word_embeddings=draw.maybe(),
        time_step_rank=draw.choice(["auto", draw.randint(1, 5)]))
    config.setdefault("pad_token_id", 0)
    return config


@draws("jamba", of=DECODERS)
def jamba(draw):
    config, n = like_llama(draw), draw.randint(2, 4)
    for key in ("rope_theta", "rope_scaling", "head_dim"):
        config.pop(key, None)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    period = draw.randint(2, 3)
    config.update(
        num_hidden_layers=draw.randint(period, 4), attn_layer_period=period,
        attn_layer_offset=draw.randint(0, period - 1), expert_layer_period=2, num_experts=n,
        expert_layer_offset=draw.randint(0, 1), num_experts_per_tok=draw.randint(1, n),
        output_router_logits=draw.maybe(), router_aux_loss_coef=0.1, hidden_act="silu",
        mamba_d_state=draw.randint(2, 8), mamba_d_conv=draw.randint(2, 4),
        mamba_expand=draw.randint(1, 2), mamba_dt_rank=draw.choice(["auto", draw.randint(1, 5)]),
        mamba_conv_bias=draw.maybe(0.7), mamba_proj_bias=draw.maybe(0.3), use_mamba_kernels=False)
    config.setdefault("pad_token_id", 0)
    return config


@draws("zamba2", of=DECODERS)
def zamba2(draw):
    config = common(draw)
    n_groups = 1 if IS_OLD else draw.randint(1, 2)
    n_heads, n_mamba = draw.randint(1, 3), n_groups * draw.randint(1, 3)
    n_layers = draw.randint(2, 4)
    config.update(
        hidden_size=2 * n_heads * n_mamba * draw.randint(1, 2), num_attention_heads=n_heads,
        num_hidden_layers=n_layers, intermediate_size=draw.randint(3, 20),
        mamba_d_state=draw.randint(2, 6), mamba_d_conv=draw.randint(2, 4),
        mamba_expand=draw.randint(1, 2), mamba_ngroups=n_groups, n_mamba_heads=n_mamba,
        time_step_min=draw.choice([0.001, 0.1]), add_bias_linear=draw.maybe(0.3),
        # Version 4 is wrong from the second chunk on, but for its kernels of GPUs.
        chunk_size=64 if IS_OLD else draw.randint(2, 8), num_mem_blocks=draw.randint(1, 2),
        use_shared_attention_adapter=draw.maybe(), adapter_rank=draw.randint(1, 5),
        use_mem_rope=draw.maybe(), rope_theta=draw.choice([100.0, 10000.0]),
        rms_norm_eps=draw.choice([0.01, 0.1]), hidden_act=draw.choice(ACTIVATIONS),
        layers_block_type=[draw.choice(["mamba", "hybrid"]) for _ in range(n_layers - 2)])
    config["layers_block_type"] += ["mamba", "hybrid"]
    draw.shuffle(config["layers_block_type"])
    config.setdefault("pad_token_id", 0)
    return config
