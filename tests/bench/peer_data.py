"""The peer of data.lua: PyTorch's DataLoader. peer_data.py FOLDER WORKERS BATCH

Makes the folder's data - texts.jsonl from the corpus, JPEG files - and says so with a line. Then
for each line it reads, `text` or `image`, it goes through all batches once and answers with the
seconds and a checksum. The workers stay between the runs.
"""
import json
import os
import sys
import time

os.environ['TOKENIZERS_PARALLELISM'] = 'false'

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

folder, n_workers, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
n_images, width, height, side = 256, 500, 375, 224


def make_data():
    paragraphs = open('examples/language_modeling/data/corpus.txt').read().split('\n\n')
    with open(f'{folder}/texts.jsonl', 'w') as out:
        for _ in range(8):
            for i, text in enumerate(paragraphs):
                out.write(json.dumps({'id': i, 'text': text}) + '\n')
    os.makedirs(f'{folder}/images', exist_ok=True)
    torch.manual_seed(0)
    for i in range(n_images):
        small = torch.randint(256, (12, 16, 3), dtype=torch.uint8)
        image = Image.frombytes('RGB', (16, 12), bytes(small.flatten().tolist()))
        image.resize((width, height), Image.BICUBIC).save(f'{folder}/images/{i:04}.jpg', quality=90)


class Texts(Dataset):
    """The lines of a JSONL file, by where they start."""

    def __init__(self, path):
        self.path, self.file, self.starts = path, None, [0]
        with open(path, 'rb') as file:
            for line in file:
                self.starts.append(self.starts[-1] + len(line))
        self.starts.pop()

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        if self.file is None:
            self.file = open(self.path, 'rb')
        self.file.seek(self.starts[i])
        return json.loads(self.file.readline())


class Images(Dataset):
    def __init__(self, path):
        self.paths = sorted(f'{path}/{name}' for name in os.listdir(path))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return Image.open(self.paths[i]).convert('RGB')


tokenizer = Tokenizer.from_file('tests/cases/gpt2/tokenizer.json')
tokenizer.enable_padding(pad_id=0)


def collate_texts(examples):
    encodings = tokenizer.encode_batch([example['text'] for example in examples])
    return {'input_ids': torch.tensor([encoding.ids for encoding in encodings]),
            'attention_mask': torch.tensor([encoding.attention_mask for encoding in encodings])}


def collate_images(images):
    pixels = []
    for image in images:
        resized = image.resize((side, side), Image.BILINEAR)
        bytes_ = torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8)
        pixels.append(bytes_.view(side, side, 3).permute(2, 0, 1).contiguous().float().div(255))
    return {'pixel_values': (torch.stack(pixels) - 0.5) / 0.5}


make_data()
loaders = {name: DataLoader(examples, batch_size=batch_size, collate_fn=collate_fn,
                            num_workers=n_workers, persistent_workers=True)
           for name, examples, collate_fn in [
               ('text', Texts(f'{folder}/texts.jsonl'), collate_texts),
               ('image', Images(f'{folder}/images'), collate_images)]}
for loader in loaders.values():
    for _ in loader:
        pass
print('ready', flush=True)
for line in sys.stdin:
    kind = line.strip()
    start, total = time.perf_counter(), 0.0
    for batch in loaders[kind]:
        total += float(batch['attention_mask'].sum() if kind == 'text'
                       else batch['pixel_values'].double().sum())
    print(f'{time.perf_counter() - start:.6f} {total:.6f}', flush=True)
