"""Writes cases."""
import contextlib
import copy
import json

import torch
import transformers
from safetensors.torch import save_file

from .changes import write_changed
from .draw import Draw
from .families import HAVE_POOLER, HEADLESS, OBJECTS, OF_TEXTS, PAIRED, is_generative
from .generation import fit, generated, new_generations, processed, prompts_of
from .images_with_text import image_token
from .inputs import new_inputs
from .mends import mend, states_in_double
from .models import new_model, with_pooling
from .native_images import as_first
from .reference import in_double, reference, with_positions
from .states import IS_OLD

CHANGES = 4  # of the configuration, for each model


def write_model(draw, model, folder, family, vocab_size):
    """Files of torch.save or safetensors, one or several, in one of three dtypes."""
    dtype = draw.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    if family in ("marian", "pegasus"):  # whose sinusoids are computed, not read rounded
        dtype = torch.float32
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(dtype))
    if is_generative(family) and family != "whisper" and draw.maybe(0.4):
        for key, value in generation_config(draw, vocab_size).items():
            setattr(model.generation_config, key, value)
    is_safe = draw.maybe(0.7)
    if family.startswith("zamba2") and IS_OLD:  # version 4 fails on weights that layers share
        is_safe = False
    copy.deepcopy(model).to(dtype).save_pretrained(
        folder, safe_serialization=is_safe,
        max_shard_size="20KB" if draw.maybe(0.3) else "1GB")


def generation_config(draw, vocab_size):
    """What generation_config.json says beside special tokens."""
    options = dict(repetition_penalty=draw.number(0.5, 2), no_repeat_ngram_size=draw.randint(1, 3),
                   suppress_tokens=[draw.token(vocab_size)], max_length=draw.randint(8, 20),
                   begin_suppress_tokens=[draw.token(vocab_size)],
                   bad_words_ids=[[draw.token(vocab_size)], [1, 2]],
                   min_new_tokens=draw.randint(1, 3), renormalize_logits=True)
    return {key: options[key] for key in draw.sample(sorted(options), draw.randint(1, 3))}


