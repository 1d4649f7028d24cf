"""What model_io.cpp does, in Python: saves and loads models, and opens files with many tensors.

It takes the same requests, but loads and saves with Python's own libraries.
"""

import json
import os
import sys
import time

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file

WIDTH = 1024
SHAPES = [(WIDTH,), (WIDTH,), (3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,),
          (WIDTH,), (WIDTH,), (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]


class Weights(torch.nn.Module):
    def __init__(self, blocks, device):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.randn(shape, device=device) for shape in SHAPES * blocks])


def sync_file(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def load_and_copy(model, path, device):
    """Loads into the tensors of the model, as load_checkpoint_in_model does."""
    state = load_file(path, device=device)
    model.load_state_dict(state)
    return state  # kept, so that freeing it is not measured


def save(model, path):
    save_file(model.state_dict(), path)


def save_and_sync(model, path):
    save_file(model.state_dict(), path)
    sync_file(path)


def open_header(path):
    with safe_open(path, "pt") as file:
        if not file.keys():
            raise RuntimeError(f"no tensors in {path}")


class Requests:
    def __init__(self, device):
        self.device = device
        self.model = None

    def work(self, what, path):
        return {"load": lambda: load_and_copy(self.model, path, self.device),
                "load_file": lambda: load_file(path, device=self.device),
                "load_model": lambda: load_model(self.model, path, device=self.device),
                "save": lambda: save(self.model, path),
                "save_and_sync": lambda: save_and_sync(self.model, path),
                "open": lambda: open_header(path)}[what]

    def answer(self, what, argument):
        """Seconds."""
        if what == "model":
            self.model = Weights(int(argument), self.device)
            return 0.0
        work = self.work(what, argument)
        self.synchronize()
        start = time.perf_counter()
        result = work()
        self.synchronize()
        seconds = time.perf_counter() - start
        del result
        return seconds

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()


def main():
    requests = Requests(sys.argv[1])
    for request in sys.stdin:
        print(json.dumps({"seconds": requests.answer(*request.split())}), flush=True)


if __name__ == "__main__":
    main()
