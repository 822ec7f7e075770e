"""Random configurations of decoders."""
import transformers

from .draw import ACTIVATIONS, DECODERS, common, draws, heads


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


def with_newer_name(scaling):
    """Some families know only this one."""
    if scaling:
        kind = scaling.pop("type", None)
        scaling.setdefault("rope_type", kind)
    return scaling


@draws("llama", of=DECODERS)
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
    with_newer_name(config["rope_scaling"])
    config.update(more)
    return config


def layer_types(draw, config):
    """Some of the layers get windows by name."""
    if draw.maybe(0.4):
        config["layer_types"] = [draw.choice(["full_attention", "sliding_attention"])
                                 for _ in range(config["num_hidden_layers"])]


def turns_a_part(draw, config):
    """Positions in the first elements of each head."""
    size = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    pairs = draw.randint(1, size // 2)
    config["partial_rotary_factor"] = 2 * pairs / size + 1e-6
    config["rope_scaling"] = with_newer_name(rope_scaling(draw, pairs))


@draws("qwen2", of=DECODERS)
def qwen2(draw):
    config = like_llama(draw, use_sliding_window=draw.maybe(0.7),
                        sliding_window=draw.randint(2, 6), max_window_layers=draw.randint(0, 2))
    if config["use_sliding_window"]:
        layer_types(draw, config)
    return config


@draws("qwen3", of=DECODERS)
def qwen3(draw):
    config = qwen2(draw)
    config.update(attention_bias=draw.maybe())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("mistral", of=DECODERS)
def mistral(draw):
    config = like_llama(draw, sliding_window=draw.choice([None, 2, 3, 5, 30]))
    if config["rope_scaling"] or draw.maybe():  # some scalings fail without it
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("gemma", of=DECODERS)
def gemma(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("gemma2", of=DECODERS)
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


@draws("gemma3_text", of=DECODERS)
def gemma3(draw):
    config = gemma2(draw)
    config.update(rope_local_base_freq=draw.choice([100.0, 10000.0]), attn_logit_softcapping=None,
                  sliding_window_pattern=draw.randint(1, 3))
    return config


@draws("gemma3n_text", of=DECODERS)
def gemma3n(draw):
    config = gemma3(draw)
    for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window_pattern"):
        del config[key]
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    is_new = transformers.__version__.startswith("5.")  # else all tokens need one for each layer
    n = config["num_hidden_layers"] = draw.randint(2, 4)
    kinds = ["full_attention", "sliding_attention"][:draw.randint(1, 2)]
    n_own = draw.randint(len(kinds), n)
    config["layer_types"] = kinds + [draw.choice(kinds) for _ in range(n - len(kinds))]
    inner = [draw.randint(3, 40) for _ in range(n)]
    config.update(
        num_kv_shared_layers=n - n_own, intermediate_size=draw.choice([inner, inner[0]]),
        activation_sparsity_pattern=[draw.choice([0.0, 0.3, 0.9]) for _ in range(n)],
        vocab_size_per_layer_input=max(config["vocab_size"] - draw.randint(0, 3) * is_new,
                                       config.get("pad_token_id", 0) + 1),
        hidden_size_per_layer_input=draw.randint(2, 8), altup_num_inputs=draw.randint(2, 4),
        altup_correct_scale=draw.maybe(), laurel_rank=draw.randint(2, 8),
        final_logit_softcapping=draw.choice([3.0, 30.0]))
    config["altup_active_idx"] = draw.randrange(config["altup_num_inputs"])
    return config


@draws("phi3", of=DECODERS)
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
        kinds = ["longrope", "yarn", "su"]
        if transformers.__version__.startswith("5."):  # which refuses the oldest name
            kinds.pop()
        config["rope_scaling"] = dict(type=draw.choice(kinds),
                                      short_factor=[draw.number(1, 5) for _ in range(pairs)],
                                      long_factor=[draw.number(1, 5) for _ in range(pairs)])
    return config


@draws("smollm3", of=DECODERS)
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


@draws("olmo2", of=DECODERS)
def olmo2(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    config["rope_scaling"] = draw.choice([None, dict(type="linear", factor=2.5)])
    return config


@draws("olmo3", of=DECODERS)
def olmo3(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), sliding_window=draw.randint(2, 6))
    layer_types(draw, config)
    if transformers.__version__.startswith("5."):  # layers with windows have this one
        config["rope_theta"] = 500000.0
    return config


@draws("olmo", of=DECODERS)
def olmo(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), clip_qkv=draw.choice([None, 0.5, 2.0]))
    del config["rms_norm_eps"]
    config["rope_scaling"] = draw.choice([None, dict(type="linear", factor=2.5)])
    return config


@draws("cohere", of=DECODERS)
def cohere(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), logit_scale=draw.number(0.05, 2),
                        use_qk_norm=draw.maybe(), layer_norm_eps=draw.choice([1e-5, 0.1]))
    del config["rms_norm_eps"]
    return config


