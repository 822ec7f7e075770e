"""Random configurations of models that read images with texts, and their inputs."""
import torch

from .decoders import gemma3, llama, mistral, qwen2
from .draw import ACTIVATIONS
from .pictures import clip_image, siglip_image

IMAGE_TEXT = {}


def of_images(function):
    IMAGE_TEXT[function.__name__] = function
    return function


def with_type(config, model_type):
    """The configuration of a part."""
    return dict(config, model_type=model_type)


@of_images
def llava(draw):
    model_type, of_text = draw.choice([("llama", llama), ("mistral", mistral), ("qwen2", qwen2)])
    text = with_type(of_text(draw), model_type)
    if text.get("pad_token_id") == -1:
        text["pad_token_id"] = 0
    is_clip = draw.maybe(0.7)
    vision = with_type(clip_image(draw) if is_clip else siglip_image(draw),
                       "clip_vision_model" if is_clip else "siglip_vision_model")
    vision["num_channels"] = 3
    side = vision["patch_size"] * draw.randint(1, 2)
    vision["image_size"] = side + draw.randint(0, 1)
    n = vision["num_hidden_layers"]
    places = [draw.randint(-n - 1, n) for _ in range(draw.randint(1, 3))]
    strategy = draw.choice(["default", "full"]) if is_clip else "full"
    return dict(
        text_config=text, vision_config=vision, projector_hidden_act=draw.choice(ACTIVATIONS),
        image_token_index=draw.token(text["vocab_size"] - 6) + 6,
        # Version 5 takes the number 0 for none.
        vision_feature_layer=places if draw.maybe(0.3) else places[0] or 1,
        vision_feature_select_strategy=strategy, multimodal_projector_bias=draw.maybe(),
        tie_word_embeddings=text["tie_word_embeddings"])


@of_images
def gemma_3(draw):
    text = with_type(gemma3(draw), "gemma3_text")
    vision = with_type(siglip_image(draw), "siglip_vision_model")
    side = draw.randint(1, 2)
    vision.update(num_channels=3, vision_use_head=False)
    vision["image_size"] = vision["patch_size"] * side * draw.randint(1, 2) + draw.randint(0, 1)
    # Version 4 lets the tokens of an image see each other beyond a window, version 5 does not.
    text["sliding_window"] = max(text["sliding_window"], side ** 2)
    return dict(
        text_config=text, vision_config=vision, mm_tokens_per_image=side ** 2,
        image_token_index=draw.token(text["vocab_size"] - 6) + 6,
        tie_word_embeddings=text["tie_word_embeddings"])


IMAGE_TEXT["gemma3"] = IMAGE_TEXT.pop("gemma_3")


def n_features(config):
    if "mm_tokens_per_image" in config:
        return config["mm_tokens_per_image"]
    vision = config["vision_config"]
    n = (vision["image_size"] // vision["patch_size"]) ** 2
    has_class = vision["model_type"] == "clip_vision_model"
    return n + has_class - (config["vision_feature_select_strategy"] == "default")


def with_images(draw, config, ids):
    """Rows with the tokens of images, and pixel values; the last token is one of a text."""
    token, n = config["image_token_index"], n_features(config)
    ids = ids.masked_fill(ids == token, (token + 1) % config["text_config"]["vocab_size"])
    rows, is_even = [], draw.maybe(0.6)
    n_images = 0
    counts = [draw.randint(1, 2)] * len(ids) if is_even else [draw.randint(0, 2) for _ in ids]
    if sum(counts) == 0:
        counts[0] = 1
    length = max(counts) * (n + 1) + ids.shape[1]
    for row, count in zip(ids, counts):
        tokens = row.tolist()
        for _ in range(count):
            place = draw.randint(0, len(row) - 1)
            tokens = tokens[:place] + [token] * n + tokens[place:]
        while len(tokens) < length:
            tokens.append(4)
        rows.append(tokens)
        n_images += count
    size = config["vision_config"]["image_size"]
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    found = dict(input_ids=torch.tensor(rows),
                 pixel_values=torch.randn(n_images, 3, size, size, generator=generator))
    if "mm_tokens_per_image" in config:
        found["token_type_ids"] = (found["input_ids"] == token).long()
    return found
