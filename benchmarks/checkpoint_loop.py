"""Saves a whole training in Python: Accelerate's save_state and torch.distributed.checkpoint.

It takes the requests of checkpoint_loop.cpp. The ways are accelerate (Accelerate's save_state,
which returns when the files are written but does not sync them), accelerate-synced (the same, plus
fsync of every file), dcp (torch.distributed.checkpoint.save, which syncs) and dcp-async (its
async_save, which copies the state and writes in a thread).
"""

import json
import os
import shutil
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from torch import nn

SIZES = {"100MB": (8, 1024), "1GB": (20, 2048)}
BATCH = 64


def make_network(layers, width):
    modules = [nn.Linear(width, width)]
    for _ in range(layers - 1):
        modules += [nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*modules)


def sync_folder(folder):
    for base, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(base, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


class Training:
    def __init__(self, size):
        layers, width = SIZES[size]
        torch.manual_seed(0)
        self.accelerator = Accelerator()
        network = make_network(layers, width)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        self.model, self.optimizer = self.accelerator.prepare(network, optimizer)
        device = self.accelerator.device
        self.data, self.target = torch.randn(BATCH, width, device=device), torch.randn(BATCH, width, device=device)
        self.pending = None
        self.step()  # the optimizer creates its state

    def step(self):
        self.accelerator.backward(nn.functional.mse_loss(self.model(self.data), self.target))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def save(self, way, folder):
        if way.startswith("accelerate"):
            self.accelerator.save_state(folder)
            if way == "accelerate-synced":
                sync_folder(folder)
        elif way == "dcp":
            dcp.save(self.state(), checkpoint_id=folder)
        elif way == "dcp-async":
            self.wait()
            self.pending = dcp.async_save(self.state(), checkpoint_id=folder)
        elif way != "none":
            raise ValueError(way)

    def wait(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def synchronize(self):
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()


class Requests:
    def __init__(self):
        self.trainings = {}

    def training(self, size):
        if size not in self.trainings:
            self.trainings.clear()  # one at a time, to save memory
            self.trainings[size] = Training(size)
        return self.trainings[size]

    def save(self, way, size, folder):
        training = self.training(size)
        training.synchronize()
        start = time.perf_counter()
        training.save(way, folder)
        blocked = time.perf_counter() - start
        training.wait()
        complete = time.perf_counter() - start
        shutil.rmtree(folder)
        return {"blocked": blocked, "complete": complete}

    def train(self, way, size, folder, steps, every):
        training = self.training(size)
        training.step()
        training.synchronize()
        start = time.perf_counter()
        for step in range(int(steps)):
            if step % int(every) == 0:
                training.save(way, folder)
            training.step()
        training.synchronize()
        trained = time.perf_counter() - start
        training.wait()
        complete = time.perf_counter() - start
        shutil.rmtree(folder, ignore_errors=True)
        return {"trained": trained, "complete": complete}

    def answer(self, what, *arguments):
        return {"save": self.save, "train": self.train}[what](*arguments)


def main():
    warnings.filterwarnings("ignore")
    requests = Requests()
    for request in sys.stdin:
        print(json.dumps(requests.answer(*request.split())), flush=True)


if __name__ == "__main__":
    main()
