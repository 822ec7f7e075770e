"""Weights of a Stable Diffusion 3 by the names of a single file, from those of diffusers."""
import re

import torch

EMBEDDERS = [("time_text_embed.timestep_embedder.linear_1", "t_embedder.mlp.0"),
             ("time_text_embed.timestep_embedder.linear_2", "t_embedder.mlp.2"),
             ("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
             ("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
             ("pos_embed.proj", "x_embedder.proj"), ("context_embedder", "context_embedder"),
             ("proj_out", "final_layer.linear")]


def swapped(tensor):
    return torch.cat(tensor.chunk(2)[::-1])


def block(state, i, is_last):
    """The tensors of a block, {original name: tensor}."""
    own, result = f"transformer_blocks.{i}.", {}

    def put(original, name, swap=False):
        for last in ["weight", "bias"]:
            if f"{own}{name}.{last}" in state:
                tensor = state[f"{own}{name}.{last}"]
                result[f"{original}.{last}"] = swapped(tensor) if swap else tensor

    def attention(original, name, parts, norms, out):
        for last in ["weight", "bias"]:
            result[f"{original}.qkv.{last}"] = torch.cat(
                [state[f"{own}{name}.{part}.{last}"] for part in parts])
        put(f"{original}.ln_q", f"{name}.{norms[0]}")
        put(f"{original}.ln_k", f"{name}.{norms[1]}")
        put(f"{original}.proj", f"{name}.{out}")

    of_pixels = ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"], "to_out.0"
    attention("x_block.attn", "attn", *of_pixels)
    attention("context_block.attn", "attn", ["add_q_proj", "add_k_proj", "add_v_proj"],
              ["norm_added_q", "norm_added_k"], "to_add_out")
    if f"{own}attn2.to_q.weight" in state:
        attention("x_block.attn2", "attn2", *of_pixels)
    put("x_block.adaLN_modulation.1", "norm1.linear")
    put("context_block.adaLN_modulation.1", "norm1_context.linear", is_last)
    for side, name in [("x_block", "ff"), ("context_block", "ff_context")]:
        put(f"{side}.mlp.fc1", f"{name}.net.0.proj")
        put(f"{side}.mlp.fc2", f"{name}.net.2")
    return result


def transformer(model):
    state, n = model.state_dict(), model.config.num_layers
    result = {"pos_embed": state["pos_embed.pos_embed"]}
    for i in range(n):
        for name, tensor in block(state, i, i == n - 1).items():
            result[f"joint_blocks.{i}.{name}"] = tensor
    for last in ["weight", "bias"]:
        for name, original in EMBEDDERS:
            result[f"{original}.{last}"] = state[f"{name}.{last}"]
        result[f"final_layer.adaLN_modulation.1.{last}"] = swapped(state[f"norm_out.linear.{last}"])
    return result


def vae(model):
    n, result = len(model.config.block_out_channels), {}
    for name, tensor in model.state_dict().items():
        is_attention = ".attentions.0." in name
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", name)
        name = name.replace("mid_block.attentions.0.", "mid.attn_1.")
        for own, original in [("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"),
                              ("to_out.0", "proj_out")] if is_attention else []:
            name = name.replace(own, original)
        if is_attention and ".norm." not in name and name.endswith("weight"):
            tensor = tensor[:, :, None, None]
        name = re.sub(r"up_blocks\.(\d)", lambda m: f"up.{n - 1 - int(m[1])}", name)
        for own, original in [("down_blocks", "down"), ("resnets", "block"),
                              ("conv_shortcut", "nin_shortcut"), ("downsamplers.0", "downsample"),
                              ("upsamplers.0", "upsample"), ("conv_norm_out", "norm_out")]:
            name = name.replace(own, original)
        result[name] = tensor
    return result


def of_pipeline(pipe):
    """All weights of a file."""
    parts = {"model.diffusion_model.": transformer(pipe.transformer),
             "first_stage_model.": vae(pipe.vae)}
    for name, part in [("clip_l", pipe.text_encoder), ("clip_g", pipe.text_encoder_2),
                       ("t5xxl", pipe.text_encoder_3)]:
        if part is not None:
            parts[f"text_encoders.{name}.transformer."] = {
                key: tensor for key, tensor in part.state_dict().items()
                if name != "clip_l" or key != "text_projection.weight"}
    return {prefix + key: tensor.contiguous().clone()
            for prefix, tensors in parts.items() for key, tensor in tensors.items()}


def add_adapters(whole, adapters):
    """Adds adapters with kohya's names to the weights of a file."""
    prefixes = {"lora_unet_": "model.diffusion_model.",
                "lora_te1_": "text_encoders.clip_l.transformer.",
                "lora_te2_": "text_encoders.clip_g.transformer."}
    places = {start + key[len(prefix):].removesuffix(".weight").replace(".", "_"): key
              for start, prefix in prefixes.items() for key in whole
              if key.startswith(prefix) and key.endswith(".weight")}
    for key in [key for key in adapters if key.endswith(".lora_down.weight")]:
        stem = key.removesuffix(".lora_down.weight")
        down, up = adapters[key], adapters[stem + ".lora_up.weight"]
        whole[places[stem]] += adapters[stem + ".alpha"] / down.shape[0] * up @ down
