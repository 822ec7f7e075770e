"""Parts of random pipelines whose model is a transformer: Stable Diffusion 3, Flux and DiT. Used by
random_diffusion.py."""
import tokenizers
import torch
from diffusers import (AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel,
                       FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel,
                       SD3Transformer2DModel, StableDiffusion3Pipeline)
from transformers import T5Config, T5EncoderModel, T5TokenizerFast


def t5_tokenizer(folder, words, length):
    letters = sorted(set("".join(words)))
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -3.0)]
    vocabulary += [("▁" + word, -2.0) for word in words if len(word) > 1]
    vocabulary += [(letter, -5.0) for letter in letters]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=2))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = tokenizers.decoders.Metaspace()
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True)
    model.save(str(folder / "tokenizer.json"))
    return T5TokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), extra_ids=0,
                           model_max_length=length)


def t5_encoder(draw, tokenizer, size):
    config = T5Config(
        vocab_size=len(tokenizer), d_model=size, d_kv=6, d_ff=20, num_layers=2, num_heads=3,
        relative_attention_num_buckets=8, relative_attention_max_distance=12,
        feed_forward_proj=draw.choice(["relu", "gated-gelu"]), tie_word_embeddings=False)
    return T5EncoderModel(config)


def make_sd3(draw, smallest, parts, tokenizer_3, text_size, pooled, vae_config):
    heads, layers = draw.choice([2, 4]), 2 if smallest else draw.randint(1, 3)
    size, t5_size = 4 * heads, text_size + 8
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=layers, attention_head_dim=4,
        num_attention_heads=heads, joint_attention_dim=t5_size, caption_projection_dim=size,
        pooled_projection_dim=pooled, out_channels=4, pos_embed_max_size=draw.choice([4, 6]),
        dual_attention_layers=(0,) if smallest else draw.choice([(), (0,)]),
        qk_norm="rms_norm" if smallest else draw.choice([None, "rms_norm"]))
    vae = AutoencoderKL(**dict(vae_config, shift_factor=0.06, use_quant_conv=False,
                               use_post_quant_conv=False))
    with_t5 = smallest or draw.random() < 0.7
    return StableDiffusion3Pipeline(
        transformer=transformer, vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder_3=t5_encoder(draw, tokenizer_3, t5_size) if with_t5 else None,
        tokenizer_3=tokenizer_3 if with_t5 else None, **parts)


def make_flux(draw, smallest, parts, tokenizer_2, pooled, vae_config):
    heads, axes = (2, [4, 2, 2]) if smallest else draw.choice([(2, [2, 4, 6]), (4, [4, 2, 2])])
    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1 if smallest else draw.randint(1, 2),
        num_single_layers=draw.randint(1, 2), attention_head_dim=sum(axes),
        num_attention_heads=heads, joint_attention_dim=20, pooled_projection_dim=pooled,
        guidance_embeds=smallest or draw.random() < 0.5, axes_dims_rope=axes)
    vae = AutoencoderKL(**dict(vae_config, shift_factor=0.06, use_quant_conv=False,
                               use_post_quant_conv=False))
    scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0, use_dynamic_shifting=smallest or draw.random() < 0.5)
    return FluxPipeline(transformer=transformer, vae=vae, scheduler=scheduler,
                        text_encoder_2=t5_encoder(draw, tokenizer_2, 20), tokenizer_2=tokenizer_2,
                        **parts)


def predict_flux(model, noisy, states, pooled, timesteps):
    """The output for latents [B, C, H, W] and a guidance_scale of 3.5."""
    batch, channels, height, width = noisy.shape
    packed = FluxPipeline._pack_latents(noisy, batch, channels, height, width)
    places = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu",
                                                    noisy.dtype)
    guidance = torch.full([batch], 3.5, dtype=noisy.dtype)
    output = model(packed, states, pooled, timesteps.to(noisy.dtype) / 1000, places,
                   torch.zeros(states.shape[1], 3, dtype=noisy.dtype),
                   guidance if model.config.guidance_embeds else None).sample
    return FluxPipeline._unpack_latents(output, height, width, 1)


def make_dit(draw, smallest, vae_config):
    heads = draw.choice([2, 4])
    transformer = DiTTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=4, in_channels=4,
        out_channels=8 if smallest else draw.choice([4, 8]), num_layers=2, sample_size=8,
        patch_size=draw.choice([2, 4]), attention_bias=smallest or draw.random() < 0.7,
        num_embeds_ada_norm=1000)  # the pipeline's number of no class
    names = {i: f"thing {i}, object {i}" for i in range(3)}
    return DiTPipeline(transformer=transformer, vae=AutoencoderKL(**vae_config),
                       scheduler=DDIMScheduler(clip_sample=False), id2label=names)


def flux_states(pipe, batch):
    """What Flux's transformer sees of a text: hidden states of T5 and features of CLIP."""
    return (pipe.text_encoder_2(batch["input_ids_2"])[0],
            pipe.text_encoder(batch["input_ids"]).pooler_output)


def text_states(pipe, batch):
    """What SD3's transformer sees of a text: hidden states and features."""
    clip = [getattr(pipe, name)(batch[ids], output_hidden_states=True)
            for name, ids in [("text_encoder", "input_ids"), ("text_encoder_2", "input_ids_2")]]
    states = torch.cat([one.hidden_states[-2] for one in clip], -1)
    size = pipe.transformer.config.joint_attention_dim
    states = torch.nn.functional.pad(states, (0, size - states.shape[-1]))
    if pipe.text_encoder_3 is None:
        t5 = torch.zeros_like(states)
    else:
        t5 = pipe.text_encoder_3(batch["input_ids_3"])[0]
    return torch.cat([states, t5], 1), torch.cat([one.text_embeds for one in clip], -1)
