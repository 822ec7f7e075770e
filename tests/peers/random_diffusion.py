"""Pipelines of random configurations, made by diffusers, and what they compute: folders in the form
of tests/cases/stable_diffusion, which tests/lua/diffusion_cases.lua reads.

    random_diffusion.py FOLDER --seed N --kind sd|sd2|xl|sd3|flux|dit [--smallest]
"""
import argparse
import json
import random
from pathlib import Path

import torch
from diffusers import (AutoencoderKL, DDPMScheduler, FluxPipeline, PNDMScheduler,
                       StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel)
from safetensors.torch import save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection,
                          CLIPTokenizer)

import random_transformers

KINDS = ["sd", "sd2", "xl", "sd3", "flux", "dit"]
NOISE = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012,
             beta_schedule="scaled_linear")
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
STEPS = 3
LENGTH = 12  # tokens of a prompt
WORDS = ["a", "cat", "dog", "red", "big", "of", "on", "house", "tree", "the"]


def letters():
    """The characters that stand for bytes in CLIP's vocabulary."""
    codes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [code for code in range(256) if code not in codes]
    return [chr(code) for code in codes] + [chr(256 + i) for i in range(len(rest))]


def make_tokenizer(folder, pad):
    merges, tokens = [], letters() + [letter + "</w>" for letter in letters()]
    for word in WORDS:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            if (parts[0], parts[1]) not in merges:
                merges.append((parts[0], parts[1]))
                tokens.append(parts[0] + parts[1])
            parts = [parts[0] + parts[1], *parts[2:]]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), pad_token=pad,
                         model_max_length=LENGTH)


def text_encoder(draw, tokenizer, size, projection=None):
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=size, intermediate_size=2 * size,
        num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=LENGTH,
        hidden_act=draw.choice(["gelu", "quick_gelu"]), projection_dim=projection or size,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=draw.choice([2, tokenizer.eos_token_id]))
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def unet_config(draw, kind, smallest, text_size, pooled):
    widths = [8, 16] if smallest else [8 * draw.randint(1, 3) for _ in range(draw.randint(2, 3))]
    n = len(widths)
    has_text = [True, False] if smallest else [draw.random() < 0.6 for _ in widths]
    down = ["CrossAttnDownBlock2D" if one else "DownBlock2D" for one in has_text]
    up = ["CrossAttnUpBlock2D" if one else "UpBlock2D" for one in reversed(has_text)]
    config = dict(
        sample_size=8, block_out_channels=widths, norm_num_groups=4, cross_attention_dim=text_size,
        down_block_types=down, up_block_types=up,
        layers_per_block=1 if smallest else draw.choice([1, 2, [1 + i % 2 for i in range(n)]]),
        attention_head_dim=draw.choice([2, 4, [2] * (n - 1) + [4]]),
        use_linear_projection=kind != "sd", upcast_attention=kind == "sd2")
    if kind == "xl":
        config.update(
            addition_embed_type="text_time", addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=pooled + 6 * 8,
            transformer_layers_per_block=[1 + i % 2 for i in range(n)])
    if not smallest:
        config.update(
            flip_sin_to_cos=draw.random() < 0.7, freq_shift=draw.choice([0, 1]),
            downsample_padding=draw.choice([0, 1]), center_input_sample=draw.random() < 0.3,
            act_fn=draw.choice(["silu", "gelu", "relu"]), norm_eps=draw.choice([1e-5, 1e-3]),
            in_channels=4, conv_in_kernel=draw.choice([1, 3]),
            only_cross_attention=kind == "sd" and draw.random() < 0.3,
            mid_block_type=draw.choice(["UNetMidBlock2DCrossAttn", "UNetMidBlock2DCrossAttn",
                                        "UNetMidBlock2D"]))
    return config


def vae_config(draw, smallest):
    widths = [8, 8] if smallest else [8 * draw.randint(1, 2) for _ in range(draw.randint(1, 3))]
    return dict(
        block_out_channels=widths, norm_num_groups=4, sample_size=8 << (len(widths) - 1),
        layers_per_block=1, down_block_types=["DownEncoderBlock2D"] * len(widths),
        up_block_types=["UpDecoderBlock2D"] * len(widths),
        mid_block_add_attention=smallest or draw.random() < 0.7,
        use_quant_conv=smallest or draw.random() < 0.7,
        use_post_quant_conv=smallest or draw.random() < 0.7)