def write_config(draw, folder):
    """The configuration as other versions of the library write it."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    if draw.maybe(0.3) and "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if draw.maybe(0.4):
        config = of_version_5(config)
    config = as_first(draw, config)
    place.write_text(json.dumps(config))


def of_version_5(config):
    """rope_parameters has all settings of the positions; of two kinds of layers there are two."""
    if "rope_parameters" in config:  # it wrote this one
        return config
    config = dict(config)
    keys = dict(gpt_neox=("rotary_emb_base", "rotary_pct")).get(
        config["model_type"], ("rope_theta", "partial_rotary_factor"))
    if config["model_type"] == "modernbert":
        thetas = [config.pop("global_rope_theta"), config.pop("local_rope_theta")]
        kinds = ["full_attention", "sliding_attention"]
        n = config.pop("global_attn_every_n_layers")
        config["layer_types"] = [kinds[i % n != 0] for i in range(config["num_hidden_layers"])]
        config["rope_parameters"] = {
            kind: dict(rope_type="default", rope_theta=theta or thetas[0])
            for kind, theta in zip(kinds, thetas)}
    elif keys[0] in config:
        rope = config.pop("rope_scaling", None) or {}
        rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
        rope["rope_theta"] = config.pop(keys[0])
        if rope["rope_type"] == "longrope":  # version 4 does not read this one
            rope.pop("original_max_position_embeddings", None)
        if rope["rope_type"] in ("llama3", "yarn"):  # for which version 5 alone reads this one
            config.pop("original_max_position_embeddings", None)
        if config.get("original_max_position_embeddings"):  # there `factor` counts before it
            rope.pop("factor" if rope["rope_type"] == "longrope" else None, None)
        if config["model_type"] in ("gemma3_text", "olmo3"):
            theta = config.pop("rope_local_base_freq", rope["rope_theta"])
            near = dict(rope_type="default", rope_theta=theta)
            rope = dict(full_attention=rope, sliding_attention=near)
        elif keys[1] in config:
            rope["partial_rotary_factor"] = config.pop(keys[1])
        config["rope_parameters"] = rope
    return config


def write_case(folder, seed, family):
    draw = Draw(f"{seed} {family}")
    config, model, vocab_size = new_model(draw, family)
    inputs = new_inputs(draw, config, vocab_size, family)
    if config.get("pad_token_id") == -1 and is_generative(family):  # which counts from the end; no option of generate does
        model.generation_config.pad_token_id = None
    write_model(Draw(f"{seed} files"), model, folder, family, vocab_size)
    expected, noise, case = {}, {}, dict(family=family, generations=[], changes=CHANGES)
    if family in HEADLESS:
        case["pooling"] = draw.choice([None, "mean", "cls", "last"]
                                      + ["pooler"] * (family in HAVE_POOLER))
        if case["pooling"] is None:  # what stands on padding is arbitrary
            inputs.pop("attention_mask", None)
        with_pooling(model, case["pooling"])
    if is_generative(family):
        prompts = prompts_of(inputs, model.config.is_encoder_decoder,
                             config.get("pad_token_id"))
        if family == "paligemma":  # version 4 does so
            prompts["token_type_ids"].zero_()
        encoder_ids = next(prompts[key] for key in ("input_ids", "pixel_values", "input_features")
                           if key in prompts)
        own_ids = (inputs.get("decoder_input_ids") if model.config.is_encoder_decoder
                   else encoder_ids)
        prompt = own_ids.shape[1] if own_ids is not None else 1
        for i, (kind, options) in enumerate(
                new_generations(draw, vocab_size, prompt, "input_ids" in prompts)):
            fit(options, model.generation_config, prompts, image_token(config))
            if family == "whisper":
                options.pop("eos_token_id", None)
            case["generations"].append(dict(kind=kind, options=options, prompt_length=prompt))
            if kind == "tokens":
                try:
                    expected[f"tokens.{i}"] = generated(model, prompts, options)
                    noise[f"tokens.{i}"] = generated(model, in_double(prompts), options, True)
                except ValueError:  # both must refuse it
                    pass
                except IndexError:  # the library's Whisper fails on a text without any token
                    case["generations"][-1]["kind"] = "none"
                continue
            rows = encoder_ids.shape[0]
            length = prompt + draw.randint(0, 3)
            ids = torch.randint(vocab_size, (rows, length))
            scores = 3 * torch.randn(rows, vocab_size)
            if draw.maybe(0.2) and "exponential_decay_length_penalty" not in options:  # -inf + inf
                scores[:, draw.token(vocab_size)] = -float("inf")
            inputs[f"ids.{i}"], inputs[f"scores.{i}"] = ids, scores
            expected[f"scores.{i}"] = processed(model, options, prompt, scores, ids, encoder_ids)
        inputs.update({"prompt." + key: value.clone() for key, value in prompts.items()})
    batch = {key: value for key, value in inputs.items() if "." not in key}
    expected.update(reference(copy.deepcopy(model), batch, family))
    # CLIP makes its mask in this type, and DETR the weights of classes.
    if family in PAIRED or family in OF_TEXTS or family in OBJECTS:
        torch.set_default_dtype(torch.float64)
    is_current = family in ("qwen3_5", "qwen3_5_moe")  # in version 4 other states fail in float64
    with states_in_double() if is_current else contextlib.nullcontext():
        noise.update(reference(copy.deepcopy(model).double(), in_double(batch), family))
    torch.set_default_dtype(torch.float32)
    known = {key: value for key, value in with_positions(inputs, model, family).items()
             if "." not in key and key != "labels" and "_positions" not in key}
    is_text = model.config.is_encoder_decoder and is_generative(family)
    # PaliGemma reads its token_type_ids in version 4 only beside labels.
    if is_text and "decoder_input_ids" not in known or family == "paligemma":
        known["labels"] = inputs["labels"]
    prompts = {key.removeprefix("prompt."): value for key, value in inputs.items()
               if key.startswith("prompt.")}
    for i in range(CHANGES):
        expected.update(write_changed(draw, folder, i, family, known, prompts,
                                      case.get("pooling")))
    write_config(Draw(f"{seed} config"), folder)
    save_file({key: value.contiguous() for key, value in inputs.items()},
              folder / "inputs.safetensors")
    for name, arrays in dict(expected=expected, noise=noise).items():
        save_file({key: value.contiguous() for key, value in arrays.items()},
                  folder / f"{name}.safetensors")
    (folder / "case.json").write_text(json.dumps(case))


def write_cases(folder, seed, count, families):
    """`count` cases; the families take turns. Returns their folders."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    mend()
    torch.manual_seed(seed)
    folders = []
    for i in range(count):
        family = families[(seed + i) % len(families)]
        folders.append(folder / f"{seed + i}-{family}")
        write_case(folders[-1], seed + i, family)
    return folders
