"""Makes tests/lua/transformer_pictures.safetensors with diffusers' pipelines of Stable Diffusion 3,
DiT and Flux: make_transformer_pictures.py FOLDER_OF_SD3 FOLDER_OF_DIT FOLDER_OF_FLUX FILE

Latents of text to image and image to image, and images of classes, from given noise. The
autoencoder's latents are their means.
"""
import sys

import diffusers
import torch
from diffusers.models.autoencoders import vae as vae_module
from diffusers.pipelines.dit import pipeline_dit
from diffusers.pipelines.stable_diffusion_3 import (
    pipeline_stable_diffusion_3_img2img as img2img)
from safetensors.torch import save_file

sd3_folder, dit_folder, flux_folder, target = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
arrays = {"noise": torch.randn(2, 4, 8, 8), "image": torch.rand(2, 3, 16, 16) * 2 - 1}
vae_module.randn_tensor = lambda shape, **_: torch.zeros(shape)
for module in (img2img, pipeline_dit):
    module.randn_tensor = lambda shape, **_: arrays["noise"]
PROMPTS = {"prompt": ["a cat", "the big red dog"], "negative_prompt": ["", "a tree"],
           "output_type": "latent", "guidance_scale": 4.0, "max_sequence_length": 16}

sd3 = diffusers.StableDiffusion3Pipeline.from_pretrained(sd3_folder)
for name, config in {"fixed": {"shift": 3.0}, "dynamic": {"use_dynamic_shifting": True}}.items():
    sd3.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    arrays["text." + name] = sd3(**PROMPTS, latents=arrays["noise"].clone(), height=16, width=16,
                                 num_inference_steps=4).images
sd3.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
arrays["text.clip_skip"] = sd3(**PROMPTS, latents=arrays["noise"].clone(), height=16, width=16,
                               num_inference_steps=4, clip_skip=1).images
for name, strength in {"fixed": 0.6, "part_of_a_step": 0.5}.items():
    arrays["image." + name] = diffusers.StableDiffusion3Img2ImgPipeline(**sd3.components)(
        **PROMPTS, image=arrays["image"], height=16, width=16, strength=strength,
        num_inference_steps=5).images

dit = diffusers.DiTPipeline.from_pretrained(dit_folder)
for scale in (1.0, 4.0):
    images = dit([1, 2], guidance_scale=scale, num_inference_steps=4, output_type="np").images
    arrays[f"class.{scale}"] = torch.from_numpy(images).permute(0, 3, 1, 2)
flux = diffusers.FluxPipeline.from_pretrained(flux_folder)
CONFIGS = {"fixed": {"shift": 3.0}, "dynamic": {"use_dynamic_shifting": True}, "negative": {}}
for name, config in CONFIGS.items():
    flux.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    options = dict(PROMPTS, true_cfg_scale=2.0 if name == "negative" else 1.0)
    packed = flux._pack_latents(arrays["noise"], 2, 4, 8, 8)
    packed = flux(**options, latents=packed, height=16, width=16, num_inference_steps=4).images
    arrays["flux." + name] = flux._unpack_latents(packed, 16, 16, 2)
save_file({name: array.contiguous() for name, array in arrays.items()}, target)
