"""A case of a tiny model in the format of tests/cases/README.md: its folder, its outputs, and its
training in float64.
"""
import copy
import json

import torch
from safetensors.torch import save_file

ADAMW = dict(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01)
STEPS = 5


def norm(tensor):
    return 0.0 if tensor is None else tensor.double().norm().item()


def training(model, batches, run):
    """Everything as a float64 run gives it."""
    model = copy.deepcopy(model).double()
    torch.set_default_dtype(torch.float64)  # masks are made in it
    batches = [{key: value.double() if value.is_floating_point() else value
                for key, value in batch.items()} for batch in batches]
    optimizer = torch.optim.AdamW(model.parameters(), **dict(ADAMW, betas=tuple(ADAMW['betas'])))
    losses, norms, total = [], {}, 0
    for step, batch in enumerate(batches):
        loss = run(model, batch)[1]
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            norms = {key: norm(parameter.grad) for key, parameter in model.named_parameters()
                     if parameter.requires_grad}
            total = sum(value ** 2 for value in norms.values()) ** 0.5
        optimizer.step()
    torch.set_default_dtype(torch.float32)
    after = {key: norm(parameter) for key, parameter in model.named_parameters()}
    return dict(loss_fp64=losses[0], grad_norm_total_fp64=total, grad_norms_fp64=norms,
                adamw=dict(ADAMW, steps=STEPS, losses_fp64=losses, param_norms_after_fp64=after))


def write_case(folder, architecture, model, batches, run):
    """Writes a folder; run(model, batch) returns the output and the loss."""
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    arrays = {f'batch{i}.{key}': value for i, batch in enumerate(batches)
              for key, value in batch.items()}
    with torch.no_grad():
        arrays['fwd.logits'] = run(model, batches[0])[0].contiguous()
    save_file(arrays, folder / 'expected.safetensors')
    expected = dict(case=folder.name, architecture=architecture,
                    training=training(model, batches, run))
    (folder / 'expected.json').write_text(json.dumps(expected, indent=1) + '\n')
    for file in folder.iterdir():
        file.chmod(0o644)
