"""The peer of diffusion.lua: diffusers. peer_diffusion.py FOLDER THREADS STEPS

Opens FOLDER/model, reads the batch from FOLDER/start.safetensors, and answers each line "train" or
"sample" with its seconds of the processor and the loss or the sum of the pictures. With a fourth argument it
does that three times and prints the peak of its memory in megabytes.
"""
import resource
import sys
import time

import diffusers
import torch
from safetensors.torch import load_file

folder, n_threads, n_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(n_threads)
diffusers.logging.set_verbosity_error()
start = load_file(f'{folder}/start.safetensors')
pipe = diffusers.StableDiffusionPipeline.from_pretrained(
    f'{folder}/model', safety_checker=None, requires_safety_checker=False)
pipe.set_progress_bar_config(disable=True)
unet = pipe.unet.train()
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, weight_decay=1e-4)
noisy = pipe.scheduler.add_noise(start['batch.latents'], start['batch.noise'],
                                 start['batch.timesteps'])


def train():
    begin = time.process_time()
    output = unet(noisy, start['batch.timesteps'], start['batch.encoder_hidden_states']).sample
    loss = torch.nn.functional.mse_loss(output, start['batch.noise'])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    result = loss.item()
    return time.process_time() - begin, result


def sample():
    begin = time.process_time()
    with torch.no_grad():
        states = pipe.text_encoder(start['prompts.input_ids'])[0]
        negative = pipe.text_encoder(start['empty.input_ids'])[0]
        images = pipe(prompt_embeds=states, negative_prompt_embeds=negative,
                      latents=start['noise'].clone(), num_inference_steps=n_steps,
                      guidance_scale=4.0, output_type='pt').images
    return time.process_time() - begin, images.sum().item()


tasks = {'train': train, 'sample': sample}
if len(sys.argv) > 4:
    for _ in range(3):
        tasks[sys.argv[4]]()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    sys.exit()
for line in sys.stdin:
    print(*tasks[line.strip()](), flush=True)