def make_unet_pipeline(draw, folder, kind, smallest):
    tokenizer = make_tokenizer(folder / "tokenizer", "!" if kind == "sd2" else "<|endoftext|>")
    scheduler = PNDMScheduler(skip_prk_steps=True, steps_offset=1, **NOISE)
    texts = [text_encoder(draw, tokenizer, 16)]
    pooled = 20
    if kind == "xl":
        texts.append(text_encoder(draw, tokenizer, 24, pooled))
    text_size = sum(text.config.hidden_size for text in texts)
    unet = UNet2DConditionModel(**unet_config(draw, kind, smallest, text_size, pooled))
    vae = AutoencoderKL(**vae_config(draw, smallest))
    parts = dict(vae=vae, unet=unet, scheduler=scheduler, text_encoder=texts[0],
                 tokenizer=tokenizer)
    if kind == "xl":
        return StableDiffusionXLPipeline(
            text_encoder_2=texts[1], tokenizer_2=tokenizer, add_watermarker=False, **parts)
    return StableDiffusionPipeline(safety_checker=None, feature_extractor=None,
                                   requires_safety_checker=False, **parts)


def make_sd3_pipeline(draw, folder, smallest):
    tokenizer = make_tokenizer(folder / "tokenizer", "<|endoftext|>")
    first = 12 if smallest else 16
    parts = dict(text_encoder=text_encoder(draw, tokenizer, 16, first), tokenizer=tokenizer,
                 text_encoder_2=text_encoder(draw, tokenizer, 20, 20),
                 tokenizer_2=make_tokenizer(folder / "tokenizer_2", "!"))
    if not smallest:  # as the published ones have it; single files have no place for another
        parts["text_encoder"].text_projection.weight.data = torch.eye(16)
    return random_transformers.make_sd3(
        draw, smallest, parts, random_transformers.t5_tokenizer(folder / "tokenizer_3", WORDS, 32),
        16 + 20, first + 20, vae_config(draw, smallest))


def make_flux_pipeline(draw, folder, smallest):
    tokenizer = make_tokenizer(folder / "tokenizer", "<|endoftext|>")
    parts = dict(text_encoder=text_encoder(draw, tokenizer, 16), tokenizer=tokenizer)
    return random_transformers.make_flux(
        draw, smallest, parts, random_transformers.t5_tokenizer(folder / "tokenizer_2", WORDS, 32),
        16, vae_config(draw, smallest))


def make_pipeline(folder, seed, kind, smallest):
    draw = random.Random(f"{seed} {kind}")
    torch.manual_seed(seed)
    if kind == "dit":
        pipe = random_transformers.make_dit(draw, smallest, vae_config(draw, smallest))
    elif kind == "sd3":
        pipe = make_sd3_pipeline(draw, folder, smallest)
    elif kind == "flux":
        pipe = make_flux_pipeline(draw, folder, smallest)
    else:
        pipe = make_unet_pipeline(draw, folder, kind, smallest)
    for model in pipe.components.values():
        if isinstance(model, torch.nn.Module):
            for parameter in model.parameters():  # no norm or bias stays without effect
                if parameter.dim() == 1:
                    parameter.data += 0.1 * torch.randn_like(parameter)
            model.eval()
    pipe.save_pretrained(folder)
    return draw, pipe


def model_of(pipe):
    """The name of the part that removes noise, and the part."""
    name = "unet" if hasattr(pipe, "unet") else "transformer"
    return name, getattr(pipe, name)


def encode(pipe, batch):
    """What the model sees of a text: hidden states and, in SDXL and SD3, features."""
    with torch.no_grad():
        if isinstance(pipe, FluxPipeline):
            return random_transformers.flux_states(pipe, batch)
        if hasattr(pipe, "text_encoder_3"):
            return random_transformers.text_states(pipe, batch)
        ids = batch["input_ids"]
        if not hasattr(pipe, "text_encoder_2"):
            return pipe.text_encoder(ids).last_hidden_state, None
        first = pipe.text_encoder(ids, output_hidden_states=True)
        second = pipe.text_encoder_2(ids, output_hidden_states=True)
        return torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1), second.text_embeds


