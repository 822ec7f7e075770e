"""Records what PyTorch's CUDA allocator does in training: record.py FILE

README.md describes the file. It needs a GPU with 10 GB of memory.
"""
import sys

import torch
import torch.nn.functional as F

MIB = 2**20
LENGTHS = [300, 512, 77, 450, 128, 501, 260, 390, 33, 512]


def made_again(segments):
    """Lines that bring an empty allocator into the state of a snapshot, the numbers of the blocks
    that are in use, by address, and how many blocks there are."""
    lines, in_use, free, n = [], {}, [], 0

    def allocate(size):
        nonlocal n
        n += 1
        lines.append(f"+{size}")
        return n

    for segment in segments:
        size, is_small = segment["total_size"], segment["segment_type"] == "small"
        lines.append(f"reserve {size}")
        if not is_small:  # the first block alone might reserve less
            lines.append(f"-{allocate(size)}")
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                in_use[block["address"]] = allocate(block["requested_size"])
                continue
            most = MIB if is_small else block["size"]  # more would not be of the small segments
            for start in range(0, block["size"], most):
                free.append(allocate(min(most, block["size"] - start)))
    return lines + [f"-{block}" for block in free], in_use, n


def lines_of(segments, events):
    """The lines of a file for what was reserved at the start, and what happened then."""
    lines, numbers, n = made_again(segments)
    for event in events:
        match event["action"]:
            case "alloc":
                n += 1
                numbers[event["addr"]] = n
                lines.append(f"+{event['size']}")
            case "free_completed":
                lines.append(f"-{numbers.pop(event['addr'])}")
            case "segment_alloc":
                lines.append(f"reserve {event['size']}")
            case "segment_free":
                lines.append(f"return {event['size']}")
            case "oom":
                lines.append(f"fail {event['size']}")
                break  # from here on everything is freed
    return lines


def write(path, numbers, lines):
    lines = [f"{name} {number}" for name, number in numbers.items()] + lines
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def record(path, run, capacity):
    """Writes what the allocator does while run() runs, with at most so many bytes."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    segments = torch.cuda.memory._snapshot()["segments"]
    n_retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    torch.cuda.set_per_process_memory_fraction(capacity / total)
    torch.cuda.memory._record_memory_history(max_entries=2_000_000, context=None, stacks="python")
    try:
        run()
    except torch.OutOfMemoryError:
        pass
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    stats = torch.cuda.memory_stats()
    numbers = {
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["requested_bytes.all.peak"],
        "retries": stats["num_alloc_retries"] - n_retries,
        "capacity": capacity,
    }
    write(path, numbers, lines_of(segments, events))


class LanguageModel(torch.nn.Module):
    def __init__(self, n_layers, vocabulary=50257, width=768):
        super().__init__()
        self.table = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, F.gelu,
                                             batch_first=True, norm_first=True)
            for _ in range(n_layers))
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), ids.flatten())


def train(make, batches, loss_of):
    net = make().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for make_batch in batches:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(net, make_batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def train_transformer(n_layers, lengths):
    def batch(length):
        return lambda: torch.randint(50257, (8, length), device="cuda")

    train(lambda: LanguageModel(n_layers), [batch(length) for length in lengths],
          lambda net, ids: net(ids))


def main(path):
    torch.manual_seed(0)
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # cuBLAS takes its workspace
    record(path, lambda: train_transformer(6, LENGTHS), capacity=4_600_000_000)


if __name__ == "__main__":
    main(sys.argv[1])
