"""The peer of sample_groups.lua: samples with transformers' generate, all rows in one batch.

peer_sample.py FOLDER PROMPTS N PROMPT_LENGTH NEW THREADS SEED: prints the seconds and the tokens.
"""
import sys
import time

import torch
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
n_prompts, n, length, new, threads, seed = map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(seed)
model = AutoModelForCausalLM.from_pretrained(folder).eval()
ends = torch.tensor(model.config.eos_token_id)
prompts = torch.randint(len(ends) + 1, model.config.vocab_size, (n_prompts, length))
settings = dict(do_sample=True, num_return_sequences=n, top_k=0, pad_token_id=0,
                eos_token_id=ends.tolist(), attention_mask=torch.ones_like(prompts))
with torch.no_grad():
    model.generate(prompts[:1], max_new_tokens=2, do_sample=True, pad_token_id=0,
                   attention_mask=torch.ones_like(prompts[:1]))
    begin = time.perf_counter()
    rows = model.generate(prompts, max_new_tokens=new, **settings)[:, length:]
    seconds = time.perf_counter() - begin
is_end = torch.isin(rows, ends)
# The tokens up to the first end.
counts = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, rows.size(1))
print(seconds, int(counts.sum()))
