"""Random configurations and inputs of models that read images as tiles or in any size."""
import math

import torch
from transformers.models.llava_next import modeling_llava_next as llava_next_model

from .decoders import gemma, gemma2, llama, mistral, qwen2, qwen3
from .draw import ACTIVATIONS, heads
from .images_with_text import (INPUTS, counts_of, of_images, rows_with, some_pixels, with_images,
                               with_type)
from .mixtures import llama4 as llama4_text
from .pictures import clip_image, pixtral_image, siglip_image
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


@of_images
def mistral3(draw):
    text = some_text(draw, [("mistral", mistral), ("llama", llama)])
    vision = pixtral_image(draw)
    n = vision["num_hidden_layers"]
    return dict(
        text_config=text, vision_config=vision, projector_hidden_act=draw.choice(ACTIVATIONS),
        image_token_index=draw.token(text["vocab_size"] - 6) + 6,
        # Version 5 takes the number 0 for none.
        vision_feature_layer=draw.choice([-1, -1, draw.randint(-n - 1, n) or 1]),
        multimodal_projector_bias=draw.maybe(), spatial_merge_size=draw.randint(1, 2),
        tie_word_embeddings=text["tie_word_embeddings"])


def with_sizes(draw, config, ids):
    """Images of different sizes, padded at the right and at the bottom."""
    patch, merge = config["vision_config"]["patch_size"], config.get("spatial_merge_size", 1)
    counts = counts_of(draw, len(ids))
    sizes = torch.tensor([[patch * merge * draw.randint(1, 3) + draw.randint(0, patch - 1)
                           for _ in range(2)] for _ in range(sum(counts))])
    if len(sizes) == 1:  # the library fails where there is one feature
        sizes[0, 0] += patch * merge
    pixels = some_pixels(draw, sum(counts), 3, *sizes.max(0).values.tolist())
    for image, (height, width) in zip(pixels, sizes):
        image[:, height:] = 0
        image[:, :, width:] = 0
    lengths = (sizes // (patch * merge)).prod(1).split(counts)
    return dict(input_ids=rows_with(draw, config, ids, [own.tolist() for own in lengths]),
                pixel_values=pixels, image_sizes=sizes)


def with_any_images(draw, config, ids):
    is_pixtral = config["vision_config"]["model_type"] == "pixtral"
    return (with_sizes if is_pixtral else with_images)(draw, config, ids)


INPUTS.update(mistral3=with_sizes, llava=with_any_images)


@of_images
def llama4(draw):
    text = some_text(draw, [("llama4_text", llama4_text)])
    n_heads, side, patch = draw.randint(1, 3), draw.randint(1, 3), draw.randint(2, 4)
    width, out = n_heads * 4 * draw.randint(1, 2), draw.randint(3, 12)
    vision = dict(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=width * side ** 2, num_channels=draw.choice([1, 3]), patch_size=patch,
        image_size=patch * side * draw.randint(1, 2) + draw.randint(0, patch - 1),
        pixel_shuffle_ratio=1 / side, projector_input_dim=out, projector_output_dim=out,
        vision_output_dim=out)
    theta = draw.choice([10.0, 10000.0])
    vision.update(dict(rope_theta=theta) if IS_OLD else dict(
        rope_parameters=dict(rope_type="default", rope_theta=theta)))
    return dict(text_config=text, vision_config=vision, tie_word_embeddings=draw.maybe(),
                image_token_index=draw.token(text["vocab_size"] - 6) + 6)


def with_tiles_of_llama4(draw, config, ids):
    """All tiles in one list."""
    vision, counts = config["vision_config"], counts_of(draw, len(ids), 3)
    size = vision["image_size"]
    n = round(size // vision["patch_size"] * vision["pixel_shuffle_ratio"]) ** 2
    return dict(input_ids=rows_with(draw, config, ids, [[n] * count for count in counts]),
                pixel_values=some_pixels(draw, sum(counts), vision["num_channels"], size, size))


INPUTS.update(llama4=with_tiles_of_llama4)


def some_grid(draw, size):
    return [[size * draw.randint(1, 3), size * draw.randint(1, 3)]
            for _ in range(draw.randint(1, 4))]


@of_images
def llava_next(draw):
    text = some_text(draw, [("llama", llama), ("mistral", mistral), ("qwen2", qwen2)])
    is_clip = draw.maybe()
    vision = with_type(clip_image(draw) if is_clip else siglip_image(draw),
                       "clip_vision_model" if is_clip else "siglip_vision_model")
    vision["num_channels"] = 3
    vision["image_size"] = vision["patch_size"] * draw.randint(1, 2) + draw.randint(0, 1)
    n = vision["num_hidden_layers"]
    places = [draw.randint(-n - 1, n) for _ in range(draw.randint(1, 3))]
    return dict(
        text_config=text, vision_config=vision, projector_hidden_act=draw.choice(ACTIVATIONS),
        image_token_index=draw.token(text["vocab_size"] - 6) + 6,
        # Version 5 takes the number 0 for none.
        vision_feature_layer=places if draw.maybe(0.3) else places[0] or 1,
        vision_feature_select_strategy="default" if is_clip else "full",
        multimodal_projector_bias=draw.maybe(),
        image_grid_pinpoints=some_grid(draw, vision["image_size"]),
        tie_word_embeddings=text["tie_word_embeddings"])


@of_images
def llava_onevision(draw):
    config = llava_next(draw)
    vision = config["vision_config"]
    has_one = vision["image_size"] // vision["patch_size"] == 1  # of which the scale leaves none
    most = 9 if has_one else draw.choice([1, 2, 9])
    return dict(config, vision_aspect_ratio=f"anyres_max_{most}")


def tokens_of(config, size):
    """How many tokens and tiles an image has; None if the library fails on it, for the scale leaves
    no row or column."""
    vision = config["vision_config"]
    side = vision["image_size"] // vision["patch_size"]
    rows, columns = llava_next_model.get_anyres_image_grid_shape(
        size, config["image_grid_pinpoints"], vision["image_size"])
    kept = llava_next_model.unpad_image(torch.zeros(1, rows * side, columns * side), size)
    n_tiles = rows * columns + 1
    _, rows, columns = kept.shape
    if "vision_aspect_ratio" in config:
        most = int(config["vision_aspect_ratio"].removeprefix("anyres_max_"))
        ratio = math.sqrt(rows * columns / (most * side ** 2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
    return None if 0 in (rows, columns) else (side ** 2 + rows * (columns + 1), n_tiles)


def some_size(draw, config):
    side, size = config["vision_config"]["image_size"], None
    while size is None or not tokens_of(config, size):
        size = [draw.randint(side // 2 + 1, 3 * side) for _ in range(2)]
    return size


def with_grids(draw, config, ids):
    """Images of different sizes, each as the whole and a grid of tiles, and zeros behind them."""
    vision, counts = config["vision_config"], counts_of(draw, len(ids))
    size, found = vision["image_size"], {}
    sizes = [some_size(draw, config) for _ in range(sum(counts))]
    lengths, n_tiles = zip(*(tokens_of(config, own) for own in sizes))
    lengths = list(torch.tensor(lengths).split(counts))
    if "vision_aspect_ratio" in config and draw.maybe():
        found["batch_num_images"] = torch.tensor([count for count in counts if count])
        alone = torch.tensor([count == 1 for count in counts for _ in range(count)])
        n_tiles = torch.tensor(n_tiles).where(alone, 1).tolist()
        base = (size // vision["patch_size"]) ** 2 + 1
        lengths = [own if len(own) == 1 else torch.full_like(own, base) for own in lengths]
    tiles = torch.zeros(len(sizes), max(n_tiles), 3, size, size)
    for image, n in zip(tiles, n_tiles):
        image[:n] = some_pixels(draw, n, 3, size, size)
    return dict(found, image_sizes=torch.tensor(sizes), pixel_values=tiles,
                input_ids=rows_with(draw, config, ids, [own.tolist() for own in lengths]))


INPUTS.update(llava_next=with_grids, llava_onevision=with_grids)
