"""The step of pipeline.lua with torch.distributed.pipelining: 1F1B, on the model and the tokens that
`pipeline.lua --folder=FOLDER` has saved. torchrun --nproc-per-node 2 peer_pipeline.py FOLDER"""
import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument('folder')
parser.add_argument('--steps', type=int, default=6)
parser.add_argument('--warmup', type=int, default=2)
parser.add_argument('--batch', type=int, default=16)
parser.add_argument('--micro', type=int, default=2)
parser.add_argument('--threads', type=int, default=1)
o = parser.parse_args()
torch.set_num_threads(o.threads)
dist.init_process_group('gloo')
rank, size = dist.get_rank(), dist.get_world_size()

model = AutoModelForCausalLM.from_pretrained(o.folder, attn_implementation='sdpa')
tokens = load_file(os.path.join(o.folder, 'tokens.safetensors'))['tokens']
blocks = model.transformer.h
first, last = rank * len(blocks) // size, (rank + 1) * len(blocks) // size


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = blocks[first:last]
        if rank == 0:
            self.wte, self.wpe = model.transformer.wte, model.transformer.wpe
        if rank == size - 1:
            self.ln_f, self.lm_head = model.transformer.ln_f, model.lm_head

    def forward(self, x):
        if rank == 0:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.lm_head(self.ln_f(x)) if rank == size - 1 else x


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


module = Stage()
stage = PipelineStage(module, rank, size, torch.device('cpu'))
schedule = Schedule1F1B(stage, n_microbatches=o.batch // o.micro, loss_fn=loss_of)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


def step(i):
    rows = tokens[i * o.batch:(i + 1) * o.batch]
    losses = []
    if rank == 0:
        schedule.step(rows[:, :-1].contiguous())
    elif rank == size - 1:
        schedule.step(target=rows[:, 1:].contiguous(), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sum(loss.item() for loss in losses) / max(len(losses), 1)


for i in range(o.warmup):
    step(i)
dist.barrier()
begin = time.perf_counter()
for i in range(o.warmup, o.warmup + o.steps):
    loss = step(i)
seconds = (time.perf_counter() - begin) / o.steps
if rank == size - 1:
    print(json.dumps({
        'name': 'peer_pipeline', 'stages': size, 'micro_batches': o.batch // o.micro,
        'tokens_per_s': round(o.batch * (tokens.shape[1] - 1) / seconds, 1),
        'step_ms': round(seconds * 1e3, 1), 'loss_last': round(loss, 5),
        'peak_rss_mb': round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        'threads': o.threads}))
dist.destroy_process_group()
