"""Random options of generation, and what transformers makes of them."""
import copy
import functools

import torch
import transformers

from .native_images import padded_on_the_left
from .sound_with_text import of_library
from .states import IS_OLD, STATES


def some_processors(draw, vocab_size, prompt, is_text, is_beam):
    """Options that change scores; None where transformers has nothing."""
    def some_tokens(n):
        return [draw.token(vocab_size) for _ in range(draw.randint(1, n))]

    options = dict(
        sequence_bias=[[[draw.randint(1, vocab_size - 1) for _ in range(draw.randint(1, 2))],
                        draw.number(-5, 5)] for _ in range(6)],
        repetition_penalty=draw.number(0.5, 2), no_repeat_ngram_size=draw.randint(1, 3),
        bad_words_ids=[some_tokens(2) for _ in range(6)], min_length=prompt + draw.randint(0, 4),
        min_new_tokens=draw.randint(0, 4), forced_bos_token_id=draw.token(vocab_size),
        forced_eos_token_id=draw.choice([draw.token(vocab_size), some_tokens(2)]),
        remove_invalid_values=draw.maybe(), suppress_tokens=some_tokens(4) + [vocab_size + 3],
        begin_suppress_tokens=some_tokens(4), renormalize_logits=draw.maybe(),
        exponential_decay_length_penalty=[draw.randint(0, 3), draw.number(1, 1.5)])
    if is_text:
        options["encoder_no_repeat_ngram_size"] = draw.randint(1, 3)
        if not is_beam:
            options["encoder_repetition_penalty"] = draw.number(0.5, 2)
    chosen = {key: options[key] for key in draw.sample(sorted(options), draw.randint(0, 4))}
    if "forced_bos_token_id" in chosen or "forced_eos_token_id" in chosen:
        # Version 5 refuses to force what is suppressed.
        chosen.pop("suppress_tokens", None)
    if any(key in chosen for key in ("min_length", "min_new_tokens", "bad_words_ids",
                                     "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
                                     "suppress_tokens", "forced_bos_token_id",
                                     "forced_eos_token_id", "begin_suppress_tokens")):
        chosen.pop("exponential_decay_length_penalty", None)  # -inf + inf
    return chosen


def some_warpers(draw):
    options = dict(temperature=draw.number(0.3, 3), top_k=draw.choice([0, 1, 5, 100]),
                   top_p=draw.number(0.05, 1), min_p=draw.number(0, 1),
                   typical_p=draw.number(0.05, 1), epsilon_cutoff=draw.number(0, 0.2),
                   eta_cutoff=draw.number(0, 0.2))
    chosen = draw.sample(sorted(options), draw.randint(1, 3))
    return dict({key: options[key] for key in chosen}, do_sample=True)


def new_generations(draw, vocab_size, prompt, is_text):
    """(how it is compared, options) of each."""
    found = []
    for is_beam in (False, True):
        options = some_processors(draw, vocab_size, prompt, is_text, is_beam)
        if draw.maybe(0.8):
            options["max_new_tokens"] = draw.randint(1, 8)
        if is_beam:
            options.update(num_beams=draw.randint(2, 3), length_penalty=draw.number(-1, 2),
                           early_stopping=draw.choice([True, False, "never"]))
            options["num_return_sequences"] = draw.randint(1, options["num_beams"])
        if draw.maybe(0.3):
            options["eos_token_id"] = [draw.token(vocab_size) for _ in range(draw.randint(1, 2))]
        found.append(("tokens", options))
    for _ in range(2):
        options = some_processors(draw, vocab_size, prompt, is_text, False)
        options.update(some_warpers(draw), max_new_tokens=4)
        found.append(("scores", options))
    return found


BEAMS = ("num_beams", "num_return_sequences", "length_penalty", "early_stopping")


def mixes_images(prompts, image_token):
    """Whether transformers gives beams the sounds, or version 4 the images, of other rows: it
    repeats each of a list of them, which is right if each row has one."""
    pixels, ids = prompts.get("pixel_values"), prompts.get("input_ids")
    if "input_features" in prompts:
        pixels = of_library(prompts, None)["input_features"]
    elif not IS_OLD:
        return False
    if pixels is None or ids is None or image_token is None:
        return False
    return len(pixels) != len(ids) or not ids.eq(image_token).any(1).all()


