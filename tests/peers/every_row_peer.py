"""Every row of the table of families: its new models, adapters and folders are those of the
libraries.

every_row_peer.py REDCO_LUA SOURCE [--family NAME ...] [--seed N] [--keep FOLDER]
    --family: only these; by default one of each type, and all with REDCO_TEST_FULL

For each row:
- parameters of new models have transformers' names, shapes, means, deviations and rows of zeros,
- adapters of all linear layers have peft's names, and give peft's outputs,
- a folder is saved with the values of its config.json, whatever their kinds, and
- a head that the file has beside the tie flag is used as this version of transformers does.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import warnings

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from transformers.pytorch_utils import Conv1D

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
from random_models import families, inputs, mends, models, reference  # noqa: E402
from random_models.draw import Draw  # noqa: E402

IS_NEW = transformers.__version__.startswith("5.")
N_NEW = 4  # new models of a row
SIGMAS = 6  # by which means and deviations may be apart
# Keys that say nothing, as they are in folders of other programs.
HABITS = dict(static_position_embeddings=True, own_position_embeddings=None, own=dict(
    none=[], whole=2.0, count=3, mixed=[1.0, 2, 0.5], inner=dict(none=[], empty={}, nothing=None)))
# What is written anew; the settings of positions, which redco-lua writes as version 4 does; and
# what is written for one of the versions, or if it is not the default.
INCIDENTAL = {"rope_parameters", "rope_scaling", "rope_theta", "layer_types", "architectures",
              "dtype", "torch_dtype", "transformers_version", "auto_map", "_name_or_path", "model_type",
              "use_bidirectional_attention", "num_local_experts", "dilation"}
# The names of parameters that are computed, not used, or those of others.
NOT_IN_FILES = ["embed_positions.weight", "shared_embedding.positional_embedding",
                "encoder.pooler.dense.weight", "encoder.pooler.dense.bias",
                "contact_head.regression.weight", "contact_head.regression.bias"]
# Nemotron's norms add one to their weights, which the library starts at one all the same. It draws
# norms of images in RT-DETR as if they were layers, and in version 4 those of Falcon-H1 and its D;
# there it does not initialise SAM 2's encoder alone, nor MegatronBERT's row of padding. Version 5
# initialises others otherwise than version 4, as which redco-lua does.
OTHERWISE = {"nemotron", "rt_detr", "rt_detr_v2"} | set(
    ("deberta-v2", "wavlm") if IS_NEW
    else ("falcon_h1", "sam2_hiera_det_model", "megatron-bert"))
# It draws these convolutions in copies, so that they stay as PyTorch made them. Version 5 truncates
# nothing, as the patches and heads of SigLIP, and draws what is between an encoder and a decoder.
LEFT = ["pos_conv_embed"] + IS_NEW * [
    "vision_model.embeddings.patch_embedding.weight", "vision_model.head.attention.out_proj.weight",
    "text_model.head.weight", "enc_to_dec_proj"]

# Ends of the names of layers whose weights the library or PyTorch reads itself, so that peft
# refuses adapters or they count for nothing; in version 5 also of parts of one layer in files.
UNFIT = dict.fromkeys(["mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"], [".out_proj"])
UNFIT["wavlm"] = ["q_proj", "k_proj", "v_proj", "out_proj"]
UNFIT["ernie4_5_moe"] = [".gate"]  # a router, which redco-lua refuses by name
UNFIT["esm"] = ["contact_head.regression"]  # which redco-lua lacks
UNFIT["vision-encoder-decoder"] = [".pooler.dense"]  # which the library makes and captions lack
# Version 4 names shared weights by patterns, which peft takes for names; in version 5 it adapts each
# place of a shared layer for itself.
UNADAPTED = {"zamba2"}
if IS_NEW:
    UNADAPTED |= {"rt_detr_v2"}  # peft asks it for its embeddings
    for name in ("mamba", "falcon_mamba", "jamba"):
        UNFIT[name] = [*UNFIT.get(name, []), ".dt_proj"]
    UNFIT.update(dict.fromkeys(["dinov2", "dinov2_with_registers"], [".gate_proj", ".up_proj"]))
    UNFIT.update(dict.fromkeys(["gte", "nomic_bert"], ["_proj"]))

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--family", action="append", choices=families.FAMILIES)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--keep", type=pathlib.Path)
given = parser.parse_args()


def kinds_of(tensors):
    """The values of tensors whose names have other numbers, in one vector each."""
    kinds = {}
    for name, tensor in tensors.items():
        kinds.setdefault(re.sub(r"\d+", "#", name), []).append(tensor.double().flatten())
    return {kind: torch.cat(values) for kind, values in kinds.items()}


def new_tensors(made, family, seed):
    """What the library draws for a new model, by the names in files."""
    torch.manual_seed(seed)
    model = models.initialised(copy.deepcopy(made), family)
    stored = model.state_dict()
    tensors = {**dict(model.named_parameters()),
               **{name: tensor for name, tensor in model.named_buffers() if name in stored}}
    return {name: tensor.detach().clone() for name, tensor in
            reference.as_in_files(model, tensors).items()
            if tensor.is_floating_point() and not reference.is_shared(model.config, name)}


def save_adapter(model, folder):
    """The model with adapters of all linear layers but the head, which peft has saved; None if it
    has no such layers, as features of a ResNet."""
    torch.manual_seed(3)
    has_head = hasattr(model, "get_output_embeddings")
    head = model.get_output_embeddings() if has_head else None
    unfit = tuple(UNFIT.get(model.config.model_type, []))
    names = [name for name, layer in model.named_modules()
             if isinstance(layer, (torch.nn.Linear, Conv1D)) and layer is not head
             and not isinstance(layer, NonDynamicallyQuantizableLinear)  # PyTorch reads its weight
             and not name.endswith((*unfit, "router"))]
    if not names:
        return None
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=names, init_lora_weights=False))
    # Models of sound fail when peft asks them for their embeddings.
    adapted.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return adapted.eval()


def save_tied(model, folder, family):
    """The model from a folder that ties its head and has one of its own, or None: if there is none,
    and if the library ties it already or refuses to."""
    has_head = hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None
    if not has_head or model.config.get_text_config().tie_word_embeddings or (
            model.get_output_embeddings().weight is model.get_input_embeddings().weight):
        return None
    place = folder / "tied"
    place.mkdir()
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part["tie_word_embeddings"] = True
    (place / "config.json").write_text(json.dumps(config))
    for file in folder.glob("model*"):
        (place / file.name).symlink_to(file)
    try:
        return type(model).from_pretrained(place, dtype=torch.float32,
                                           **families.implementations_of(family)).eval()
    except Exception:
        shutil.rmtree(place)
        return None


def write_row(folder, family, seed):
    draw = Draw(f"{seed} row {family}")
    config, made, vocab_size = models.new_config(draw, family)
    arrays = inputs.new_inputs(draw, config, vocab_size, family)
    pristine = copy.deepcopy(made)
    model = models.fill(draw, models.initialised(made, family)).eval()
    if config.get("pad_token_id") == -1 and hasattr(model, "generation_config"):
        model.generation_config.pad_token_id = None  # it counts from the end
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "habits").mkdir()
    (folder / "habits/config.json").write_text(json.dumps({**settings, **HABITS}))
    for file in folder.glob("model*"):
        (folder / "habits" / file.name).symlink_to(file)
    if family in families.HEADLESS:
        arrays.pop("attention_mask", None)
        models.with_pooling(model, None)
    save_file({key: value.contiguous() for key, value in arrays.items()},
              folder / "inputs.safetensors")
    known = reference.with_positions(arrays, model, family)
    expected = {}
    for i in range(N_NEW):
        for name, tensor in new_tensors(pristine, family, i).items():
            expected[f"new.{i}.{name}"] = tensor.contiguous()
    with torch.no_grad():
        tied = save_tied(model, folder, family)
        if tied:
            expected["tied"] = reference.logits_of(tied(**known)).contiguous()
        expected["base"] = reference.logits_of(model(**known)).contiguous()
        adapted = None if family.partition(".")[0] in UNADAPTED else save_adapter(model, folder)
        if adapted:
            expected["adapted"] = reference.logits_of(adapted(**known)).contiguous()
    save_file(expected, folder / "expected.safetensors")


def wrong_values(ours, theirs):
    """What differs in the distributions of new models."""
    ours, theirs = kinds_of(ours), kinds_of(theirs)
    for kind, expected in theirs.items():
        found = ours[kind]
        if any(part in kind for part in LEFT):
            continue
        if found.numel() != expected.numel():
            yield f"{kind} has {found.numel()} values, expected {expected.numel()}"
            continue
        n, pair = found.numel(), (found, expected)
        stds = [0.0 if n < 2 else values.std().item() for values in pair]
        means = [values.mean().item() for values in pair]
        apart = abs(means[0] - means[1]), abs(stds[0] - stds[1])
        size = math.hypot(*stds)
        bounds = SIGMAS * size / math.sqrt(n), SIGMAS * size / math.sqrt(2 * n)
        is_constant = [std == 0 for std in stds]
        if any(a > b + 1e-5 * (1 + abs(means[1])) for a, b in zip(apart, bounds)) or (
                n > 1 and is_constant[0] != is_constant[1] and max(stds) > 1e-5):
            yield (f"new {kind}: mean {means[0]:.4g} and deviation {stds[0]:.4g}, expected "
                   f"{means[1]:.4g} and {stds[1]:.4g} ({n} values)")


def wrong_new(found, expected, is_compared):
    ours, theirs = ({name[4:]: tensor for name, tensor in tensors.items()
                     if name.startswith("new.")} for tensors in (found, expected))
    theirs = {name: tensor for name, tensor in theirs.items()
              if name in ours or not name.endswith(tuple(NOT_IN_FILES))}
    names = [{name[2:] for name in tensors} for tensors in (ours, theirs)]
    for name in sorted(names[0] ^ names[1]):
        yield f"new: only {'redco-lua' if name in names[0] else 'transformers'} has {name}"
    both = names[0] & names[1]
    for name in sorted(both):
        mine, other = ours["0." + name], theirs["0." + name]
        if mine.shape != other.shape and mine.shape != other.mT.shape:  # Qwen3-VL's, in version 5
            yield f"new {name}: {list(mine.shape)}, expected {list(other.shape)}"
        elif mine.dim() > 1 and is_compared:
            zeros = [t.flatten(1).eq(0).all(1).nonzero().flatten().tolist() for t in (mine, other)]
            if zeros[0] != zeros[1]:
                yield f"new {name}: its rows of zeros are {zeros[0]}, expected {zeros[1]}"
    if is_compared:
        yield from wrong_values(*({name: tensor for name, tensor in tensors.items()
                               if name[2:] in both} for tensors in (ours, theirs)))


def wrong_adapters(folder):
    """What differs in the adapters that are saved again, and in own ones of the same layers."""
    if not (folder / "adapter").exists():
        return
    config = types.SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    theirs, again, own = (load_file(folder / kind / "adapter_model.safetensors")
                          for kind in ("adapter", "again", "own"))
    for name in sorted({*again} ^ {*own}):
        yield f"adapters: only {'own ones have' if name in own else 'those of peft have'} {name}"
    # There, and in models that read sound, layers have other names, and experts one adapter for all.
    if IS_NEW or hasattr(config, "audio_config"):
        theirs, again = ({tensor.float().numpy().tobytes() for name, tensor in tensors.items()
                          if ".experts." not in name} for tensors in (theirs, again))
        if theirs != again:
            yield f"adapters: {len(again ^ theirs)} tensors of {len(theirs)} are others"
        return
    theirs = {name: tensor for name, tensor in theirs.items()
              if not reference.is_shared(config, name)}
    for name in sorted({*again} | {*theirs}):
        if name in again and again[name].shape != own[name].shape:
            yield f"adapters: own {name} is {list(own[name].shape)}, not {list(again[name].shape)}"
        if name not in again or name not in theirs:
            yield f"adapters: only {'redco-lua' if name in again else 'peft'} has {name}"
        elif not torch.equal(again[name].float(), theirs[name].float()):
            yield f"adapters: {name} has other values"


def wrong_outputs(found, expected, mask):
    for name in sorted({"base", "adapted", "tied"} & {*expected}):
        ours, theirs = found[name], expected[name]
        if ours.shape != theirs.shape:
            yield f"{name}: [{list(ours.shape)}], expected {list(theirs.shape)}"
            continue
        if mask is not None and ours.dim() > 2 and mask.shape == ours.shape[:2]:
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
        apart = (ours - theirs).masked_fill(ours == theirs, 0).abs()
        finite = theirs[theirs.isfinite()].abs()
        size = finite.max().item() if finite.numel() else 1
        if not apart.numel() == 0 and not apart.max().item() <= 1e-3 * max(size, 1):
            yield f"{name}: outputs differ by {apart.max().item():.2g} of {size:.2g}"


def same_json(ours, theirs):
    """Whether values are equal and of one kind; a whole number may have become a real one."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_json, ours, theirs))
    if isinstance(ours, float) and theirs == {"__float__": "Infinity"}:
        return math.isinf(ours)
    return ours == theirs and (type(ours) is type(theirs) or type(ours) is float)


