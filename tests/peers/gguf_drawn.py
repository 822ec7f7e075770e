"""Random models of transformers in the form that llama.cpp's converter takes."""
import functools
import json
import pathlib
import sys

import llama_cpp

place = llama_cpp.folder()
sys.path[:0] = [str(place), str(place / "gguf-py")]
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

import random_models.families  # noqa: E402
from random_models.draw import Draw  # noqa: E402
from random_models.models import new_model  # noqa: E402

# llama.cpp has one activation for each architecture, and no other values of these settings.
SILU, TANH_GELU = dict(hidden_act="silu"), dict(hidden_act="gelu_pytorch_tanh")
GEMMA = dict(hidden_activation="gelu_pytorch_tanh", attention_bias=False, head_dim=32,
             query_pre_attn_scalar=32, tie_word_embeddings=True, rope_scaling=None,
             rope_theta=10000.0, final_logit_softcapping=3.0)
FIXED = dict(
    llama=SILU,
    mistral=dict(SILU, sliding_window=None),
    mixtral=dict(SILU, sliding_window=None),
    qwen2=dict(SILU, use_sliding_window=False),
    qwen3=dict(SILU, use_sliding_window=False),
    qwen3_moe=dict(SILU, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False,
                   norm_topk_prob=True),
    olmoe=dict(SILU, clip_qkv=None, norm_topk_prob=False, rms_norm_eps=1e-5),
    olmo2=SILU,
    gemma2=dict(GEMMA, attn_logit_softcapping=2.0),
    gemma3_text=dict(GEMMA, sliding_window_pattern=6, num_hidden_layers=7,
                     rope_local_base_freq=10000.0),
    phi3=SILU,
    smollm3=dict(SILU, no_rope_layer_interval=4, num_hidden_layers=5, use_sliding_window=False),
    granite=SILU,
    starcoder2=dict(TANH_GELU, use_bias=True, sliding_window=None),
    gpt2=dict(activation_function="gelu_new", n_inner=None),
    falcon=dict(alibi=False, bias=False, parallel_attn=True, multi_query=True,
                ffn_hidden_size=None, max_position_embeddings=2048, rope_scaling=None),
    gpt_neox=dict(hidden_act="gelu", rope_scaling=None, rotary_emb_base=10000),
    bloom=dict(apply_residual_connection_post_layernorm=False),
)
# The converter writes LLaMA 3's scaling of positions only for those that it handles as LLaMA.
LIKE_LLAMA = ("llama", "mistral", "mixtral", "granite", "smollm3")


def scaling_of(family, scaling):
    """The scaling of positions, if the converter writes it."""
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type")
    if family == "phi3":
        return scaling
    if kind == "linear" or kind == "llama3" and family in LIKE_LLAMA:
        return scaling
    if kind == "yarn":
        kept = {key: scaling[key] for key in ("beta_fast", "beta_slow") if key in scaling}
        return dict(kept, rope_type=kind, factor=scaling["factor"] + 1,
                    original_max_position_embeddings=scaling.get(
                        "original_max_position_embeddings", 16))
    return None


def fixed(family, draw_config, is_quantized, draw):
    """A configuration that llama.cpp has."""
    config = draw_config(draw)
    for key in ("layer_types", "no_rope_layers"):
        config.pop(key, None)
    if config.get("pad_token_id") == -1:
        config["pad_token_id"] = 0
    config["rope_scaling"] = scaling_of(family, config.get("rope_scaling"))
    if is_quantized:  # blocks of 32 elements
        config["n_embd" if family == "gpt2" else "hidden_size"] = 32 * (
            config.get("num_attention_heads") or config.get("n_head"))
        config["rope_scaling"] = None
        if "head_dim" in config or family in ("mixtral", "qwen3", "qwen3_moe"):
            config["head_dim"] = 32
        for key in "intermediate_size", "moe_intermediate_size":
            if key in config:
                config[key] = 64
        for key in "rotary_pct", "partial_rotary_factor":
            if key in config:
                config[key] = 0.5
    config.update(FIXED[family])
    if family == "granite":
        config.pop("head_dim", None)
        config["hidden_size"] = 32 * config["num_attention_heads"]
    if config["rope_scaling"] is None:
        del config["rope_scaling"]
    return config


def random_model(seed, family, is_quantized):
    draw_config, name = random_models.families.FAMILIES[family]
    drawn = functools.partial(fixed, family, draw_config, is_quantized)
    random_models.families.FAMILIES[family] = (drawn, name)
    try:
        return new_model(Draw(f"{seed} {family}"), family)
    finally:
        random_models.families.FAMILIES[family] = (draw_config, name)


def complete(folder, vocab_size):
    """What the converter expects of a folder."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    config["n_ctx"] = config.get("n_positions")
    if not config.get("new_decoder_architecture", True):
        config["num_kv_heads"] = 1
    place.write_text(json.dumps(config))
    vocab = {str(i): i for i in range(vocab_size)}
    (folder / "tokenizer.json").write_text(
        json.dumps(dict(model=dict(vocab=vocab), added_tokens=[])))


def convert(folder, vocab_size, file_type):
    """Makes FOLDER.gguf, without a tokenizer."""
    def set_vocab(model):
        model.gguf_writer.add_tokenizer_model("no_vocab")
        model.gguf_writer.add_token_list([f"t{i}" for i in range(vocab_size)])

    complete(folder, vocab_size)
    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT)
    known = get_model_class(architecture)
    made = type(known.__name__, (known,), dict(set_vocab=set_vocab, model_arch=known.model_arch))
    with torch.inference_mode():
        made(folder, file_type, pathlib.Path(f"{folder}.gguf"), eager=True).write()
