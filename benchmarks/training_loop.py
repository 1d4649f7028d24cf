"""The training steps of training_loop.cpp in Python: with Accelerate, and in plain torch.

It takes the same requests, with the sides accelerate and torch. Accelerate is imported only where it
is used, so that the start-up of plain torch is its own.
"""

import json
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MAX_NORM = 1.0
SCHEDULE_STEPS = 1_000_000
BATCHES_PER_EPOCH = 128
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class EmptyTask:
    batch = 1

    def __init__(self, large):
        pass

    def make_network(self):
        return nn.Linear(1, 1)

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1e-3)

    def make_data(self, batches):
        return torch.ones(1, 1), torch.zeros(1, 1)

    def loss(self, output, target):
        return F.mse_loss(output, target)


class CnnTask:
    def __init__(self, large):
        self.batch, self.width = (256, 128) if large else (64, 32)

    def make_network(self):
        return Cnn(self.width)

    def make_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-4)

    def make_data(self, batches):
        return torch.rand(batches * self.batch, 1, 28, 28), torch.randint(10, (batches * self.batch,))

    def loss(self, output, target):
        return F.cross_entropy(output, target)


class GptTask:
    vocabulary = 65

    def __init__(self, large):
        self.batch, self.layers, self.width, self.heads, self.context = (
            (32, 6, 384, 6, 256) if large else (16, 4, 128, 4, 64))

    def make_network(self):
        return Gpt(self.layers, self.width, self.heads, self.vocabulary, self.context)

    def make_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-4)

    def make_data(self, batches):
        text = torch.randint(self.vocabulary, (batches * self.batch, self.context + 1))
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
        return torch.optim.SGD(parameters, lr=1e-3)

    def make_data(self, batches):
        return (torch.randn(batches * self.batch, self.width), torch.randn(batches * self.batch, self.width))

    def loss(self, output, target):
        return F.mse_loss(output, target)


TASKS = {"empty": EmptyTask, "cnn": CnnTask, "gpt": GptTask}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Watch:
    """Counts steps and times them in chunks; the first chunk is to warm up."""

    def __init__(self, chunk, seconds):
        self.chunk, self.seconds = chunk, seconds
        self.steps = 0
        self.laps = []

    def has_enough(self):
        self.steps += 1
        if self.steps % self.chunk:
            return False
        synchronize()
        now = time.perf_counter()
        if self.steps > self.chunk:
            self.laps.append(now - self.start)
        else:
            self.first = now
        self.start = now
        return len(self.laps) >= 3 and now - self.first >= self.seconds

    def seconds_per_step(self):
        return statistics.median(self.laps) / self.chunk


class OneStep:
    """For start-up: one step is enough."""

    def has_enough(self):
        synchronize()
        return True


def make_loader(task, batches):
    return DataLoader(TensorDataset(*task.make_data(batches)), task.batch, shuffle=True, drop_last=True)


def parameter_count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def train_with_accelerate(task, precision, batches, watch):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # or the first precision would stay
    accelerator = Accelerator(mixed_precision=precision)
    network = task.make_network()
    optimizer = task.make_optimizer(network.parameters())
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS)
    model, optimizer, scheduler = accelerator.prepare(network, optimizer, cosine)

    def step(data, target):
        with accelerator.accumulate(model):
            accelerator.backward(task.loss(model(data), target))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    if batches == 0:
        data, target = (tensor.to(accelerator.device) for tensor in task.make_data(batches))
        while True:
            step(data, target)
            if watch.has_enough():
                return parameter_count(network)
    loader = accelerator.prepare(make_loader(task, batches))
    while True:
        for data, target in loader:
            step(data, target)
            if watch.has_enough():
                return parameter_count(network)


def train_in_torch(task, precision, batches, watch):
    network = task.make_network().to(DEVICE)
    optimizer = task.make_optimizer(network.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS)
    dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler(DEVICE) if precision == "fp16" else None

    def step(data, target):
        if dtype is None:
            output = network(data)
        else:
            with torch.autocast(DEVICE, dtype):
                output = network(data)
        loss = task.loss(output.float(), target)
        if scaler:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    if batches == 0:
        data, target = (tensor.to(DEVICE) for tensor in task.make_data(batches))
        while True:
            step(data, target)
            if watch.has_enough():
                return parameter_count(network)
    loader = make_loader(task, batches)
    while True:
        for data, target in loader:
            step(data.to(DEVICE), target.to(DEVICE))
            if watch.has_enough():
                return parameter_count(network)


TRAIN = {"accelerate": train_with_accelerate, "torch": train_in_torch}


def answer(request):
    side, task, precision, chunk, seconds = request.split()
    torch.manual_seed(0)
    watch = Watch(int(chunk), float(seconds))
    batches = 0 if task == "empty" else BATCHES_PER_EPOCH
    parameters = TRAIN[side](TASKS[task](DEVICE == "cuda"), precision, batches, watch)
    return {"seconds": watch.seconds_per_step(), "parameters": parameters}


def main():
    # The scale of the first steps may be too high; that they are skipped is no mistake in the order.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    if sys.argv[1:2] == ["first-step"]:
        torch.manual_seed(0)
        TRAIN[sys.argv[2]](CnnTask(DEVICE == "cuda"), "no", 1, OneStep())
        print("stepped", flush=True)
        return
    for request in sys.stdin:
        print(json.dumps(answer(request)), flush=True)


if __name__ == "__main__":
    main()
