"""examples/classification trains as transformers does: the same model, batches and optimizer give
the same losses, for classes, numbers and pairs.

classification_peer.py REDCO_LUA SOURCE
"""
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

program, source = sys.argv[1:]
torch.set_num_threads(1)

N_STEPS, LEARNING_RATE, DECAY, CLIP = 4, 3e-3, 0.01, 1.0
data = Path(source) / "examples/classification/data"
tokenizer = BertTokenizerFast.from_pretrained(data / "tokenizer")
failures = 0


def losses_of_transformers(model, rows, classes):
    """All training examples are one batch, so that their order does not matter."""
    train = [row for i, row in enumerate(rows, 1) if i % 5]
    pairs = [row["text_pair"] for row in train] if "text_pair" in train[0] else None
    batch = tokenizer(
        [row["text"] for row in train], pairs, padding=True, truncation=True, max_length=64,
        return_tensors="pt",
    )
    labels = [classes.index(row["label"]) if classes else row["label"] for row in train]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, weight_decay=DECAY)
    n_warmup = 1
    found = []
    for step in range(N_STEPS):
        rate = min(step / n_warmup, 1) * min((N_STEPS - step) / (N_STEPS - n_warmup), 1)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        loss = model(**batch, labels=torch.tensor(labels)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        found.append(loss.item())
    return found


for name, task in {
    "domains": "classification", "pairs": "classification", "similarity": "regression",
}.items():
    rows = [json.loads(line) for line in open(data / f"{name}.jsonl", encoding="utf-8")][:30]
    classes = sorted({row["label"] for row in rows}) if task == "classification" else []
    torch.manual_seed(1)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, num_labels=max(len(classes), 1),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/bert")
        tokenizer.save_pretrained(f"{folder}/bert")
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        Path(f"{folder}/rows.jsonl").write_text(lines, "utf-8")
        subprocess.run(
            [program, f"{source}/examples/classification/train.lua", f"--task={task}",
             f"--data={folder}/rows.jsonl", f"--model-dir={folder}/bert", "--seed=3",
             f"--workdir={folder}/work", f"--n-epochs={N_STEPS}", "--warmup-ratio=0.25",
             "--global-batch-size=24", "--per-device-batch-size=24",
             f"--learning-rate={LEARNING_RATE}"],
            check=True, stdout=subprocess.DEVNULL,
        )
        logged = [json.loads(line) for line in open(f"{folder}/work/metrics.jsonl")]
    ours = [line["loss"] for line in logged if line.get("kind") != "eval"]
    theirs = losses_of_transformers(model, rows, classes)
    off = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    is_good = len(ours) == N_STEPS and not math.isnan(off) and off < 1e-5
    failures += not is_good
    print(f"{'ok' if is_good else 'FAILED'}: {name}: losses {theirs}, off by {off:.1e}")

sys.exit(failures > 0)
