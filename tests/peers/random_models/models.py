"""Models with random weights."""
import functools
import json

import torch
import transformers
from huggingface_hub import errors
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from .families import FAMILIES, IMAGE_TEXT, implementations_of


def labelled(draw, config, task):
    """A configuration for a task."""
    if "rope_local_base_freq" in config and task:
        # Version 4 halves the window again when it opens what it saved.
        config["use_bidirectional_attention"] = (transformers.__version__.startswith("5.")
                                                 and draw.maybe())
    elif ("num_key_value_heads" in config and task == "features"
          and transformers.__version__.startswith("5.") and draw.maybe(0.3)):
        config["is_causal"] = False
    if config.get("dropout_rate") is not None and "encoder" in config and task:  # of T5Gemma
        config["is_encoder_decoder"] = draw.maybe()
        first = config["decoder"]  # a token, not padding, which would attend to none
        if first["bos_token_id"] == first["pad_token_id"]:
            first["bos_token_id"] = (first["pad_token_id"] + 1) % first["vocab_size"]
    if task == "sequence_classification":
        config["num_labels"] = draw.choice([1, 2, 4])
        config["problem_type"] = draw.choice([None, None, "multi_label_classification",
                                              "regression"])
        if config["num_labels"] == 1:
            config["problem_type"] = None
        if config.get("pad_token_id") in (None, -1):
            config["pad_token_id"] = 0
    elif task == "masked_lm":
        config["tie_word_embeddings"] = draw.maybe(0.6)
        if "pooler_hidden_act" in config and not config["tie_word_embeddings"] and draw.maybe():
            config["legacy"] = False  # with tied embeddings transformers fails
            config.pop("embedding_size", None)
    elif task == "token_classification":
        config.update(num_labels=draw.choice([2, 4]), classifier_dropout=0.0)


def pooled(how, model, given, inputs, out):
    """What a hook puts in place of the output: `how` the hidden states become one for each text,
    as sentence-transformers has it."""
    states, mask = out.last_hidden_state, inputs.get("attention_mask")
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.int64)
    rows = torch.arange(len(states))
    if how == "mean":
        states = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    elif how == "cls":
        states = states[rows, mask.argmax(1)]
    elif how == "last":
        states = states[rows, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    elif how == "pooler":
        states = out.pooler_output
    return dict(pooler_output=states)


def with_pooling(model, how):
    """The model, whose calls return one vector for each text, or the states for None."""
    model.register_forward_hook(functools.partial(pooled, how), with_kwargs=True)
    return model


def fill(draw, model):
    """The model with random weights: norms near 1, others near 0."""
    generator, stored = torch.Generator().manual_seed(draw.randrange(2 ** 31)), model.state_dict()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_computed = name not in stored and not tensor.requires_grad
        if not tensor.is_floating_point() or "inv_freq" in name or is_computed:
            continue
        if not tensor.requires_grad and "embed_positions" in name:  # sinusoids
            continue
        if "mup_vector" in name:  # factors of the configuration
            continue
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("running_var"):
            values = values.abs() + 1
        if name.endswith("convolution.weight"):  # of ResNets, which would multiply the images
            values /= 0.4 * tensor[0].numel() ** 0.5
        is_norm = "norm" in name or "ln_" in name
        tensor.data.copy_(values * 0.2 + 1 if is_norm and name.endswith("weight") else values * 0.4)
    if hasattr(model, "shared_image_embedding"):  # of which version 5 makes two
        own = model.shared_image_embedding.positional_embedding
        model.prompt_encoder.shared_embedding.positional_embedding.data.copy_(own)
    return model


def new_model(draw, family):
    """A configuration, its model with random weights, and the number of tokens."""
    config, made, vocab_size = new_config(draw, family)
    return config, fill(draw, initialised(made, family)).eval(), vocab_size


def initialised(made, family):
    """A model as the library initialises it."""
    return getattr(transformers, FAMILIES[family][1])(made)


def new_config(draw, family):
    """The first configuration that the library takes: version 5 refuses some sizes."""
    while True:
        try:
            return config_of(draw, family)
        except getattr(errors, "StrictDataclassError", ()):
            continue


def config_of(draw, family):
    config = FAMILIES[family][0](draw)
    labelled(draw, config, family.partition(".")[2])
    if family.startswith("nemotron."):  # which obeys it only beside padding
        config.pop("is_causal", None)
    text = config.get("decoder", config["text_config"] if family in IMAGE_TEXT else {})
    vocab_size = config.get("vocab_size") or text.get("vocab_size")
    if vocab_size and "eos_token_id" not in config:
        config["eos_token_id"] = draw.token(vocab_size)
        config["bos_token_id"] = draw.token(vocab_size)
        if family == "whisper":  # the library fails on padding that is no end
            config["pad_token_id"] = config["eos_token_id"]
        text.update(eos_token_id=config["eos_token_id"], bos_token_id=config["bos_token_id"])
        if family in IMAGE_TEXT and "pad_token_id" in text:
            config["pad_token_id"] = text["pad_token_id"]
    given = json.loads(json.dumps(config))  # what makes them writes into nested tables
    if family == "vision-encoder-decoder":
        parts = {kind: AutoConfig.for_model(**given.pop(kind)) for kind in ("encoder", "decoder")}
        made = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            parts["encoder"], parts["decoder"], **given)
    elif family.partition(".")[0] in CONFIG_MAPPING_NAMES:
        made = AutoConfig.for_model(family.partition(".")[0], **given)
    else:  # which AutoConfig does not know
        made = getattr(transformers, FAMILIES[family][1]).config_class(**given)
    for key, value in implementations_of(family).items():
        setattr(made, "_" + key, value)
    return config, made, vocab_size