@draws("cohere2", of=DECODERS)
def cohere2(draw):
    config = cohere(draw)
    del config["use_qk_norm"]
    config["sliding_window"] = draw.randint(2, 6)
    layer_types(draw, config)
    if draw.maybe(0.3):
        config["sliding_window_pattern"] = draw.randint(1, 3)
    return config


@draws("glm", "glm4", of=DECODERS)
def glm(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    config.setdefault("pad_token_id", 0)
    turns_a_part(draw, config)
    return config


@draws("phi", of=DECODERS)
def phi(draw):
    config = like_llama(draw, layer_norm_eps=draw.choice([1e-5, 0.1]), qk_layernorm=draw.maybe())
    del config["rms_norm_eps"]
    config.pop("head_dim", None)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    turns_a_part(draw, config)
    del config["head_dim"]
    return config


@draws("granite", of=DECODERS)
def granite(draw):
    return like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
                      embedding_multiplier=draw.number(0.5, 12),
                      logits_scaling=draw.number(0.5, 16),
                      residual_multiplier=draw.number(0.1, 1),
                      attention_multiplier=draw.number(0.01, 1))


@draws("stablelm", of=DECODERS)
def stablelm(draw):
    config = phi(draw)
    config.update(use_qkv_bias=draw.maybe(), use_parallel_residual=draw.maybe())
    return config


@draws("exaone4", of=DECODERS)
def exaone4(draw):
    config = like_llama(draw, sliding_window=draw.choice([None, 2, 3, 5]))
    if config["sliding_window"] is None:
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    else:
        layer_types(draw, config)
        config["sliding_window_pattern"] = draw.randint(1, 4)
    return config


@draws("seed_oss", of=DECODERS)
def seed_oss(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), attention_out_bias=draw.maybe(),
                        mlp_bias=draw.maybe(), attention_dropout=0.0, residual_dropout=0.0)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("ministral3", of=DECODERS)
