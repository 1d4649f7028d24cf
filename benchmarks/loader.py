"""Loaders in C++ and in Python, side by side; see loader.cpp for what is loaded."""

import json
import statistics
import subprocess
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, TensorDataset

LENGTH, BATCH = 60_000, 64
BATCHES = -(-LENGTH // BATCH)


class Pictures(Dataset):
    """Sample by sample, as a map-style data set in Python is written."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def python_loader(accelerator, workers, tensors):
    images = torch.randint(0, 256, (LENGTH, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (LENGTH,))
    dataset = TensorDataset(images, labels) if tensors else Pictures(images, labels.tolist())
    return accelerator.prepare(DataLoader(dataset, BATCH, shuffle=True, num_workers=workers))


def python_epoch(loader):
    """Seconds of one epoch."""
    start = time.perf_counter()
    for _images, _labels in loader:
        pass
    return time.perf_counter() - start


# What is compared with what: (ours, the other).
RATIOS = [
    ("ours, tensors, 0 workers", "Python, TensorDataset, 0 workers"),
    ("ours, tensors, 0 workers", "torch::data, 0 workers"),
    ("ours, tensors, 2 workers", "Python, TensorDataset, 2 workers"),
    ("ours, sample by sample, 0 workers", "Python, sample by sample, 0 workers"),
    ("ours, sample by sample, 0 workers", "torch::data, 0 workers"),
    ("ours, sample by sample, 2 workers", "Python, sample by sample, 2 workers"),
    ("ours, sample by sample, 2 workers", "torch::data, 2 workers"),
]


def measure(program, rounds):
    """Batches per second."""
    accelerator = Accelerator(cpu=True)
    loaders = {f"Python, {kind}, {workers} workers": python_loader(accelerator, workers, kind == "TensorDataset")
               for workers in (0, 2) for kind in ("TensorDataset", "sample by sample")}
    figures = {}
    for _ in range(rounds):
        output = subprocess.run([program, "--benchmark_format=json", "--benchmark_min_time=0.5"],
                                check=True, capture_output=True, text=True).stdout
        for entry in json.loads(output)["benchmarks"]:
            name = entry["name"].removesuffix("/real_time")
            figures.setdefault(name, []).append(1000 * BATCHES / entry["real_time"])
        for name, loader in loaders.items():
            figures.setdefault(name, []).append(BATCHES / python_epoch(loader))
    return {name: statistics.median(values) for name, values in figures.items()}


def table(program, rounds):
    figures = measure(program, rounds)
    lines = [f"## Loader on cpu: {LENGTH} x 1 x 28 x 28 uint8, batches of {BATCH}, shuffled", "",
             "| variant | batches per second |", "|---|---|"]
    lines += [f"| {name} | {value:,.0f} |" for name, value in figures.items()]
    lines += ["", "| ours | against | times as fast |", "|---|---|---|"]
    lines += [f"| {ours} | {other} | {figures[ours] / figures[other]:.1f} |" for ours, other in RATIOS]
    return "\n".join(lines) + "\n"
