"""The weights of a model with one key of the configuration changed."""
import json

import torch
import transformers

from .draw import ACTIVATIONS
from .families import FAMILIES, HEADLESS, implementations_of, is_generative
from .generation import generated
from .models import with_pooling
from .reference import logits_of

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
           "use_cache", "dilation", "num_stages",  # without timm; version 5 does not read the last
           "audio_token_index"}  # tokens of Qwen2-Audio that are alone become as many as are needed
if transformers.__version__.startswith("4."):  # GPT-2's fused attention ignores the first two
    SETTLED |= {"scale_attn_weights", "scale_attn_by_inverse_layer_idx",
                "image_token_id", "audio_token_id",  # Idefics 3 and Voxtral do not count theirs
                "final_logit_softcapping",  # PaliGemma does not read it
                "vision_start_token_id"}  # which finds the images of Qwen-VL
else:  # version 5 scales what it has loaded
    SETTLED |= {"rescale_prenorm_residual"}


# Names of sizes that have another, by model_type: version 4 does not read them, version 5 does.
NAMED_TWICE = {"qwen2_audio_encoder": {"hidden_size", "num_attention_heads", "num_hidden_layers",
                                       "encoder_layers"}}  # which version 4 writes by both names


def changed(draw, config):
    """The configuration with one other value, at any depth."""
    config = json.loads(json.dumps(config))
    parts = [config] + [part for part in config.values()
                        if isinstance(part, dict) and "model_type" in part]
    part = draw.choice(parts)
    settled = SETTLED | NAMED_TWICE.get(part.get("model_type"), set())
    if draw.maybe(0.4):
        key = draw.choice(sorted({*MORE_KEYS} - settled))
        is_other = key == "num_hidden_layers" and "encoder_layers" in part  # a name of it in version 5
        part["encoder_layers" if is_other else key] = MORE_KEYS[key]
        return config
    key = draw.choice(sorted(set(part) - settled))
    value = part[key]
    if isinstance(value, dict) and value:
        inner = draw.choice(sorted(value))
        part, key, value = value, inner, value[inner]
    if key == "problem_type":  # others fail only where there are labels
        part[key] = draw.choice(["regression", "single_label_classification", None])
    elif key in ("sliding_window", "attention_chunk_size"):
        # 1 is wrong in the library's cache: it keeps all tokens
        part[key] = draw.choice([2, 3, 4, 50])
    elif key == "vision_aspect_ratio":  # others fail only where an image is large
        part[key] = draw.choice(["anyres_max_1", "anyres_max_4"])
    elif isinstance(value, bool):
        part[key] = not value
    elif "drop" in key and isinstance(value, (int, float)):
        part[key] = draw.choice([0, 0.25, 0.5, 1.0])
    elif isinstance(value, (int, float)):
        part[key] = draw.choice([value + 1, value * 2, value / 2, 0.25, 1, 2])
        if isinstance(value, int):
            part[key] = int(part[key])
    elif isinstance(value, str):
        part[key] = draw.choice(ACTIVATIONS)
    else:
        part[key] = draw.choice([1, 2, True, "gelu"])
    return config


def write_changed(draw, folder, i, family, inputs, prompts, pooling):
    """A folder with the weights of another one, and what transformers makes of it; {} where it
    fails or has no such weights. redco-lua must open what transformers opens."""
    place = folder / f"changed-{i}"
    place.mkdir()
    config = changed(draw, json.loads((folder / "config.json").read_text()))
    (place / "config.json").write_text(json.dumps(config))
    for file in (*folder.glob("model*"), *folder.glob("pytorch_model*")):
        (place / file.name).symlink_to(file)
    try:
        model, info = getattr(transformers, FAMILIES[family][1]).from_pretrained(
            place, output_loading_info=True, dtype=torch.float32, **implementations_of(family))
        if any("pooler" not in key for key in info["missing_keys"]) or info["mismatched_keys"]:
            return {}
        if family in HEADLESS:
            with_pooling(model, pooling)
        found = {}
        with torch.no_grad():
            if is_generative(family):  # first: rope_type "dynamic" remembers the longest text
                found[f"changed.{i}.tokens"] = generated(model.eval(), prompts,
                                                         dict(max_new_tokens=4))
            found[f"changed.{i}.logits"] = logits_of(model.eval()(**inputs)).clone()
        return found
    except Exception:  # whatever it is: there is nothing to compare with
        return {}
