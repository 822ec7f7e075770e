"""Lists the types of transformers that redco-lua reads: coverage_peer.py REDCO_LUA SOURCE.

A type is a row, the alias of one, a model whose text part is read, or not there yet. Fails if a row
is no type of transformers or has no random models, or if NOT_YET has a row.
"""
import importlib
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import random_models  # noqa: E402
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
KINDS = {
    "decoders": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "encoder-decoders": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "encoders": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "images with texts": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "sound": modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
}
# Rows of makers whose folders bring their own code.
OUTSIDE = {"kimi_k2", "new"}
# Well-known types that are not there, and what they need.
NOT_YET = {
    "clap": "a Swin Transformer over spectra",
    "dbrx": "another form of experts",
    "gemma4_text": "heads of several sizes, keys that are values",
    "jetmoe": "experts of attention",
    "led": "attention in windows, with tokens that all see",
    "longt5": "attention in windows, with tokens that stand for blocks",
    "parakeet_ctc": "a conformer over spectra",
    "phimoe": "the gradient of its router",
    "pixtral": "rotary positions of rows and columns for images of different sizes",
    "rt_detr": "deformable attention, and matching of boxes",
    "sam2": "a model of images with stages, and masks",
    "t5gemma": "an encoder and a decoder built as Gemma",
    "xlm-roberta-xl": "norms before layers",
    "xlnet": "two streams and relative positions",
    "zamba2": "layers that are shared, with adapters for each use",
}


def rows():
    code = ("for _, row in ipairs(require('redco').models.families()) do "
            "print(row.model_type) end")
    return set(subprocess.run([PROGRAM, "-e", code], check=True, capture_output=True,
                              text=True).stdout.split())


def text_part(name):
    """The type of the text model inside, or None."""
    module = configuration_auto.model_type_to_module_name(name)
    try:
        config = getattr(importlib.import_module(f"transformers.models.{module}"),
                         configuration_auto.CONFIG_MAPPING_NAMES[name])()
        return config.text_config.model_type
    except Exception:  # it has no text part, or its defaults do not fit together
        return None


def main():
    known = rows()
    result = {}
    for kind, types in KINDS.items():
        row = sorted(known & set(types))
        part = sorted(name for name in set(types) - known if text_part(name) in known)
        missing = sorted(set(types) - known - set(part))
        result[kind] = {"rows": len(row), "text part": part, "not yet": missing}
        print(f"{kind}: {len(row)} rows, {len(part)} by their text part, {len(missing)} not yet")
        print("  by their text part:", *part)
        print("  not yet:", *(f"{name} ({NOT_YET[name]})" if name in NOT_YET else name
                              for name in missing))
    drawn = {family.partition(".")[0] for family in random_models.FAMILIES}
    wrong = [f"{name} is no type of transformers"
             for name in sorted(known - set(configuration_auto.CONFIG_MAPPING_NAMES) - OUTSIDE)]
    wrong += [f"{name} has no random models" for name in sorted(known - drawn - OUTSIDE)]
    wrong += [f"NOT_YET has {name}, which is a row" for name in sorted(known & set(NOT_YET))]
    print(json.dumps({kind: {key: value if key == "rows" else len(value)
                             for key, value in counts.items()}
                      for kind, counts in result.items()}))
    if wrong:
        raise SystemExit("\n".join(wrong))


main()