def has_padding(prompts, pad_token_id):
    mask, ids = prompts.get("attention_mask"), prompts.get("input_ids")
    if mask is not None:
        return not mask.all()
    return ids is not None and pad_token_id is not None and ids.eq(pad_token_id).any()


def fit(options, given, prompts, image_token=None):
    """Drops options that contradict generation_config.json: what it bans has -inf, to which one of
    them adds infinity, and version 5 refuses to force what is suppressed. Drops beams where version
    4 gives each beam the images of another row, and the penalty of repetition where version 5
    leaves out padding. Only Qwen-VL's default of max_length counts its max_position_embeddings."""
    if "image_grid_thw" in prompts and options.get("do_sample") is None:
        options.setdefault("max_new_tokens", 3)
    elif mixes_images(prompts, image_token):
        for key in BEAMS:
            options.pop(key, None)
    if not IS_OLD and has_padding(prompts, given.pad_token_id):
        options["repetition_penalty"] = 1.0
    if given.suppress_tokens or options.get("forced_bos_token_id") in (
            given.begin_suppress_tokens or []):
        options.pop("forced_bos_token_id", None)
        options.pop("forced_eos_token_id", None)
    banning = ("bad_words_ids", "no_repeat_ngram_size", "suppress_tokens", "min_new_tokens",
               "begin_suppress_tokens")
    if any(getattr(given, key, None) for key in banning):
        options.pop("exponential_decay_length_penalty", None)


def processed(model, options, prompt, scores, ids, encoder_ids):
    """What transformers' processors make of the scores of the next token."""
    config, _ = model._prepare_generation_config(None, **options)
    model._prepare_special_tokens(config, device="cpu")
    config = model._prepare_generated_length(config, True, "min_length" not in options, "input_ids",
                                             prompt, ids)
    return model._get_logits_processor(config, prompt, encoder_ids, device="cpu")(ids, scores)


def prompts_of(inputs, is_encoder_decoder, pad_token_id):
    prompts = {key: value.clone() for key, value in inputs.items()
               if key in ("input_ids", "attention_mask", "pixel_values", "input_features",
                           "token_type_ids", "image_sizes", "pixel_attention_mask",
                           "batch_num_images", "image_grid_thw", "image_position_ids",
                           "feature_attention_mask", "global_attention_mask")}
    if is_encoder_decoder:
        for key in ("decoder_input_ids", "decoder_attention_mask"):
            if key in inputs:
                prompts[key] = inputs[key]
        if "attention_mask" not in prompts and "input_ids" in prompts and pad_token_id is not None:
            # Version 4 finds padding among the tokens, version 5 does not.
            prompts["attention_mask"] = torch.ones_like(prompts["input_ids"])
    elif "attention_mask" in prompts:  # that of a prompt is on the left
        padded_on_the_left(prompts)
        lengths = prompts["attention_mask"].sum(1)
        for row, n in zip(prompts["attention_mask"], lengths):
            row[:] = 0
            row[len(row) - n:] = 1
    else:  # a padding token at the end would be padding on the right
        prompts["input_ids"][:, -1] = 4 if pad_token_id == 5 else 5
    return prompts


def generated(model, prompts, options, is_double=False):
    """The tokens, by a copy: rope_type "dynamic" remembers the longest text."""
    own = copy.deepcopy(model)
    own.config.output_router_logits = False  # it fails with a cache
    # Whose cache does not follow beams. With a cache Zamba2's steps have no time_step_min, and LED's
    # attend to the padding of the prompt.
    if IS_OLD and own.config.model_type in STATES or own.config.model_type in ("zamba2", "led"):
        options = dict(options, use_cache=False)
    own = own.double() if is_double else own
    generate = own.generate
    if "input_features" in prompts and "decoder_input_ids" in prompts:  # as of other models
        generate = functools.partial(transformers.GenerationMixin.generate, own)
    with torch.no_grad():
        return generate(**of_library(prompts, own), **options)
