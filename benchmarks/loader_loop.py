"""The loaders of loader.cpp in Python: torch's DataLoader, prepared by Accelerate.

A request is `epoch KIND WORKERS`; KIND is tensors or samples. The answer is the seconds per batch
over one epoch.
"""

import json
import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, TensorDataset

LENGTH, BATCH = 60_000, 64


class Pictures(Dataset):
    """Sample by sample, the way a map-style data set is written in Python."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Loaders:
    def __init__(self):
        self.accelerator = Accelerator(cpu=True)
        self.images = torch.randint(0, 256, (LENGTH, 1, 28, 28), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (LENGTH,))
        self.made = {}

    def get(self, kind, workers):
        if (kind, workers) not in self.made:
            dataset = {"tensors": lambda: TensorDataset(self.images, self.labels),
                       "samples": lambda: Pictures(self.images, self.labels.tolist())}[kind]()
            loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=int(workers))
            self.made[kind, workers] = self.accelerator.prepare(loader)
        return self.made[kind, workers]

    def epoch(self, kind, workers):
        loader = self.get(kind, workers)
        start = time.perf_counter()
        count = sum(1 for _batch in loader)
        return {"seconds": (time.perf_counter() - start) / count}


def main():
    loaders = Loaders()
    for request in sys.stdin:
        what, kind, workers = request.split()
        print(json.dumps({"epoch": loaders.epoch}[what](kind, workers)), flush=True)


if __name__ == "__main__":
    main()
