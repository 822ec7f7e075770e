"""Makes tests/lua/picture_cases.safetensors with diffusers' pipelines:

make_picture_cases.py FOLDER_OF_A_PIPELINE FILE

Latents of text to image with each scheduler, of image to image and of inpainting, from given noise.
The autoencoder's latents are their means.
"""
import sys

import diffusers
import torch
from diffusers.models.autoencoders import vae as vae_module
from diffusers.pipelines.stable_diffusion import (pipeline_stable_diffusion_img2img as img2img,
                                                  pipeline_stable_diffusion_inpaint as inpaint)
from safetensors.torch import save_file

folder, target = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SCHEDULERS = {"DDIMScheduler": {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
              "PNDMScheduler": {"skip_prk_steps": True, "steps_offset": 1},
              "DPMSolverMultistepScheduler": {}, "EulerDiscreteScheduler": {},
              "HeunDiscreteScheduler": {}, "LMSDiscreteScheduler": {},
              "UniPCMultistepScheduler": {}}
text_to_image = diffusers.StableDiffusionPipeline.from_pretrained(
    folder, safety_checker=None, requires_safety_checker=False)
side = text_to_image.unet.config.sample_size * text_to_image.vae_scale_factor
arrays = {"noise": torch.randn(2, 4, side // text_to_image.vae_scale_factor,
                               side // text_to_image.vae_scale_factor),
          "image": torch.rand(2, 3, side, side) * 2 - 1, "mask": torch.zeros(2, 1, side, side)}
arrays["mask"][:, :, : side // 2, side // 4:] = 1
vae_module.randn_tensor = lambda shape, **_: torch.zeros(shape)
for module in (img2img, inpaint):
    module.randn_tensor = lambda shape, **_: arrays["noise"]
PROMPTS = {"prompt": ["a taxi", "bone"], "negative_prompt": ["", "a tongue"],
           "output_type": "latent", "guidance_scale": 4.0}


def parts(class_):
    return class_(**text_to_image.components, requires_safety_checker=False)


for name, config in SCHEDULERS.items():
    text_to_image.scheduler = getattr(diffusers, name)(**BETAS, **config)
    arrays["text." + name] = text_to_image(
        **PROMPTS, latents=arrays["noise"].clone(), height=side, width=side,
        num_inference_steps=4, num_images_per_prompt=1).images
    if name != "LMSDiscreteScheduler":  # diffusers leaves out terms of its first step
        arrays["image." + name] = parts(diffusers.StableDiffusionImg2ImgPipeline)(
            **PROMPTS, image=arrays["image"], strength=0.6, num_inference_steps=5).images
    for strength in (1.0, 0.6):
        arrays[f"inpaint{strength}.{name}"] = parts(diffusers.StableDiffusionInpaintPipeline)(
            **PROMPTS, image=arrays["image"], mask_image=arrays["mask"], height=side, width=side,
            strength=strength, num_inference_steps=5).images
arrays.pop("inpaint0.6.LMSDiscreteScheduler")
save_file({name: array.contiguous() for name, array in arrays.items()}, target)
