"""redco-lua opens the text models in folders of models that also read images or sound, and computes
what transformers does.

text_parts_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--kind NAME ...] [--keep FOLDER]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import random_models  # noqa: E402
from random_models import models, native_images  # noqa: E402
from random_models.draw import Draw  # noqa: E402

QWEN_IMAGES = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                   num_position_embeddings=4)
LLAMA_IMAGES = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                    vision_output_dim=8, image_size=8, patch_size=4, projector_input_dim=8,
                    projector_output_dim=8)
# The models of images of the whole ones, and the keys of their configurations.
KINDS = {
    "llama4": dict(vision_config=LLAMA_IMAGES),
    "gemma3n": None,  # whose model of images is another package's
    "gemma4": dict(vision_config=None, audio_config=None),
    "qwen3_5": dict(vision_config=QWEN_IMAGES),
    "qwen3_5_moe": dict(vision_config=QWEN_IMAGES),
    "qwen3_vl_text": None,  # without a head
}
CLASSES = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def whole_model(draw, kind, text):
    more = dict(KINDS[kind], tie_word_embeddings=text["tie_word_embeddings"],
                image_token_id=text["vocab_size"])  # which is never generated
    if "vision_config" in more and kind.startswith("qwen"):
        more["vision_config"] = dict(more["vision_config"], out_hidden_size=text["hidden_size"])
    config = transformers.AutoConfig.for_model(kind, text_config=text, **more)
    for part in (config, config.text_config):
        part._attn_implementation = part._experts_implementation = "eager"
    return models.fill(draw, getattr(transformers, CLASSES[kind])(config)).eval()


def save_as_part(model, kind, folder):
    """The text model as the part of a whole that has no other."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    keys = ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings",
            "transformers_version")
    (folder / "config.json").write_text(json.dumps(dict(
        {key: config[key] for key in keys if key in config}, model_type=kind, text_config=config)))
    place = folder / "model.safetensors"
    save_file({name.replace("model.", "model.language_model.", 1): tensor
               for name, tensor in load_file(place).items()}, place)


def write_case(folder, seed, kind):
    draw = Draw(f"{seed} {kind}")
    folder.mkdir(parents=True)
    if kind == "qwen3_vl_text":
        text = native_images.qwen3_vl(draw)["text_config"]
        model = transformers.Qwen3VLTextModel(transformers.Qwen3VLTextConfig(**text))
        models.fill(draw, model).eval().save_pretrained(folder)
    elif KINDS[kind] is None:
        text, model, _ = models.new_model(draw, kind + "_text")
        save_as_part(model, kind, folder)
    else:
        text = random_models.FAMILIES[kind + "_text"][0](draw)
        if text.get("pad_token_id") == -1:
            text["pad_token_id"] = 0
        text["output_router_logits"] = False  # for which the library lacks the mask of the whole
        model = whole_model(draw, kind, dict(text, model_type=kind + "_text", eos_token_id=2))
        model.save_pretrained(folder)
    rows, length = draw.randint(1, 3), draw.randint(3, 8)
    generator = torch.Generator().manual_seed(draw.randrange(2 ** 31))
    ids = torch.randint(3, text["vocab_size"], (rows, length), generator=generator)
    ids[ids == text.get("pad_token_id")] = 3
    inputs, expected = dict(input_ids=ids), {}
    if kind == "llama4":  # the whole fails in version 5.24
        model = model.language_model
    with torch.no_grad():
        out = model(input_ids=ids)
        expected["logits"] = out.logits if "logits" in out else out.last_hidden_state
        if hasattr(model, "lm_head"):
            inputs["attention_mask"] = torch.ones_like(ids)
            for row in inputs["attention_mask"]:
                row[:draw.randint(0, length // 2)] = 0
            expected["tokens"] = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    save_file(inputs, folder / "inputs.safetensors")
    save_file({key: value.contiguous() for key, value in expected.items()},
              folder / "expected.safetensors")


def differences(folder):
    if (folder / "error.txt").exists():
        return [(folder / "error.txt").read_text()]
    expected, found = (load_file(folder / f"{name}.safetensors") for name in ("expected", "result"))
    messages = []
    for name, value in expected.items():
        if value.shape != found[name].shape:
            messages.append(f"{name} is {list(found[name].shape)}, expected {list(value.shape)}")
        elif not torch.allclose(found[name].float(), value.float(), 1e-3, 1e-3):
            messages.append(f"{name} differs: {found[name].flatten()[:12].tolist()}, expected "
                            f"{value.flatten()[:12].tolist()}")
    return messages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2 * len(KINDS))
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--keep", type=pathlib.Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    n_wrong = 0
    with tempfile.TemporaryDirectory() as out:
        folders, kinds = [], given.kind or list(KINDS)
        for seed in range(given.seed, given.seed + given.count):
            kind = kinds[seed % len(kinds)]
            folders.append((given.keep or pathlib.Path(out)) / f"{seed}-{kind}")
            write_case(folders[-1], seed, kind)
        subprocess.run([given.program, given.source / "tests/peers/text_parts.lua", *folders],
                       check=True, env={**os.environ, "REDCO_SOURCE": str(given.source)})
        for folder in folders:
            messages = differences(folder)
            n_wrong += bool(messages)
            for message in messages:
                print(f"--seed {folder.name.partition('-')[0]} --count 1 --kind "
                      f"{folder.name.partition('-')[2]}: {message}")
    print(f"{given.count} models, {n_wrong} of them differ")
    if n_wrong:
        raise SystemExit(1)


main()
