"""redco-lua reads quantized folders of Hugging Face with the numbers that their makers find, and
transformers opens those that redco-lua writes.

quantized_folders_peer.py REDCO_LUA: bitsandbytes and compressed-tensors write and read folders
themselves. Their other makers need a GPU, so weights of GPTQ, AWQ and float8 are packed here as the
code of these packages defines, and those of gpt-oss are random bytes, which transformers decodes.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import (BitsAndBytesConfig, GptOssConfig, GptOssForCausalLM, LlamaConfig,
                          LlamaForCausalLM)

here = pathlib.Path(__file__).parent
ids = torch.arange(2, 26).view(2, 12)
torch.manual_seed(20261128)
generator = torch.Generator().manual_seed(20261128)


def logits_of(folder):
    subprocess.run([sys.argv[1], here / "open_quantized.lua", folder], check=True)
    return load_file(f"{folder}/logits.safetensors")


def check(folder, expected, types):
    out = logits_of(folder)
    for way in "packed", "floats":
        difference = (out[way] - expected).abs().max().item()
        assert difference <= 2e-6 * expected.abs().max().item(), (folder, way, difference)
    found = json.loads((pathlib.Path(folder) / "types.json").read_text())
    assert found == types, found
    print(f"{pathlib.Path(folder).name}: the logits agree")


def numbers(*shape, most=15):
    return torch.randint(0, most + 1, shape, generator=generator)


def nibbles_in_int32(q, order=range(8)):
    """Packs the last dimension: the first of eight in the lowest bits."""
    groups = q.view(*q.shape[:-1], -1, 8)
    packed = torch.zeros(groups.shape[:-1], dtype=torch.int64)
    for i, place in enumerate(order):
        packed |= groups[..., place] << 4 * i
    return torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32)


# Each returns the tensors of a weight [out, in] by ending, and its numbers.

def gptq(rows, columns, group=64):
    q, zeros = numbers(rows, columns), numbers(rows, columns // group)
    scales = torch.rand(rows, columns // group, generator=generator).half() / 50
    repeated = [t.repeat_interleave(group, 1) for t in (zeros, scales.float())]
    return {"qweight": nibbles_in_int32(q).T, "qzeros": nibbles_in_int32((zeros.T - 1) & 15),
            "scales": scales.T, "g_idx": (torch.arange(columns) // group).int()}, \
        (q - torch.where(repeated[0] == 0, 16, repeated[0])) * repeated[1]


def awq(rows, columns, group=128):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    group = min(group, columns) if columns % group == 0 else 64
    q, zeros = numbers(columns, rows), numbers(columns // group, rows)
    scales = torch.rand(columns // group, rows, generator=generator).half() / 50
    repeated = [t.repeat_interleave(group, 0) for t in (zeros, scales.float())]
    return {"qweight": nibbles_in_int32(q, order), "qzeros": nibbles_in_int32(zeros, order),
            "scales": scales}, ((q - repeated[0]) * repeated[1]).T


def fp8(rows, columns, tile=128):
    weight = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // tile), -(-columns // tile), generator=generator) / 50
    whole = scales.repeat_interleave(tile, 0)[:rows].repeat_interleave(tile, 1)[:, :columns]
    return {"weight": weight, "weight_scale_inv": scales}, weight.float() * whole


def fp8_rows(rows, columns):
    weight = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(rows, 1, generator=generator).bfloat16() / 50
    return {"weight": weight, "weight_scale": scales}, weight.float() * scales.float()


def int8_rows(rows, columns):
    weight = (numbers(rows, columns, most=254) - 127).to(torch.int8)
    scales = torch.rand(rows, 1, generator=generator).bfloat16() / 5000
    return {"weight": weight, "weight_scale": scales}, weight.float() * scales.float()


def packed(rows, columns, group=64, is_symmetric=True):
    q = (numbers(rows, columns) - 8).to(torch.int8)
    scales = torch.rand(rows, columns // group, generator=generator).bfloat16() / 50
    tensors = {"weight_packed": pack_to_int32(q, 4), "weight_scale": scales,
               "weight_shape": torch.tensor([rows, columns])}
    zeros = torch.zeros(rows, columns // group, dtype=torch.int8)
    if not is_symmetric:
        zeros = (numbers(rows, columns // group) - 8).to(torch.int8)
        tensors["weight_zero_point"] = pack_to_int32(zeros, 4, packed_dim=0)
    return tensors, (q - zeros.repeat_interleave(group, 1)) * scales.float().repeat_interleave(
        group, 1)


def asymmetric(rows, columns):
    return packed(rows, columns, is_symmetric=False)


def of_compressed(form, bits, kind, strategy):
    weights = dict(num_bits=bits, type=kind, symmetric=True, strategy=strategy)
    return dict(quant_method="compressed-tensors", format=form,
                config_groups={"group_0": dict(weights=weights, targets=["Linear"])})


FORMS = {
    "gptq": (gptq, dict(quant_method="gptq", bits=4, group_size=64, desc_act=False), "int4"),
    "awq": (awq, dict(quant_method="awq", bits=4, group_size=128, version="gemm"), "int4"),
    "fp8": (fp8, dict(quant_method="fp8", weight_block_size=[128, 128]), "fp8"),
    "compressed_fp8": (fp8_rows, of_compressed("float-quantized", 8, "float", "channel"), "fp8"),
    "compressed_int8": (int8_rows, of_compressed("int-quantized", 8, "int", "channel"), "int8"),
    "compressed_int4": (packed, of_compressed("pack-quantized", 4, "int", "group"), "int4"),
    "compressed_zeros": (asymmetric, of_compressed("pack-quantized", 4, "int", "group"), "int4"),
}



def check_mxfp4(folder):
    """Experts have blocks [experts, out, groups, 16] and scales."""
    config = GptOssConfig(
        vocab_size=96, hidden_size=64, intermediate_size=32, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2)
    model = GptOssForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    stored = {}
    for key, weight in model.state_dict().items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[key] = weight
            continue
        n, n_in, n_out = weight.shape
        stored[key + "_blocks"] = numbers(n, n_out, n_in // 32, 16, most=255).to(torch.uint8)
        stored[key + "_scales"] = (numbers(n, n_out, n_in // 32, most=9) + 118).to(torch.uint8)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    keys = json.loads((folder / "config.json").read_text())
    settings = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    (folder / "config.json").write_text(json.dumps(dict(keys, quantization_config=settings)))
    opened = GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        check(folder, opened.float()(input_ids=ids).logits, {"mxfp4": 4})


with tempfile.TemporaryDirectory() as scratch:
    check_mxfp4(pathlib.Path(scratch, "mxfp4"))
    config = LlamaConfig(
        vocab_size=96, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(f"{scratch}/plain")
    for name, options in {"nf4": {}, "nf4_twice": dict(bnb_4bit_use_double_quant=True),
                          "fp4": dict(bnb_4bit_quant_type="fp4")}.items():
        options = {"bnb_4bit_quant_type": "nf4", **options}
        opened = LlamaForCausalLM.from_pretrained(
            f"{scratch}/plain", dtype=torch.float32, device_map={"": "cpu"},
            quantization_config=BitsAndBytesConfig(load_in_4bit=True, **options))
        opened.save_pretrained(f"{scratch}/{name}")
        # Without gradients it multiplies in bfloat16.
        check(f"{scratch}/{name}", opened(input_ids=ids).logits.detach(), {name[:3]: 14})
    for name, (make, settings, type_name) in FORMS.items():
        folder = pathlib.Path(scratch) / name
        shutil.copytree(f"{scratch}/plain", folder)
        stored, state = {}, model.state_dict()
        for key, weight in model.state_dict().items():
            if "_proj" not in key:
                stored[key] = weight
                continue
            tensors, state[key] = make(*weight.shape)
            for ending, tensor in tensors.items():
                stored[key.removesuffix("weight") + ending] = tensor.contiguous()
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        keys = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(dict(keys, quantization_config=settings)))
        other = LlamaForCausalLM(config).eval()
        other.load_state_dict(state)
        with torch.no_grad():
            check(folder, other(input_ids=ids).logits, {type_name: 14})
    # Folders of redco-lua's own.
    def opened_by_transformers(folder):
        opened = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                  device_map={"": "cpu"})
        return opened(input_ids=ids).logits.detach()

    def unpacked(folder):
        """compressed-tensors unpacks weights with zeros, but 0.20 does not let transformers open
        them."""
        tensors, state = load_file(f"{folder}/model.safetensors"), {}
        settings = json.loads(pathlib.Path(f"{folder}/config.json").read_text())
        scheme = QuantizationScheme(**settings["quantization_config"]["config_groups"]["group_0"])
        for key in tensors:
            if key.endswith(".weight_packed"):
                stem = key.removesuffix("weight_packed")
                parts = {name.removeprefix(stem): tensor for name, tensor in tensors.items()
                         if name.startswith(stem)}
                state[f"{stem}weight"] = PackedQuantizationCompressor.decompress(
                    parts, scheme)["weight"]
            elif ".weight_" not in key:
                state[key] = tensors[key]
        other = LlamaForCausalLM(config).eval()
        other.load_state_dict(state)
        with torch.no_grad():
            return other(input_ids=ids).logits

    types = ["int4", "int8", "fp8", "nf4", "fp4"]
    subprocess.run([sys.argv[1], here / "save_quantized.lua", f"{scratch}/plain", *types],
                   check=True)
    subprocess.run([sys.argv[1], here / "save_quantized.lua", f"{scratch}/compressed_int4",
                    "as_it_is"], check=True)
    written = [(f"{scratch}/plain.{name}", name) for name in types]
    for folder, name in [*written, (f"{scratch}/compressed_int4.as_it_is", "symmetric int4")]:
        expected = load_file(f"{folder}/logits.safetensors")["logits"]
        given = (unpacked if name == "int4" else opened_by_transformers)(folder)
        difference = (given - expected).abs().max().item()
        assert difference <= 1e-5 * expected.abs().max().item(), (name, difference)
        print(f"{name}: what is written opens")
