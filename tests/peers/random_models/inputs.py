"""Random inputs and labels of a model."""
import torch

from .families import (ANY_SIZE, CLASSIFIERS, ENCODER_DECODERS, IMAGE_TEXT, MASKS, OBJECTS,
                       OF_IMAGES, OF_PIXELS, OF_SAMPLES, OF_SOUNDS, OF_SPECTRA, OF_TEXTS, PAIRED,
                       is_encoder, takes_positions)
from .images_with_text import INPUTS, image_token, with_images
from .masks import mask_inputs
from .objects import object_inputs
from .states import IS_OLD, STATES, padding_leaks


def task_labels(config, task, rows, length, generator):
    n = config.get("num_labels", 2)
    if task == "masked_lm":
        labels = torch.randint(config["vocab_size"], (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.6] = -100
        labels[:, length // 2] = 3
        return dict(labels=labels)
    if task == "replaced_token_detection":
        return dict(labels=torch.randint(2, (rows, length), generator=generator))
    if task == "token_classification":
        labels = torch.randint(n, (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.3] = -100
        labels[:, 1] = 1
        return dict(labels=labels)
    if task == "question_answering":
        return {key: torch.randint(length + 1, (rows,), generator=generator).clamp(0, length - 1)
                for key in ("start_positions", "end_positions")}
    if config["problem_type"] == "multi_label_classification":
        return dict(labels=torch.rand(rows, n, generator=generator).round())
    if n == 1 or config["problem_type"] == "regression":
        shape = (rows,) if n == 1 else (rows, n)
        return dict(labels=torch.randn(shape, generator=generator))
    return dict(labels=torch.randint(n, (rows,), generator=generator))


def permuted(draw, length, labels, generator):
    """Which tokens of XLNet see which, and those that it predicts."""
    seen = torch.rand(len(labels), length, length, generator=generator) < 0.3
    n = draw.randint(1, length)
    places = torch.stack([torch.randperm(length, generator=generator)[:n] for _ in labels])
    labels = labels.gather(1, places)
    labels[:, 0] = 3
    return dict(perm_mask=seen.float(), labels=labels,
                target_mapping=torch.nn.functional.one_hot(places, length).float())


def mask_of(draw, rows, length, side):
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in mask:
        n = draw.randint(0, (length - 1) // 3)  # the middle is always a token
        if n and side == "left":
            row[:n] = 0
        elif n and side == "within":
            row[1:n + 1] = 0
        elif n:
            row[length - n:] = 0
    return mask


def pixels(draw, config, family, rows, generator):
    sides = [config["image_size"]] * 2
    if family.partition(".")[0] in ANY_SIZE and draw.maybe():
        sides = [config["patch_size"] * draw.randint(1, 6) + draw.randint(0, 1) for _ in sides]
    return torch.randn(rows, config["num_channels"], *sides, generator=generator)


def patches(draw, config, rows, generator):
    """Images of different sizes, of at most so many patches. PyTorch's interpolate, which version 4
    uses, is wrong for images of one column."""
    length = draw.randint(2, 12)
    shapes, mask = [], torch.zeros(rows, length, dtype=torch.int64)
    for row in mask:
        width = draw.randint(2, length)
        shapes.append([draw.randint(1, length // width), width])
        row[:shapes[-1][0] * width] = 1
    size = config["num_channels"] * config["patch_size"] ** 2
    return dict(pixel_values=torch.randn(rows, length, size, generator=generator),
                pixel_attention_mask=mask, spatial_shapes=torch.tensor(shapes))


def sounds(draw, config, rows, generator):
    """Spectra of CLAP, and which sounds are longer."""
    most = config["spec_size"] * (config["spec_size"] // config["num_mel_bins"])
    n = 4 if config["enable_fusion"] else 1
    features = torch.randn(rows, n, draw.choice([most, draw.randint(2, most)]),
                           config["num_mel_bins"], generator=generator)
    is_longer = torch.rand(rows, 1, generator=generator) < 0.6
    is_longer[0] = True  # without any, weights get no gradient
    return dict(input_features=features, is_longer=is_longer)


def image_and_text_inputs(draw, config, family):
    rows, length = draw.randint(1, 3), draw.randint(3, 9)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    inputs = {}
    if family in OF_SOUNDS or "audio_config" in config:
        inputs.update(sounds(draw, config.get("audio_config", config), rows, generator))
    elif family not in OF_TEXTS:
        image = config.get("vision_config", config)
        if "num_patches" in image:
            inputs.update(patches(draw, image, rows, generator))
        else:
            inputs["pixel_values"] = pixels(draw, image, family, rows, generator)
    if family not in OF_IMAGES and family not in OF_SOUNDS:
        text = config.get("text_config", config)
        ids = torch.randint(text["vocab_size"], (rows, length), generator=generator)
        ids[torch.rand(ids.shape, generator=generator) < 0.2] = text["eos_token_id"]
        inputs["input_ids"] = ids
        if draw.maybe(0.6):
            # With padding on the left CLIP in transformers has NaN.
            sides = ["left", "right"] if family.startswith(("siglip", "clap")) else ["right"]
            inputs["attention_mask"] = mask_of(draw, rows, length, draw.choice(sides))
    return inputs


def pixel_inputs(draw, config, family):
    """Images, and the class of each pixel, of another size."""
    rows, n = draw.randint(1, 3), len(config["id2label"])
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    images = pixels(draw, config, family, rows, generator)
    sides = [draw.randint(5, 40), draw.randint(5, 40)]
    labels = torch.randint(max(n, 2), (rows, *sides), generator=generator)
    none = config["semantic_loss_ignore_index"]
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = none
    return dict(pixel_values=images, labels=labels)


def sound_inputs(draw, config, family):
    rows, generator = draw.randint(1, 3), torch.Generator().manual_seed(draw.randrange(2 ** 31))
    least = 6  # frames, enough for the labels, and then the samples that make them
    for kernel, stride in reversed([*zip(config["conv_kernel"], config["conv_stride"])]):
        least = (least - 1) * stride + kernel
    samples = least + draw.randint(0, 9)
    inputs = dict(input_values=torch.randn(rows, samples, generator=generator))
    if draw.maybe(0.6):
        mask = torch.ones(rows, samples, dtype=torch.int64)
        for row in mask:
            row[draw.randint(least, samples):] = 0
        inputs["attention_mask"] = mask
    if family.endswith(".audio_classification"):
        inputs["labels"] = torch.randint(len(config["id2label"]), (rows,), generator=generator)
    elif family.endswith(".ctc"):
        labels = torch.randint(3, config["vocab_size"], (rows, 3), generator=generator)
        labels[torch.rand(rows, 3, generator=generator) < 0.2] = -100
        inputs["labels"] = labels
    return inputs


def spectrum_inputs(draw, config, family):
    """Frames of spectra, with a mask beside labels, which the library needs."""
    rows, generator = draw.randint(1, 3), torch.Generator().manual_seed(draw.randrange(2 ** 31))
    own = config.get("encoder_config", config)
    least = 6 * own["subsampling_factor"]  # enough for the labels
    frames = least + draw.randint(0, 12)
    inputs = dict(input_features=torch.randn(rows, frames, own["num_mel_bins"],
                                             generator=generator))
    if own is not config or draw.maybe():
        inputs["attention_mask"] = mask = torch.ones(rows, frames, dtype=torch.int64)
        for row in mask:
            row[draw.randint(least, frames):] = 0
    if family.endswith(".ctc"):
        blank = config["pad_token_id"]
        labels = torch.randint(config["vocab_size"] - 1, (rows, 3), generator=generator)
        labels += labels >= blank
        labels[torch.rand(rows, 3, generator=generator) < 0.2] = blank
        inputs["labels"] = labels
    return inputs


def new_inputs(draw, config, vocab_size, family):
    if any(family in kind for kind in (PAIRED, OF_TEXTS, OF_IMAGES, OF_SOUNDS)):
        return image_and_text_inputs(draw, config, family)
    if family in OF_PIXELS:
        return pixel_inputs(draw, config, family)
    if family in OBJECTS:
        return object_inputs(draw, config)
    if family in MASKS:
        return mask_inputs(draw, config)
    if family in OF_SPECTRA:
        return spectrum_inputs(draw, config, family)
    if family in OF_SAMPLES:
        return sound_inputs(draw, config, family)
    rows, length = draw.randint(1, 3), draw.randint(3, 9)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))

    def tokens(*shape):
        ids = torch.randint(vocab_size, shape, generator=generator)
        pad = config.get("pad_token_id")
        if pad is not None and draw.maybe():
            ids[torch.rand(shape, generator=generator) < 0.3] = pad % vocab_size
        return ids

    def some_labels(*shape):
        labels = tokens(*shape)
        labels[torch.rand(shape, generator=generator) < 0.2] = -100
        labels[:, shape[1] // 2] = 3
        return labels

    inputs = {}
    if family in CLASSIFIERS or family == "vision-encoder-decoder":
        image = config.get("vision_config") or config.get("encoder") or config
        if family.startswith("whisper"):
            inputs["input_features"] = torch.randn(
                rows, config["num_mel_bins"], 2 * config["max_source_positions"],
                generator=generator)
        elif "num_patches" in image:
            inputs.update(patches(draw, image, rows, generator))
        else:
            inputs["pixel_values"] = pixels(draw, image, family, rows, generator)
        if family in CLASSIFIERS:
            kind = dict(num_labels=len(config["id2label"]), problem_type=config["problem_type"])
            return dict(inputs, **task_labels(kind, "", rows, length, generator))
    elif family == "whisper":
        inputs["input_features"] = torch.randn(rows, config["num_mel_bins"],
                                               2 * config["max_source_positions"],
                                               generator=generator)
    else:
        inputs["input_ids"] = tokens(rows, length)
        if family in IMAGE_TEXT:
            inputs.update(INPUTS.get(family, with_images)(draw, config, inputs["input_ids"]))
            length = inputs["input_ids"].shape[1]
        # When the library computes a text of Phi-3 anew, its mask shows later tokens.
        is_restarted = family in ("phi3", "phimoe") and config["rope_scaling"]
        has_mask = draw.maybe(0.6) and not is_restarted
        # BioGPT in version 4 counts the tokens of a text to find its last one.
        if padding_leaks(family, config, rows) or IS_OLD and family.startswith("biogpt.seq"):
            ids, pad = inputs["input_ids"], config.get("pad_token_id", -1)
            ids[ids == pad] = (pad + 1) % vocab_size
        elif has_mask and "image_grid_thw" not in inputs and "image_position_ids" not in inputs:
            # DeBERTa reads the arbitrary state of padding if that is first; others count it.
            is_counted = family.startswith("falcon.") and not takes_positions(family)
            sides = ["left", "right"][family.startswith("deberta") or is_counted:]
            if family.partition(".")[0] in STATES:
                sides.append("within")
            inputs["attention_mask"] = mask_of(draw, rows, length, draw.choice(sides))
            if family in IMAGE_TEXT:  # which are no padding
                is_image = inputs["input_ids"] == image_token(config)
                inputs["attention_mask"][is_image] = 1
        elif family == "paligemma":  # version 4 reads token_type_ids only beside a mask
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if family.startswith("led") and draw.maybe():
            found = torch.rand(rows, length, generator=generator) < 0.3
            inputs["global_attention_mask"] = found.long()
    task = family.partition(".")[2]
    n_types = 3 if family.startswith("xlnet") else config.get("type_vocab_size", 1)
    if is_encoder(family) and n_types > 1 and draw.maybe():
        inputs["token_type_ids"] = torch.randint(n_types, (rows, length), generator=generator)
    if task == "multiple_choice":
        n = draw.randint(2, 4)
        if family.startswith("modernbert"):  # whose means need it
            inputs.setdefault("attention_mask", torch.ones(rows, length, dtype=torch.int64))
        inputs = {key: value.unsqueeze(1).repeat(1, n, 1) for key, value in inputs.items()}
        inputs["input_ids"] = tokens(rows, n, length)
        return dict(inputs, labels=torch.randint(n, (rows,), generator=generator))
    if task == "features":
        return inputs
    if task:
        inputs.update(task_labels(config, task, rows, length, generator))
        if family.startswith("mbart."):  # each row needs a token that is no padding
            inputs["input_ids"][:, 0] = (config["pad_token_id"] + 1) % vocab_size
        if family == "t5gemma.token_classification":  # what padding sees in a window is arbitrary
            ids, pad = inputs["input_ids"], config["pad_token_id"]
            ids[ids == pad] = (pad + 1) % vocab_size
        if task == "question_answering":  # it reads the arbitrary logits of padding
            inputs.pop("attention_mask", None)
        pad = config.get("pad_token_id")
        if task == "sequence_classification" and "attention_mask" in inputs and pad is not None:
            # A decoder reads the last token that is no padding, by its id.
            hidden = inputs["attention_mask"] == 0
            inputs["input_ids"] = inputs["input_ids"].masked_fill(hidden, max(pad, 0))
            inputs["input_ids"][:, length // 2] = (max(pad, 0) + 1) % vocab_size
        if task == "sequence_classification" and family.partition(".")[0] in ENCODER_DECODERS:
            # They read the end token, of which each row must have the same number.
            ids, end = inputs["input_ids"], config["eos_token_id"]
            ids[ids == end] = (end + 1) % vocab_size
            ids[:, draw.randrange(length)] = end
        if task in ("token_classification", "masked_lm") and "attention_mask" in inputs:
            inputs["labels"][inputs["attention_mask"] == 0] = -100
        if family == "xlnet.masked_lm" and draw.maybe():
            inputs.update(permuted(draw, length, inputs["labels"], generator))
        return inputs
    if family in ENCODER_DECODERS:
        inputs["labels"] = some_labels(rows, draw.randint(2, 7))
        if draw.maybe(0.4):
            inputs["decoder_input_ids"] = tokens(*inputs["labels"].shape)
            if draw.maybe(0.6):
                inputs["decoder_attention_mask"] = mask_of(draw, *inputs["labels"].shape,
                                                           draw.choice(["left", "right"]))
    else:
        inputs["labels"] = some_labels(rows, length)
    # What stands on padding, and what it predicts, is arbitrary.
    mask = inputs.get("attention_mask" if "decoder_input_ids" not in inputs
                      else "decoder_attention_mask")
    if mask is not None and mask.shape == inputs["labels"].shape:
        is_padding = mask == 0
        if family not in ENCODER_DECODERS:
            is_padding[:, 1:] |= mask[:, :-1] == 0
        inputs["labels"][is_padding] = -100
    return inputs