def wrong_config(saved, written, where=""):
    """What a folder that is saved again says otherwise: real numbers stay real."""
    for key, value in written.items():
        if key in INCIDENTAL or key not in saved and value is None:
            continue
        if key == "tie_word_embeddings" and value != written.get("text_config", written).get(key):
            continue  # the whole's and the text model's become one
        if key not in saved:
            if key != "tie_word_embeddings" or value is not False:
                yield f"config.json: {where}{key} is lost"
        elif isinstance(value, dict) and isinstance(saved[key], dict):
            yield from wrong_config(saved[key], value, f"{where}{key}.")
        elif not same_json(saved[key], value):
            yield (f"config.json: {where}{key} is {json.dumps(saved[key])}, expected "
                   f"{json.dumps(value)}")


def wrong(folder, family):
    if (folder / "error.txt").exists():
        yield (folder / "error.txt").read_text()
        return
    found, expected = (load_file(folder / f"{name}.safetensors") for name in ("found", "expected"))
    model_type = family.partition(".")[0]
    yield from wrong_new(found, expected, model_type not in OTHERWISE)
    yield from wrong_adapters(folder)
    arrays = load_file(folder / "inputs.safetensors")
    mask = arrays.get("decoder_attention_mask", arrays.get("attention_mask"))
    yield from wrong_outputs(found, expected, mask)
    yield from wrong_config(*(json.loads((folder / place / "config.json").read_text())
                              for place in ("saved", "habits")))


def main(out):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    mends.mend()
    chosen, seen = given.family or list(families.FAMILIES), set()
    if not given.family and "REDCO_TEST_FULL" not in os.environ:
        chosen = [name for name in chosen if not (name.partition(".")[0] in seen
                                                  or seen.add(name.partition(".")[0]))]
    folders = {name: out / name for name in chosen}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        write_row(folder, name, given.seed)
    tests = given.source / "tests"
    subprocess.run([given.program, tests / "peers/every_row.lua", *folders.values()], check=True,
                   env={**os.environ, "REDCO_SOURCE": str(given.source),
                        "LUA_PATH": f"{tests}/lua/?.lua;{tests}/cluster/?.lua;;"})
    n_wrong = 0
    for name, folder in folders.items():
        messages = list(wrong(folder, name))
        if messages:
            n_wrong += 1
            print(f"--family {name} --seed {given.seed}")
            print("\n".join("  " + message for message in messages[:8]))
    print(f"{len(folders)} rows, {n_wrong} of them differ")
    return n_wrong


with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if main(given.keep or pathlib.Path(scratch, "rows")):
        raise SystemExit(1)
