"""The peer of collectives.lua: torch.distributed with Gloo. peer_collectives.py N_PROCESSES

Prints the same JSON line.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS, CALLS, KIB = 15, 20, (1, 64, 512, 2048)


def microseconds(call):
    """The median time of a call, after a round to warm up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return int(statistics.median(times[1:]))


def measure(rank, n_processes):
    """One process of the group."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=n_processes)
    figures = {'n_processes': n_processes}
    for kib in KIB:
        x = torch.ones(kib * 256)
        gathered = torch.empty(n_processes * kib * 256)
        figures[f'all_reduce {kib} KiB'] = microseconds(lambda: dist.all_reduce(x.fill_(1)))
        figures[f'all_gather {kib} KiB'] = microseconds(
            lambda: dist.all_gather_into_tensor(gathered, x))
    if rank == 0:
        print(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == '__main__':
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29517')
    mp.spawn(measure, (int(sys.argv[1]),), nprocs=int(sys.argv[1]))
