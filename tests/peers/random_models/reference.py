"""What transformers computes of a model."""
import re

import torch
import transformers

from .families import (CLASSIFIERS, ENCODER_DECODERS, ENCODERS, HEADLESS, IMAGE_TEXT, OBJECTS,
                       OF_SAMPLES, OF_TEXTS, PAIRED, is_encoder, takes_positions)
from .masks import masks_of
from .objects import as_lists
from .sound_with_text import of_library

STEPS = 3
ADAMW = dict(lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)


def is_shared(config, name):
    """Whether keys and values of Gemma 3n are those of another layer, and the weight is not used."""
    n_shared = getattr(config, "num_kv_shared_layers", 0)
    match = re.search(r"layers\.(\d+)\.self_attn\.[kv]_", name)
    return n_shared and match and int(match[1]) >= config.num_hidden_layers - n_shared


def used(model):
    """The parameters, without those that the library makes with every ViT and that captions don't
    use, without the token of masked images, and without ESM's head of contacts."""
    return [(name, parameter) for name, parameter in model.named_parameters()
            if ("pooler" not in name or model.config.model_type in ENCODERS
                or model.config.model_type.startswith("clap")
                or name.startswith("pooler") or "pooler.layernorm" in name)
            and not name.endswith("mask_token") and not is_shared(model.config, name)
            and "contact_head" not in name
            and parameter.requires_grad]


# Models of texts or of images alone, and the part of the pair that they are.
HALVES = {f"{kind}_{half}_model": f"{half}_model." for kind, half in (
    ("clip", "text"), ("clip", "vision"), ("siglip", "text"), ("siglip", "vision"),
    ("siglip2", "vision"))}


def names_in_files(names, model_type):
    """Those of models that read images, of version 4."""
    if model_type in ("qwen2_vl", "qwen2_5_vl"):
        return [name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
                for name in names]
    if not any(name.startswith(("model.vision_tower.", "model.audio_tower.")) for name in names):
        return list(names)
    parts = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
             "model.": ""}
    return [next(new + name.removeprefix(old) for old, new in parts.items()
                 if name.startswith(old)) for name in names]


def as_in_files(model, tensors):
    """The parameters by the names that they have in files: version 5 stacks those of experts, and
    has two biases of a head that is not tied, of which it uses the decoder's. EXAONE's are LLaMA's,
    as which redco-lua saves it; ESM's norms have their old names in files."""
    model_type = model.config.model_type
    if not transformers.__version__.startswith("5.") or model_type in ("exaone", "esm"):
        return dict(zip(names_in_files(tensors, model_type), tensors.values()))
    tensors = dict(tensors)
    for name, other in model.all_tied_weights_keys.items():  # which may be the first of the two
        if name in tensors and other not in tensors:
            tensors[other] = tensors.pop(name)
    for name in [name for name in tensors if name.endswith(".decoder.bias")]:
        if name.replace(".decoder.", ".") in tensors:
            tensors[name.replace(".decoder.", ".")] = tensors.pop(name)
    from transformers.core_model_loading import revert_weight_conversion
    found = revert_weight_conversion(model, tensors)
    vision = getattr(model.config, "vision_config", None)
    if getattr(vision, "model_type", None) in ("internvl_vision", "pixtral"):
        return found
    # A new model has forgotten that the older names have one more part.
    part = HALVES.get(model.config.model_type)
    if part and not any(name.startswith(part) for name in found):
        return {part + name: tensor for name, tensor in found.items()}
    return {re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", name): tensor
            for name, tensor in found.items()}


def with_positions(inputs, model, family):
    """The inputs with the positions that redco-lua counts in a mask; OPT does it by itself."""
    if family in OBJECTS:
        return as_lists(inputs)
    if "multimask_output" in inputs:
        return dict(inputs, multimask_output=bool(inputs["multimask_output"]))
    mask = inputs.get("attention_mask")
    if "image_grid_thw" in inputs:  # which counts otherwise
        return of_library(inputs, model)
    if "image_position_ids" in inputs or "feature_attention_mask" in inputs:
        inputs = of_library(inputs, model)
    if mask is None or is_encoder(family) or family in PAIRED or family in OF_TEXTS or \
            family.partition(".")[0] in {"opt", "bloom", *ENCODER_DECODERS} or \
            not takes_positions(family):
        return dict(inputs)
    first = 1 if family == "paligemma" else 0
    return dict(inputs, position_ids=(mask.cumsum(1) - 1).clamp(min=0) + first)


def in_double(inputs):
    return {key: value.double() if value.is_floating_point() else value
            for key, value in inputs.items()}


def features_of(out):
    """What models of texts, images and sound return in redco-lua."""
    if out.get("pred_masks") is not None or out.get("fpn_hidden_states") is not None:
        return masks_of(out)
    for key in ("logits_per_image", "logits_per_audio", "text_embeds", "image_embeds",
                "audio_embeds", "pooler_output", "last_hidden_state"):
        if out.get(key) is not None:
            # That of ResNet has the rows and columns of its image, of which there is one.
            return out[key].flatten(1) if out[key].dim() == 4 and key == "pooler_output" else out[key]
    return None


def logits_of(out):
    """Those of the begin and the end of an answer as redco-lua has them."""
    if features_of(out) is not None and "logits" not in out:
        return features_of(out).detach()
    if "pred_boxes" in out:
        return torch.cat([out.logits, out.pred_boxes], -1).detach()
    if "logits" in out:
        logits = out.logits.detach()
        # DeBERTa-v2 returns those of a regression without their dimension.
        return logits.unsqueeze(-1) if logits.dim() == 1 else logits
    return torch.stack([out.start_logits, out.end_logits], -1).detach()


# Not all inputs use all of their weights.
PARTLY_USED = {"gemma3n_text", "led", "rt_detr", "rt_detr_v2", "sam2", "sam2_video",
               "sam2_vision_model", "xlnet"}


def reference(model, inputs, family):
    """Everything that is compared, and the generations."""
    known, found, grads = with_positions(inputs, model, family), {}, {}
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(STEPS):
        out = model(**known, **(dict(return_loss=True) if family in PAIRED else {}))
        loss = out.loss if out.get("loss") is not None else features_of(out).pow(2).mean()
        if family == "vision-encoder-decoder":  # transformers 4.57 shifts these labels twice
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1),
                                                     inputs["labels"].flatten())
        model.zero_grad()
        loss.backward()
        for name, parameter in used(model):
            if "experts" in name and parameter.grad is None:  # chosen for no token
                parameter.grad = torch.zeros_like(parameter)
        if step == 0:
            found["logits"], found["loss"] = logits_of(out).clone(), loss.detach().clone()
            for name, parameter in used(model):
                grad = parameter.grad
                partly_used = (CLASSIFIERS, HEADLESS, OF_SAMPLES, IMAGE_TEXT)
                if grad is None and (any(family in kind for kind in partly_used)
                                     or family.partition(".")[0] in PARTLY_USED):
                    continue
                grads[name] = torch.zeros_like(parameter) if grad is None else grad.clone()
        optimizer.step()
    after = {name: parameter.detach().clone() for name, parameter in used(model)}
    for kind, tensors in dict(grad=grads, after=after).items():
        found.update({f"{kind}.{name}": tensor
                      for name, tensor in as_in_files(model, tensors).items()})
    return found
