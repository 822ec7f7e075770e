"""Random configurations and inputs of models that read images of any size: those of Qwen-VL."""
import torch

from .decoders import like_llama, rope_scaling, with_newer_name
from .draw import ACTIVATIONS
from .images_with_text import INPUTS, counts_of, image_token, of_images, some_pixels, with_type
from .states import IS_OLD, qwen3_5 as qwen3_5_text, qwen3_5_moe as qwen3_5_moe_text


def text_of(draw, model_type, **more):
    """A decoder with a section of pairs for each of three positions."""
    text = with_type(like_llama(draw, **more), model_type)
    if text.get("pad_token_id") == -1:
        text["pad_token_id"] = 0
    pairs, takes_turns = draw.randint(2, 6), model_type.startswith("qwen3")
    text.pop("head_dim", None)
    if takes_turns:
        text["head_dim"] = 2 * pairs
    else:
        text["hidden_size"] = 2 * pairs * text["num_attention_heads"]
    rows = draw.randint(0, pairs // 3 if takes_turns else pairs // 2)
    columns = rows if takes_turns else draw.randint(0, pairs - rows)
    rope = with_newer_name(rope_scaling(draw, pairs)) or dict(rope_type="default")
    text["rope_scaling"] = dict(rope, mrope_section=[pairs - rows - columns, rows, columns])
    return text


def whole(draw, text, vision):
    known = {text.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokens = draw.sample([i for i in range(6, text["vocab_size"]) if i not in known], 4)
    names = ["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"]
    return dict(text_config=text, vision_config=vision, **dict(zip(names, tokens)),
                tie_word_embeddings=text["tie_word_embeddings"])


def tower(draw, **more):
    n_heads = draw.randint(1, 3)
    return dict(depth=draw.randint(1, 3), num_heads=n_heads, hidden_act=draw.choice(ACTIVATIONS),
                in_channels=draw.choice([1, 3]), patch_size=draw.randint(2, 3),
                spatial_merge_size=draw.randint(1, 2), temporal_patch_size=draw.randint(1, 2),
                **more), n_heads * 4 * draw.randint(1, 2)


def windows(draw):
    found = dict(use_sliding_window=draw.maybe(0.3), sliding_window=draw.randint(2, 6),
                 max_window_layers=draw.randint(0, 2))
    return found


@of_images
def qwen2_vl(draw):
    text = text_of(draw, "qwen2_vl_text", **windows(draw))
    vision, size = tower(draw, hidden_size=text["hidden_size"], mlp_ratio=draw.choice([1, 2, 4]))
    return whole(draw, text, dict(vision, embed_dim=size))


@of_images
def qwen2_5_vl(draw):
    text = text_of(draw, "qwen2_5_vl_text", **windows(draw))
    vision, size = tower(draw, out_hidden_size=text["hidden_size"],
                         intermediate_size=draw.randint(3, 30))
    vision["window_size"] = vision["patch_size"] * vision["spatial_merge_size"] * draw.randint(
        1, 3) + draw.randint(0, 1)
    vision["fullatt_block_indexes"] = draw.sample(range(3), draw.randint(0, 2))
    return whole(draw, text, dict(vision, hidden_size=size))


@of_images
def qwen3_vl(draw):
    text = text_of(draw, "qwen3_vl_text", attention_bias=draw.maybe())
    vision, size = tower(draw, out_hidden_size=text["hidden_size"],
                         intermediate_size=draw.randint(3, 30))
    vision["num_position_embeddings"] = draw.randint(1, 4) ** 2
    n = draw.randint(0, min(vision["depth"], text["num_hidden_layers"]))
    vision["deepstack_visual_indexes"] = draw.sample(range(vision["depth"]), n)
    return whole(draw, text, dict(vision, hidden_size=size))


@of_images
def qwen3_vl_moe(draw):
    config = qwen3_vl(draw)
    text = with_type(config["text_config"], "qwen3_vl_moe_text")
    n_experts = draw.randint(2, 4)
    text.update(num_experts=n_experts, num_experts_per_tok=draw.randint(1, n_experts),
                moe_intermediate_size=draw.randint(3, 20), decoder_sparse_step=draw.randint(1, 2),
                mlp_only_layers=draw.sample(range(3), draw.randint(0, 1)))
    return dict(config, text_config=text)


def with_turns(draw, config, model_type):
    """A decoder whose pairs alternate between three positions."""
    pairs = int(config["head_dim"] * config.get("partial_rotary_factor", 1)) // 2
    rows = draw.randint(0, pairs // 3)
    rope = with_newer_name(config.pop("rope_scaling")) or dict(rope_type="default")
    for key in "rope_theta", "partial_rotary_factor":
        if key in config:
            rope[key] = config.pop(key)
    rope["mrope_section"] = [pairs - 2 * rows, rows, rows]
    return dict(with_type(config, model_type), rope_parameters=rope)


def without_features_in_layers(draw, text):
    vision, size = tower(draw, out_hidden_size=text["hidden_size"],
                         intermediate_size=draw.randint(3, 30))
    vision["num_position_embeddings"] = draw.randint(1, 4) ** 2
    return whole(draw, text, dict(vision, hidden_size=size))


@of_images
def qwen3_5(draw):
    return without_features_in_layers(draw, with_turns(draw, qwen3_5_text(draw), "qwen3_5_text"))


@of_images
def qwen3_5_moe(draw):
    text = with_turns(draw, qwen3_5_moe_text(draw), "qwen3_5_moe_text")
    text["output_router_logits"] = False  # transformers then fails to generate from padded rows
    return without_features_in_layers(draw, text)


def rows_with_grids(draw, config, ids, counts):
    """The rows with image tokens, and the grids of each."""
    vision, token = config["vision_config"], image_token(config)
    start, m = config["vision_start_token_id"], vision["spatial_merge_size"]
    rows, grids = [], []
    for row, count in zip(ids.tolist(), counts):
        places = sorted(draw.randint(0, len(row) - 1) for _ in range(count))
        own = [[1, m * draw.randint(1, 5), m * draw.randint(1, 5)] for _ in range(count)]
        found = list(row)
        for place, (_, height, width) in reversed(list(zip(places, own))):
            found[place:place] = [start] + [token] * (height * width // m ** 2)
        rows.append(found)
        grids.append(own)
    return rows, grids


def padded(draw, rows, usual):
    length, is_left = max(map(len, rows)), draw.maybe(0.7)
    rest = [[usual] * (length - len(row)) for row in rows]
    found = dict(input_ids=torch.tensor(
        [more + row if is_left else row + more for row, more in zip(rows, rest)]))
    if draw.maybe(0.7):
        masks = [([1] * len(row), [0] * len(more)) for row, more in zip(rows, rest)]
        found["attention_mask"] = torch.tensor(
            [no + yes if is_left else yes + no for yes, no in masks])
    return found


def with_grids(draw, config, ids):
    """Rows with images of several sizes. Images with fewer patches than others are filled up with
    zeros, and rows with fewer images, if each row has its own; or all patches have one dimension."""
    vision = config["vision_config"]
    special = {image_token(config), config["vision_start_token_id"], config["video_token_id"]}
    ends = {config["text_config"].get(name) for name in ("eos_token_id", "pad_token_id")}
    usual = next(i for i in range(3, 20) if i not in special | ends)
    for other in special:
        ids = ids.masked_fill(ids == other, usual)
    counts = counts_of(draw, len(ids))
    rows, grids = rows_with_grids(draw, config, ids, counts)
    form, most = draw.choice(["patches", "images", "rows"]), max(counts)
    if form == "rows":
        grids = [own + [[0, 0, 0]] * (most - len(own)) for own in grids]
    grids = torch.tensor([grid for own in grids for grid in own])
    sizes = grids.prod(1)
    shape = [len(grids), sizes.max()]
    pixels = some_pixels(draw, *shape, vision["in_channels"] * vision["temporal_patch_size"]
                         * vision["patch_size"] ** 2)
    is_real = torch.arange(shape[1]) < sizes[:, None]
    pixels[~is_real] = 0
    if form == "patches":
        pixels = pixels[is_real]
    elif form == "rows":
        pixels, grids = (t.unflatten(0, (len(rows), most)) for t in (pixels, grids))
    return dict(padded(draw, rows, usual), pixel_values=pixels, image_grid_thw=grids)


INPUTS.update(dict.fromkeys(["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
                             "qwen3_5_moe"], with_grids))


def of_library(inputs, model):
    """The inputs as transformers takes them: all patches in one dimension."""
    if "image_grid_thw" not in inputs:
        return dict(inputs)
    pixels, grids = inputs["pixel_values"], inputs["image_grid_thw"].flatten(0, -2)
    sizes = grids.prod(1)
    if pixels.dim() > 2:
        pixels = pixels.flatten(0, -3)
        pixels = pixels[torch.arange(pixels.shape[1]) < sizes[:, None]]
    found = dict(inputs, pixel_values=pixels, image_grid_thw=grids[sizes > 0])
    if not IS_OLD:
        found["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).int()
    return found


def padded_on_the_left(prompts):
    """Whose masks are on the left: images would lose tokens if only the mask moved there."""
    if "image_grid_thw" in prompts and "attention_mask" in prompts:
        for ids, mask in zip(prompts["input_ids"], prompts["attention_mask"]):
            ids[:] = ids.roll(mask.flip(0).argmax().item())


def as_first(draw, config):
    """The keys of the text model are beside those of the images in the first folders."""
    if config["model_type"] in ("qwen2_vl", "qwen2_5_vl") and draw.maybe(0.4):
        config = dict(config)
        text = config.pop("text_config")
        config.update({key: value for key, value in text.items()
                       if key not in ("model_type", "architectures", "transformers_version")})
    return config
