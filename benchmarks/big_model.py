"""What big_model.cpp does, with Accelerate: forward passes of a model whose weights are in host memory."""

import gc
import json
import sys
import time

import accelerate
import torch
from torch import nn
from torch.nn import functional

SHAPES = {  # layers, width, inner, heads, heads of keys, words, type
    "linear": (24, 2048, 0, 1, 1, 0, torch.float32),
    "gpt2": (12, 768, 2048, 12, 12, 50257, torch.float32),
    "8b": (32, 4096, 14336, 32, 8, 128256, torch.bfloat16),
}


class Block(nn.Module):
    def __init__(self, width, inner, heads, key_heads):
        super().__init__()
        self.width, self.heads, self.key_heads = width, heads, key_heads
        key_width = width // heads * key_heads
        self.first_norm = nn.RMSNorm(width, 1e-5)
        self.second_norm = nn.RMSNorm(width, 1e-5)
        for name, before, after in [("q", width, width), ("k", width, key_width), ("v", width, key_width),
                                    ("o", width, width), ("gate", width, inner), ("up", width, inner),
                                    ("down", inner, width)]:
            self.add_module(name, nn.Linear(before, after, bias=False))

    def forward(self, x):
        def split(y, heads):
            return y.view(y.size(0), y.size(1), heads, self.width // self.heads).transpose(1, 2)

        y = self.first_norm(x)
        repeats = self.heads // self.key_heads
        keys = split(self.k(y), self.key_heads).repeat_interleave(repeats, 1)
        values = split(self.v(y), self.key_heads).repeat_interleave(repeats, 1)
        mixed = functional.scaled_dot_product_attention(split(self.q(y), self.heads), keys, values, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        z = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(z)) * self.up(z))


class BigModel(nn.Module):
    def __init__(self, layers, width, inner, heads, key_heads, words):
        super().__init__()
        self.width, self.is_chain = width, inner == 0
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) if self.is_chain
                                    else Block(width, inner, heads, key_heads) for _ in range(layers))
        if not self.is_chain:
            self.words = nn.Embedding(words, width)
            self.head = nn.Linear(width, words, bias=False)

    def input(self, tokens, device):
        if self.is_chain:
            return torch.ones(tokens, self.width, device=device)
        return torch.zeros(1, tokens, dtype=torch.long, device=device)

    def forward(self, x):
        if not self.is_chain:
            x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.is_chain else self.head(x)


class Bench:
    def __init__(self, device):
        self.device, self.model = device, None

    def prepare(self, form, size, folder):
        self.model = None
        gc.collect()
        *shape, dtype = SHAPES[size]
        with accelerate.init_empty_weights():
            model = BigModel(*shape)
        model = model.to(dtype).to_empty(device=self.device)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    bound = parameter.size(1) ** -0.5
                    parameter.uniform_(-bound, bound)
                else:
                    parameter.fill_(1)
        if form == "disk":
            accelerate.disk_offload(model, folder, execution_device=self.device)
        elif form != "resident":
            state = {name: value.cpu() for name, value in model.state_dict().items()}
            if form == "pinned" and self.device != "cpu":
                state = {name: value.pin_memory() for name, value in state.items()}
            accelerate.cpu_offload(model, execution_device=self.device, state_dict=state)
        self.model = model
        return {}

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def forward(self, tokens, seconds):
        x = self.model.input(tokens, self.device)
        laps = []
        with torch.no_grad():
            self.model(x)
            begin = time.perf_counter()
            while len(laps) < 3 or time.perf_counter() - begin < seconds:
                self.synchronize()
                start = time.perf_counter()
                self.model(x)
                self.synchronize()
                laps.append(time.perf_counter() - start)
        return {"seconds": sorted(laps)[len(laps) // 2]}

    def answer(self, what, *words):
        if what == "prepare":
            form, size, _, folder = words
            return self.prepare(form, size, folder)
        return self.forward(int(words[0]), float(words[1]))


def main():
    bench = Bench(sys.argv[1])
    for request in sys.stdin:
        print(json.dumps(bench.answer(*request.split())), flush=True)


if __name__ == "__main__":
    main()