def ministral3(draw):
    config = like_llama(draw, sliding_window=draw.choice([None, 2, 3, 5]))
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("pad_token_id", 0)
    rope = rope_scaling(draw, config["head_dim"] // 2)
    while not rope or "default" in rope.values():
        rope = rope_scaling(draw, config["head_dim"] // 2)
    rope.update(rope_theta=config.pop("rope_theta"), llama_4_scaling_beta=draw.number(0.01, 2),
                original_max_position_embeddings=draw.randint(1, 16))
    del config["rope_scaling"]
    config["rope_parameters"] = with_newer_name(rope)
    return config


@draws("ernie4_5", of=DECODERS)
def ernie(draw):
    config = like_llama(draw, use_bias=draw.maybe())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


@draws("hunyuan_v1_dense", of=DECODERS)
def hunyuan(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    size = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    scaling = config["rope_scaling"]
    if scaling and scaling["rope_type"] == "dynamic":
        scaling["alpha"] = draw.choice([0, 2.0, 1000.0]) if size > 2 else 0
    return config


@draws("arcee", of=DECODERS)
def arcee(draw):
    return like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe())


@draws("apertus", of=DECODERS)
def apertus(draw):
    config = like_llama(draw, attention_bias=draw.maybe())
    if draw.maybe(0.7):
        config["hidden_act"] = "xielu"
    if not config["rope_scaling"]:  # without one, it is that of the public models
        config["rope_scaling"] = dict(rope_type="linear", factor=2.5)
    return config


@draws("nemotron", of=DECODERS)
def nemotron(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
                        norm_eps=draw.choice([1e-5, 0.1]))
    del config["rms_norm_eps"]
    turns_a_part(draw, config)
    config["rope_scaling"] = None
    return config


@draws("helium", of=DECODERS)
def helium(draw):
    config = like_llama(draw, attention_bias=draw.maybe(), mlp_bias=draw.maybe())
    config["head_dim"] = 2 * draw.randint(2, 5)
    config["hidden_size"] = config["num_attention_heads"] * config["head_dim"]
    config["rope_scaling"] = with_newer_name(rope_scaling(draw, config["head_dim"] // 2))
    return config


@draws("starcoder2", of=DECODERS)
def starcoder2(draw):
    config = like_llama(draw, use_bias=draw.maybe(0.7), norm_epsilon=draw.choice([1e-5, 0.1]),
                        sliding_window=draw.choice([None, 2, 3, 30]))
    del config["rms_norm_eps"]
    return config


@draws("gpt_neox", of=DECODERS)
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


@draws("falcon", of=DECODERS)
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


@draws("bloom", of=DECODERS)
def bloom(draw):
    config = common(draw)
    n_heads, width = heads(draw, 6)
    config.update(
        hidden_size=width, n_head=n_heads, n_layer=draw.randint(1, 3),
        layer_norm_epsilon=draw.choice([1e-5, 0.1]), tie_word_embeddings=draw.maybe(0.7),
        apply_residual_connection_post_layernorm=draw.maybe())
    return config


@draws("mpt", of=DECODERS)
def mpt(draw):
    config = common(draw)
    n_heads, width = heads(draw, 6)
    config.update(
        d_model=width, n_heads=n_heads, n_layers=draw.randint(1, 3), max_seq_len=draw.randint(40, 60),
        layer_norm_epsilon=draw.choice([1e-5, 0.1]), tie_word_embeddings=draw.maybe(0.7),
        attn_config=dict(attn_pdrop=0, clip_qkv=draw.choice([None, 0.5, 2.0]),
                         softmax_scale=draw.choice([None, 0.3])))
    return config


@draws("gpt2", of=DECODERS)
def gpt2(draw, padding=True):
    config = common(draw, padding)
    n_heads, width = heads(draw)
    config.update(
        n_positions=draw.randint(20, 40), n_embd=width, n_head=n_heads, n_layer=draw.randint(1, 3),
        n_inner=draw.choice([None, draw.randint(3, 40)]), tie_word_embeddings=draw.maybe(0.8),
        activation_function=draw.choice(ACTIVATIONS), embd_pdrop=0.0, resid_pdrop=0.0,
        attn_pdrop=0.0, layer_norm_epsilon=draw.choice([1e-5, 1e-3, 0.1]),
        reorder_and_upcast_attn=draw.maybe(0.3))
    if transformers.__version__.startswith("5."):  # version 4 ignores them by default
        config.update(scale_attn_weights=draw.maybe(0.8),
                      scale_attn_by_inverse_layer_idx=draw.maybe(0.3))
    return config


@draws("gptj", of=DECODERS)
def gptj(draw):
    config = gpt2(draw)
    for key in ("reorder_and_upcast_attn", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"):
        config.pop(key, None)
    config["rotary_dim"] = 2 * draw.randint(1, config["n_embd"] // config["n_head"] // 2)
    config["tie_word_embeddings"] = draw.maybe(0.3)
    return config


@draws("codegen", of=DECODERS)
def codegen(draw):
    config = gptj(draw)
    config["n_head"] = 4 * draw.randint(1, 2)
    config["n_embd"] = config["n_head"] * 2 * draw.randint(1, 4)
    config["rotary_dim"] = 2 * draw.randint(1, config["n_embd"] // config["n_head"] // 2)
    return config


@draws("gpt_bigcode", of=DECODERS)
def gpt_bigcode(draw):
    config = gpt2(draw)
    for key in ("reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"):
        config.pop(key, None)
    config.update(multi_query=draw.maybe(), scale_attn_weights=draw.maybe(0.8),
                  attention_softmax_in_fp32=draw.maybe(),
                  scale_attention_softmax_in_fp32=draw.maybe())
    return config


@draws("gpt_neo", of=DECODERS)
def gpt_neo(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    kinds = [draw.choice(["global", "local"]) for _ in range(draw.randint(1, 2))]
    repeats = draw.randint(1, 2)
    config.update(
        hidden_size=width, num_heads=n_heads, num_layers=len(kinds) * repeats,
        attention_types=[[kinds, repeats]], window_size=draw.randint(2, 6),
        max_position_embeddings=draw.randint(20, 40),
        intermediate_size=draw.choice([None, draw.randint(3, 40)]),
        activation_function=draw.choice(ACTIVATIONS), layer_norm_epsilon=draw.choice([1e-5, 0.1]),
        tie_word_embeddings=draw.maybe(0.7))
    return config


@draws("opt", of=DECODERS)
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


@draws("biogpt", of=DECODERS)
def biogpt(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 40), hidden_act=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(20, 40), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, scale_embedding=draw.maybe(),
        tie_word_embeddings=draw.maybe(0.7))
    return config


@draws("xglm", of=DECODERS)
def xglm(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        d_model=2 * width, num_layers=draw.randint(1, 3), attention_heads=n_heads,
        ffn_dim=draw.randint(3, 40), activation_function=draw.choice(ACTIVATIONS), dropout=0.0,
        attention_dropout=0.0, max_position_embeddings=draw.randint(20, 40),
        scale_embedding=draw.maybe(), tie_word_embeddings=draw.maybe(0.7))
    # The position with the number of the padding token is none.
    config["max_position_embeddings"] = max(config["max_position_embeddings"],
                                            config.get("pad_token_id", 0))
    return config
