"""Models of random configurations, made by transformers, and what they compute: the references of
random_models.lua, and the comparison with what it wrote.

A case is a folder: the model's (config.json, model.safetensors), `case.json` with the options of
its generations, `inputs.safetensors`. Tensors of expected.safetensors and result.safetensors have
the same names: logits, loss, grad.NAME, after.NAME (three steps of AdamW), tokens.I, scores.I,
changed.I.logits and changed.I.tokens: the same weights with one key of the configuration changed,
which redco-lua may also refuse. noise.safetensors has them as a float64 run gives them.

families.py lists the families; decoders.py, mixtures.py, encoders.py, encoder_decoders.py and
pictures.py draw their configurations.
"""
from .cases import write_cases
from .comparison import wrong
from .families import ATTENTION, FAMILIES
from .reference import logits_of

__all__ = ["ATTENTION", "FAMILIES", "logits_of", "write_cases", "wrong"]
