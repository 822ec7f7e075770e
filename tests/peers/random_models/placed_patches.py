"""Random configurations and inputs of models that read patches with their places: Gemma 4."""
import torch

from .draw import ACTIVATIONS
from .images_with_text import INPUTS, counts_of, image_token, of_images, some_pixels, with_type
from . import native_images
from .native_images import padded
from .variants import gemma4 as gemma4_text


@of_images
def gemma4(draw):
    text = with_type(gemma4_text(draw), "gemma4_text")
    if text.get("pad_token_id") in (None, -1):
        text["pad_token_id"] = 0
    n_kv, k = draw.randint(1, 2), draw.randint(2, 3)  # transformers fails with 1
    vision = dict(
        hidden_size=draw.randint(4, 20), intermediate_size=draw.randint(3, 30),
        num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_kv * draw.randint(1, 2),
        num_key_value_heads=n_kv, head_dim=4 * draw.randint(1, 3), pooling_kernel_size=k,
        patch_size=draw.randint(1, 3), position_embedding_size=draw.randint(3, 5) * k,
        hidden_activation=draw.choice(ACTIVATIONS), rms_norm_eps=draw.choice([1e-6, 1e-5, 0.1]),
        use_clipped_linears=draw.maybe(), standardize=draw.maybe(),
        rope_parameters=dict(rope_type="axial", rope_theta=draw.choice([100.0, 10000.0])))
    known = {text.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokens = draw.sample([i for i in range(6, text["vocab_size"]) if i not in known], 5)
    names = ["image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id"]
    return dict(text_config=text, vision_config=vision, **dict(zip(names, tokens)),
                tie_word_embeddings=text["tie_word_embeddings"])


def places_of(height, width, length):
    """Columns and rows of patches, and -1 for those that fill up."""
    numbers = torch.arange(length)
    places = torch.stack([numbers % max(width, 1), numbers // max(width, 1)], -1)
    return places.masked_fill((numbers >= height * width)[:, None], -1)


def with_places(draw, config, ids):
    """Rows with images of several sizes. Rows with fewer images than others are filled up, if each
    row has its own."""
    vision, token = config["vision_config"], image_token(config)
    k = vision["pooling_kernel_size"]
    special = [token, config["video_token_id"], config["audio_token_id"]]
    ends = {config["text_config"].get(name) for name in ("eos_token_id", "pad_token_id")}
    usual = next(i for i in range(3, 20) if i not in {*special} | ends)
    for other in special:
        ids = ids.masked_fill(ids == other, usual)
    counts = counts_of(draw, len(ids))
    most = vision["position_embedding_size"] // k
    rows, sizes = [], []
    for row, count in zip(ids.tolist(), counts):
        own = [(draw.randint(1, most), draw.randint(1, most)) for _ in range(count)]
        at = sorted(draw.randint(0, len(row) - 1) for _ in range(count))
        for place, (height, width) in reversed(list(zip(at, own))):
            row[place:place] = [token] * (height * width)
        rows.append(row)
        sizes.append([(k * height, k * width) for height, width in own])
    has_rows = draw.maybe()
    if has_rows:
        sizes = [own + [(0, 0)] * (max(counts) - len(own)) for own in sizes]
    all_sizes = [size for own in sizes for size in own]
    length = max(height * width for height, width in all_sizes) + k * k * draw.randint(0, 2)
    places = torch.stack([places_of(*size, length) for size in all_sizes])
    pixels = some_pixels(draw, len(places), length, 3 * vision["patch_size"] ** 2)
    pixels[places[..., 0] < 0] = 0
    if has_rows:
        pixels, places = (t.unflatten(0, (len(rows), max(counts))) for t in (pixels, places))
    return dict(padded(draw, rows, usual), pixel_values=pixels, image_position_ids=places)


INPUTS["gemma4"] = with_places


def of_library(inputs, model):
    """The inputs as transformers takes them: only real images, in one dimension."""
    if "image_position_ids" not in inputs:
        return native_images.of_library(inputs, model)
    places = inputs["image_position_ids"].flatten(0, -3)
    pixels, is_real = inputs["pixel_values"].flatten(0, -3), places[:, 0, 0] >= 0
    return dict(inputs, pixel_values=pixels[is_real], image_position_ids=places[is_real],
                mm_token_type_ids=(inputs["input_ids"] == model.config.image_token_id).int())
