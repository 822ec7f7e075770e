"""The peer of private_step.lua: Opacus. peer_private.py FOLDER THREADS MAX_GRAD_NORM

Reads the weights and the batch from FOLDER/start.safetensors. Writes the norm of the mean of the
clipped gradients, and then for each line that it reads the seconds of a step.
"""
import sys
import time
import warnings

warnings.filterwarnings('ignore')

import torch  # noqa: E402
from opacus import GradSampleModule  # noqa: E402
from opacus.optimizers import DPOptimizer  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

folder, n_threads, max_grad_norm = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(n_threads)
nn = torch.nn
start = load_file(f'{folder}/start.safetensors')
images, labels = start['batch.image'], start['batch.label']


def make(noise_multiplier):
    """A new private model and its optimizer."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10))
    layers = [layer for layer in net if hasattr(layer, 'weight')]
    for layer, name in zip(layers, ['conv1', 'conv2', 'head.1', 'head.2'], strict=True):
        layer.load_state_dict({kind: start[f'params.{name}.{kind}'] for kind in ('weight', 'bias')})
    private = GradSampleModule(net)
    adam = torch.optim.Adam(private.parameters(), lr=1e-3)
    return private, DPOptimizer(adam, noise_multiplier=noise_multiplier,
                                max_grad_norm=max_grad_norm, expected_batch_size=len(labels))


def step(private, optimizer):
    """A step; returns its seconds."""
    begin = time.perf_counter()
    nn.functional.cross_entropy(private(images), labels).backward()
    optimizer.step()
    seconds = time.perf_counter() - begin
    return seconds


model, optimizer = make(0.0)
step(model, optimizer)
print(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item(), flush=True)
model, optimizer = make(1.0)
for _ in sys.stdin:
    optimizer.zero_grad()
    print(step(model, optimizer), flush=True)