def new_batch(draw, pipe, n):
    prompts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 6))) for _ in range(n)]
    size = pipe.vae.config.sample_size
    batch = dict(pixel_values=torch.rand(n, 3, size, size) * 2 - 1,
                 latents=torch.randn(n, 4, 8, 8), noise=torch.randn(n, 4, 8, 8),
                 timesteps=torch.randint(1000, (n,)))
    for suffix in ["", "_2", "_3"]:
        tokenizer = getattr(pipe, "tokenizer" + suffix, None)
        if tokenizer is not None:
            batch["input_ids" + suffix] = tokenizer(
                prompts, padding="max_length", truncation=True, max_length=LENGTH,
                return_tensors="pt").input_ids
    if "unet" in pipe.components and hasattr(pipe, "text_encoder_2"):
        batch["time_ids"] = torch.randint(64, (n, 6)).float()
    if not hasattr(pipe, "tokenizer"):
        batch["class_labels"] = torch.randint(1001, (n,))
    return batch


def predict(pipe, model, batch):
    dtype = next(model.parameters()).dtype
    noisy = DDPMScheduler(**NOISE).add_noise(batch["latents"], batch["noise"], batch["timesteps"])
    noisy, timesteps = noisy.to(dtype), batch["timesteps"]
    if "class_labels" in batch:
        return model(noisy, timesteps, batch["class_labels"]).sample[:, :4]
    states, pooled = encode(pipe, batch)
    states = states.to(dtype)
    if isinstance(pipe, FluxPipeline):
        return random_transformers.predict_flux(model, noisy, states, pooled.to(dtype), timesteps)
    if hasattr(pipe, "transformer"):
        return model(noisy, states, pooled.to(dtype), timesteps).sample
    added = pooled is not None and dict(text_embeds=pooled.to(dtype), time_ids=batch["time_ids"])
    return model(noisy, timesteps, states, added_cond_kwargs=added or None).sample


def norms(tensors):
    return {name: tensor.double().norm().item() for name, tensor in tensors}


def train(pipe, batches):
    _, original = model_of(pipe)
    model = type(original).from_config(original.config).double().eval()
    model.load_state_dict(original.state_dict())
    optimizer, losses, result = torch.optim.AdamW(model.parameters(), **ADAMW), [], {}
    for batch in batches:
        optimizer.zero_grad()
        loss = (predict(pipe, model, batch) - batch["noise"]).square().mean()
        loss.backward()
        if not losses:
            result["grad_norms_fp64"] = norms(
                (name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
            result["grad_norm_total_fp64"] = sum(
                value ** 2 for value in result["grad_norms_fp64"].values()) ** 0.5
        losses.append(loss.item())
        optimizer.step()
    result["adamw"] = dict(ADAMW, steps=len(losses), losses=losses,
                           param_norms_after_fp64=norms(model.named_parameters()))
    return result


def make_case(folder, seed, kind, smallest=False):
    """Writes the folder; returns the pipeline."""
    draw, pipe = make_pipeline(folder, seed, kind, smallest)
    batches = [new_batch(draw, pipe, 2) for _ in range(STEPS)]
    arrays = {f"batch{i}.{name}": tensor for i, batch in enumerate(batches)
              for name, tensor in batch.items() if i == 0 or name != "pixel_values"}
    first = batches[0]
    with torch.no_grad():
        latents = pipe.vae.encode(first["pixel_values"]).latent_dist
        name, model = model_of(pipe)
        arrays.update({
            "vae.mean": latents.mean, "vae.logvar": latents.logvar,
            "vae.decoded_from_mean": pipe.vae.decode(latents.mean).sample,
            f"{name}.sample": predict(pipe, model, first)})
        if "class_labels" not in first:
            states, pooled = encode(pipe, first)
            arrays["text.last_hidden_state"] = states
            if pooled is not None:
                arrays["text.pooled"] = pooled
    save_file({name: tensor.contiguous() for name, tensor in arrays.items()},
              folder / "expected.safetensors")
    (folder / "expected.json").write_text(
        json.dumps(dict(training=train(pipe, batches)), separators=(",", ":")) + "\n")
    return pipe


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="sd")
    parser.add_argument("--smallest", action="store_true")
    given = parser.parse_args()
    make_case(given.folder, given.seed, given.kind, given.smallest)
