"""transformers and peft open what redco-lua saves, and compute the same.

saved_models_peer.py REDCO_LUA SOURCE
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import random_models  # noqa: E402

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
cases = source / "tests/cases"
# What says where a configuration comes from, not what the model is.
incidental = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
# Since version 5 the router takes no expert of a group that was not chosen. Before, as in redco-lua, it takes
# one if all others of the chosen groups have negative scores.
routes_otherwise = {"deepseek_v3"} if transformers.__version__.startswith("5.") else set()
# The library makes it with every ViT; captions do not use it, and no folder of them has it.
unused = {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}
# Buffers whose values the constructor gives.
constant = ("num_batches_tracked", "position_ids", "relative_position_index", "token_type_ids")


def settings(config):
    """A configuration without what is incidental; those of its parts too."""
    return {key: settings(value) if isinstance(value, dict) else value
            for key, value in config.items() if key not in incidental}


def same_logits(name, model, case, ours):
    arrays = load_file(case / "expected.safetensors")
    inputs = {key.removeprefix("fwd."): value for key, value in arrays.items()
              if key in ("fwd.input_ids", "fwd.attention_mask", "fwd.pixel_values",
                         "fwd.input_features", "fwd.decoder_input_ids", "fwd.token_type_ids")}
    if not inputs:
        inputs = {key.removeprefix("batch0."): value for key, value in arrays.items()
                  if key.startswith("batch0.") and key != "batch0.labels"}
    with torch.no_grad():
        theirs = random_models.logits_of(model.eval()(**inputs))
    assert theirs.shape == ours.shape, (name, theirs.shape, ours.shape)
    differs = (theirs - ours).abs()
    if "decoder_input_ids" not in inputs and differs.dim() == 3:  # what stands on padding is arbitrary
        mask = inputs["attention_mask"]
        if mask.shape[1] != differs.shape[1]:  # several frames of a sound have one position
            mask = model._get_output_attention_mask(mask, target_length=differs.shape[1])
        differs = differs[mask.bool()]
    most = differs.max().item()
    print(f"{name}: logits differ by up to {most:.1e}, the largest is {ours.abs().max():.1f}")
    assert most <= 2e-4 or case.name in routes_otherwise, name


def check_model(name, folder, case, ours):
    config = transformers.AutoConfig.from_pretrained(folder)
    expected = transformers.AutoConfig.from_pretrained(case)
    assert settings(config.to_dict()) == settings(expected.to_dict()), (name, config, expected)
    kind = getattr(transformers, expected.architectures[0])
    stored = torch.bfloat16 if name.endswith("-bfloat16") else torch.float32
    assert config.dtype == stored, (name, config.dtype)
    for file in folder.glob("*.safetensors"):
        assert all(tensor.dtype == stored for tensor in load_file(file).values()), file
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True,
        attn_implementation=random_models.ATTENTION.get(config.model_type))
    missing = {key for key in info.pop("missing_keys") if key.split(".")[-1] not in constant}
    assert missing <= unused and not any(info.values()), (name, info)
    same_logits(name, model, case, ours)


def check_adapter(name, folder, case, ours):
    model = transformers.AutoModelForCausalLM.from_pretrained(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # peft warns of missing and of surplus matrices
        warnings.simplefilter("ignore", FutureWarning)  # of names that it calls
        model = PeftModel.from_pretrained(model, folder)
    same_logits(name, model, case, ours)


def check_saved(out):
    tests = source / "tests"
    subprocess.run([program, tests / "peers/save_models.lua", out], check=True, env={
        **os.environ, "REDCO_SOURCE": str(source),
        "LUA_PATH": f"{tests}/lua/?.lua;{tests}/cluster/?.lua;;"})
    folders = sorted(path for path in pathlib.Path(out).iterdir() if path.is_dir())
    for folder in folders:
        ours = load_file(f"{folder}.logits.safetensors")["logits"]
        case = cases / folder.name.split("-")[0]
        if (folder / "adapter_config.json").exists():
            check_adapter(folder.name, folder, cases / case.name.removeprefix("lora_"), ours)
        else:
            check_model(folder.name, folder, case, ours)
    assert len(list(pathlib.Path(out, "llama").glob("model-*.safetensors"))) > 3
    print(f"{len(folders)} folders")


with tempfile.TemporaryDirectory() as out:
    check_saved(out)
