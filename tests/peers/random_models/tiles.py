"""Random configurations and inputs of models that read images as tiles or in any size."""
import torch

from .decoders import gemma, gemma2, llama, mistral, qwen2, qwen3
from .draw import ACTIVATIONS, heads
from .images_with_text import (INPUTS, counts_of, image_token, of_images, rows_with, some_pixels,
                               with_type)
from .pictures import siglip_image
from .states import IS_OLD


def some_text(draw, kinds):
    model_type, of_text = draw.choice(kinds)
    text = with_type(of_text(draw), model_type)
    if text.get("pad_token_id") == -1:
        text["pad_token_id"] = 0
    return text


def in_rows(draw, images, counts):
    """Tensors of images as [rows, the most of a row, ...], with zeros in the place of missing."""
    rows = torch.zeros(len(counts), max(counts), *images.shape[1:], dtype=images.dtype)
    for row, own in zip(rows, images.split(counts)):
        row[:len(own)] = own
    return rows


@of_images
def idefics3(draw):
    text = some_text(draw, [("llama", llama), ("mistral", mistral), ("qwen2", qwen2)])
    text.setdefault("pad_token_id", 0)
    vision, factor = siglip_image(draw), draw.randint(1, 2)
    vision["num_channels"] = 3
    side = vision["patch_size"] * factor * draw.randint(1, 2)
    vision["image_size"] = side + draw.randint(0, 1)
    return dict(text_config=text, vision_config=vision, scale_factor=factor,
                image_token_id=draw.token(text["vocab_size"] - 6) + 6,
                tie_word_embeddings=text["tie_word_embeddings"])


@of_images
def smolvlm(draw):
    return idefics3(draw)


def with_tiles(draw, config, ids):
    """Each row has some tiles, and zeros behind them."""
    vision, counts = config["vision_config"], counts_of(draw, len(ids), 3)
    n = (vision["image_size"] // vision["patch_size"] // config["scale_factor"]) ** 2
    size = vision["image_size"]
    found = dict(input_ids=rows_with(draw, config, ids, [[n] * count for count in counts]),
                 pixel_values=in_rows(draw, some_pixels(draw, sum(counts), 3, size, size), counts))
    if draw.maybe():
        masks = torch.ones(sum(counts), size, size, dtype=torch.int64)
        found["pixel_attention_mask"] = in_rows(draw, masks, counts)
    return found


INPUTS.update(idefics3=with_tiles, smolvlm=with_tiles)


@of_images
def paligemma(draw):
    text = some_text(draw, [("gemma", gemma), ("gemma2", gemma2)])
    if text["model_type"] == "gemma2":
        # Version 4 has neither the cap of the logits nor windows.
        text["sliding_window"] = 200
        if IS_OLD:
            text["final_logit_softcapping"] = None
    text["tie_word_embeddings"] = True
    vision = with_type(siglip_image(draw), "siglip_vision_model")
    vision["num_channels"] = 3
    vision["image_size"] = vision["patch_size"] * draw.randint(1, 2) + draw.randint(0, 1)
    return dict(text_config=text, vision_config=vision, projection_dim=text["hidden_size"],
                image_token_index=draw.token(text["vocab_size"] - 6) + 6)


def with_prefix(draw, config, ids):
    """Rows of a prompt and an answer."""
    vision, counts = config["vision_config"], counts_of(draw, len(ids))
    n, size = (vision["image_size"] // vision["patch_size"]) ** 2, vision["image_size"]
    rows = rows_with(draw, config, ids, [[n] * count for count in counts])
    types = torch.zeros_like(rows)
    for own in types:
        own[draw.randint(1, rows.shape[1]):] = 1
    return dict(input_ids=rows, pixel_values=some_pixels(draw, sum(counts), 3, size, size),
                token_type_ids=types)


@of_images
def internvl(draw):
    text = some_text(draw, [("llama", llama), ("qwen3", qwen3), ("qwen2", qwen2)])
    n_heads, width = heads(draw)
    side, patch = draw.randint(1, 2), draw.randint(2, 4)
    size = patch * side * draw.randint(1, 2) + draw.randint(0, patch - 1)
    vision = dict(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        attention_bias=draw.maybe(), use_qk_norm=draw.maybe(), intermediate_size=draw.randint(3, 30),
        hidden_act=draw.choice(ACTIVATIONS), norm_type=draw.choice(["layer_norm", "rms_norm"]),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), image_size=[size, size],
        patch_size=[patch, patch], use_mean_pooling=draw.maybe())
    return dict(text_config=text, vision_config=vision, downsample_ratio=1 / side,
                projector_hidden_act=draw.choice(ACTIVATIONS), image_seq_length=4,
                image_token_id=draw.token(text["vocab_size"] - 6) + 6,
                tie_word_embeddings=text["tie_word_embeddings"])


def with_some_tiles(draw, config, ids):
    """All tiles in one list."""
    vision, counts = config["vision_config"], counts_of(draw, len(ids), 3)
    size = vision["image_size"][0]
    n = int(size // vision["patch_size"][0] * config["downsample_ratio"]) ** 2
    return dict(input_ids=rows_with(draw, config, ids, [[n] * count for count in counts]),
                pixel_values=some_pixels(draw, sum(counts), 3, size, size))


INPUTS.update(paligemma=with_prefix, internvl=with_some_tiles)
