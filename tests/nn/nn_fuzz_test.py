"""Compares accelerant::nn::Linear and activation checkpoints with nn.Linear and
torch.utils.checkpoint.

Both sides make a stack of blocks from a seed, so equal results also mean equal initialisation. They
run it forward and backward with dropout, autocast and random forms of checkpoints.
"""

import json
import os

import torch
from replay import close_enough, tensor_to_json
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

TOPIC = "nn"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "150"))


class Block(torch.nn.Module):
    def __init__(self, width, bias, dropout):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 3 * width, bias=bias)
        self.down = torch.nn.Linear(3 * width, width, bias=bias)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


def run(document, net, x):
    options = {"use_reentrant": False, "preserve_rng_state": document["preserve_rng_state"]}
    if "segments" in document:
        return checkpoint_sequential(net, document["segments"], x, **options)

    def one_by_one(h):
        for block in net:
            h = checkpoint(block, h, **options)
        return h

    return checkpoint(one_by_one, x, **options) if document["nested"] else one_by_one(x)


def python_result(document):
    torch.manual_seed(document["seed"])
    net = torch.nn.Sequential(
        *[Block(document["width"], document["bias"], document["dropout"]) for _ in range(document["blocks"])]
    )
    x = torch.randn(*document["shape"], document["width"], requires_grad=True)
    dtype = getattr(torch, document.get("autocast", "bfloat16"))
    with torch.autocast("cpu", dtype, enabled="autocast" in document):
        with set_checkpoint_early_stop(document["early_stop"]):
            output = run(document, net, x)
    output.float().square().sum().backward()
    return {
        "output": tensor_to_json(output.float()),
        "input": tensor_to_json(x.grad),
        "parameters": {name: tensor_to_json(parameter.grad) for name, parameter in net.named_parameters()},
        "next": tensor_to_json(torch.rand(1)),
    }


def random_document(rng):
    document = {
        "seed": rng.randrange(2**31),
        "width": rng.choice([4, 16, 33]),
        "blocks": rng.randint(1, 5),
        "bias": rng.random() < 0.7,
        "dropout": rng.choice([0.0, 0.2, 0.5]),
        "shape": [rng.randint(1, 4) for _ in range(rng.randint(0, 3))],
        "preserve_rng_state": rng.random() < 0.8,
        "early_stop": rng.random() < 0.7,
        "nested": rng.random() < 0.3,
    }
    if rng.random() < 0.5:
        document["autocast"] = rng.choice(["bfloat16", "float16"])
    if rng.random() < 0.4:
        document["segments"] = rng.randint(1, document["blocks"])
    return document


def test_same_as_python(replay, rng):
    for _ in range(DOCUMENTS):
        document = random_document(rng)
        ours, theirs = replay(document), python_result(document)
        # Sums may be split differently among threads; in 16 bits that shows.
        tolerance = 1e-2 if "autocast" in document else 1e-5
        scale = max(abs(value) for value in theirs["output"])
        assert close_enough(ours, theirs, tolerance, tolerance * max(scale, 1)), json.dumps(document)
        assert ours["next"] == theirs["next"], json.dumps(document)
