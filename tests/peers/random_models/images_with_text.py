"""Random configurations of models that read images with texts, and their inputs."""
import torch

from .decoders import gemma3, llama, mistral, qwen2
from .draw import ACTIVATIONS
from .pictures import clip_image, pixtral_image, siglip_image

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
    kind, of_image = draw.choice([("clip_vision_model", clip_image), ("pixtral", pixtral_image),
                                  ("siglip_vision_model", siglip_image)])
    is_clip, vision = kind == "clip_vision_model", with_type(of_image(draw), kind)
    if kind != "pixtral":
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
    # Version 4 lets the tokens of images, here of adjacent ones, see each other beyond a window,
    # version 5 does not.
    text["sliding_window"] = max(text["sliding_window"], 4 * side ** 2)
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


def image_token(config):
    """That of an image or a sound."""
    keys = [f"{kind}_token_{end}" for kind in ("image", "audio") for end in ("index", "id")]
    return next((config[key] for key in keys if key in config), None)


def counts_of(draw, n_rows, most=2):
    """How many images each row has; at least one."""
    counts = [draw.randint(0, most) for _ in range(n_rows)]
    if draw.maybe(0.6):
        counts = [draw.randint(1, most)] * n_rows
    if sum(counts) == 0:
        counts[0] = 1
    return counts


def rows_with(draw, config, ids, lengths):
    """The rows with the tokens of images, `lengths` of each; the last token is one of a text."""
    token = image_token(config)
    ids = ids.masked_fill(ids == token, (token + 1) % config["text_config"]["vocab_size"])
    most = max(sum(own) + len(own) for own in lengths) + ids.shape[1]
    rows = []
    for row, own in zip(ids, lengths):
        tokens = row.tolist()
        for n in reversed(own):
            place = draw.randint(0, len(row) - 1)
            tokens = tokens[:place] + [token] * n + tokens[place:]
        rows.append(tokens + [4] * (most - len(tokens)))
    return torch.tensor(rows)


def some_pixels(draw, *shape):
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    return torch.randn(*shape, generator=generator)


def with_images(draw, config, ids):
    """Rows with the tokens of images, and pixel values."""
    n, size = n_features(config), config["vision_config"]["image_size"]
    counts = counts_of(draw, len(ids))
    found = dict(input_ids=rows_with(draw, config, ids, [[n] * count for count in counts]),
                 pixel_values=some_pixels(draw, sum(counts), 3, size, size))
    if "mm_tokens_per_image" in config:
        found["token_type_ids"] = (found["input_ids"] == image_token(config)).long()
    return found


# The inputs of families whose images differ: functions as with_images.
INPUTS = {}
