"""The tasks of training_tasks.h, in Python."""

import torch
import torch.nn.functional as F
from torch import nn


class Cnn(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.hidden = nn.Linear(2 * width * 7 * 7, 128)
        self.output = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.output(F.relu(self.hidden(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.heads = heads

    def attention(self, x):
        batch, length, width = x.shape
        query, key, value = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                             for part in self.qkv(x).split(width, 2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, 0.0, 0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)  # the head shares the weights of the embedding


class EmptyTask:
    batch = 1

    def make_network(self):
        return nn.Linear(1, 1)

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1e-3, fused=True)

    def make_data(self, batches):
        return torch.ones(batches, 1), torch.zeros(batches, 1)

    def loss(self, output, target):
        return F.mse_loss(output, target)


class CnnTask:
    def __init__(self, batch, width):
        self.batch, self.width = batch, width

    def make_network(self):
        return Cnn(self.width)

    def make_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def make_data(self, batches):
        return torch.rand(batches * self.batch, 1, 28, 28), torch.randint(10, (batches * self.batch,))

    def loss(self, output, target):
        return F.cross_entropy(output, target)


class GptTask:
    def __init__(self, batch, length, layers, width, heads, vocabulary, context):
        self.batch, self.length, self.vocabulary = batch, length, vocabulary
        self.shape = layers, width, heads, vocabulary, context

    def make_network(self):
        return Gpt(*self.shape)

    def make_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def make_data(self, batches):
        text = torch.randint(self.vocabulary, (batches * self.batch, self.length + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(self, output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten())


class MlpTask:
    layers, width = 8, 1024

    def __init__(self, batch):
        self.batch = batch

    def make_network(self):
        layers = [nn.Linear(self.width, self.width)]
        for _ in range(self.layers - 1):
            layers += [nn.ReLU(), nn.Linear(self.width, self.width)]
        return nn.Sequential(*layers)

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1e-3, fused=True)

    def make_data(self, batches):
        return (torch.randn(batches * self.batch, self.width), torch.randn(batches * self.batch, self.width))

    def loss(self, output, target):
        return F.mse_loss(output, target)


def task_named(name, cuda):
    """Batches are small on a CPU. A name may end with the batch size: cnn-4."""
    kind, _, batch = name.rpartition("-")
    if not batch.isdigit():
        kind, batch = name, None

    def of(size):
        return int(batch or size)

    return {
        "empty": EmptyTask,
        "cnn": lambda: CnnTask(of(256 if cuda else 64), 128 if cuda else 32),
        "mlp": lambda: MlpTask(of(512 if cuda else 64)),
        "gpt-tiny": lambda: GptTask(of(32 if cuda else 16), 64, 4, 128, 4, 65, 64),
        "gpt-nano": lambda: GptTask(of(16 if cuda else 4), 256 if cuda else 64, 6, 384, 6, 65, 256),
        "gpt-small": lambda: GptTask(of(8), 1024, 12, 768, 12, 50304, 1024),  # 50257, made a multiple of 64
    }[kind]()


def parameter_count(network):
    return sum(parameter.numel() for parameter in network.parameters())
