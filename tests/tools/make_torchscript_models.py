"""Writes the TorchScript modules of tests/cluster: those that torchscript.lua trains, in float64, and
script_functions.pt, the functions of random programs.

    PYTHONHASHSEED=0 python tests/tools/make_torchscript_models.py tests/cluster

script_conv.pt, script_lstm.pt, script_encoder.pt (layers of torch.nn) and script_decoder.pt (blocks
of its own, with one weight for both ends). Needs torch.
"""

import pathlib
import sys

import torch
import torchscript
from torch import nn
from torch.nn import functional as F

vocabulary, length, width, n_heads = 29, 6, 16, 4


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(x + self.norm2(self.conv2(y)))


class ConvNet(nn.Module):
    """[batch, 3, 8, 8] -> [batch, 5]"""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.MaxPool2d(2))
        self.block = Residual(8)
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16),
                                  nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.down(self.block(self.stem(x))), 1))


class LSTM(nn.Module):
    """[batch, length] -> [batch, length, vocabulary]"""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, vocabulary)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


class Encoder(nn.Module):
    """[batch, length] -> [batch, length, vocabulary]"""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, n_heads, dim_feedforward=32, dropout=0.0,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids) + self.positions))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).unbind(2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                           is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """[batch, length] -> [batch, length, vocabulary]"""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(width)
        self.unembedding = nn.Linear(width, vocabulary, bias=False)
        self.unembedding.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.unembedding(self.norm(x))


class Functions(nn.Module):
    """Functions of one tensor with one dimension or more, by number."""

    def forward(self, x: torch.Tensor, number: int):
        if number == 0:
            return torch.tanh(x) * 2 + x
        if number == 1:
            y = x.clone()
            y.mul_(0.5)
            y += x
            return y.relu_()
        if number == 2:
            total = torch.zeros_like(x[0])
            for i in range(x.size(0)):
                total = total + x[i] * (i + 1)
            return total
        if number == 3:
            return F.dropout(x, 0.3, training=True) + F.dropout(x, 0.0, training=True)
        if number == 4:
            return (x - x.mean(-1, keepdim=True)) / (x.square().mean(-1, keepdim=True) + 1).sqrt()
        if number == 5:
            return torch.softmax(x, -1).unsqueeze(-1) * x.unsqueeze(-2)
        return x.reshape(-1).cumsum(0).view(x.shape)


folder = pathlib.Path(sys.argv[1])
for name, make in {"conv": ConvNet, "lstm": LSTM, "encoder": Encoder, "decoder": Decoder,
                   "functions": Functions}.items():
    torch.manual_seed(20250611)
    torchscript.save(make().double(), folder / f"script_{name}.pt")
