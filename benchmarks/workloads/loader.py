"""Batches from a loader: 60000 images of 1 x 28 x 28 bytes, 64 at a time, shuffled (loader.cpp,
loader_loop.py)."""

import functools

import google_benchmark
from rounds import Case, Contender

PROGRAMS = ("bench-loader",)
KINDS = {"tensors": "tensors", "samples": "sample by sample"}


def contenders(settings, kind, workers):
    python = settings.worker("loader", settings.script("loader_loop.py"))

    def cpp(name):
        return Contender(functools.partial(google_benchmark.run, settings, [settings.program("bench-loader")],
                                           f"{name}, {workers} workers", "batches_per_iteration"))

    return {
        "ours": cpp(f"ours, {KINDS[kind]}"),
        "stock": cpp("torch::data"),
        "accelerate": Contender(lambda: python.ask("epoch", kind, workers, deadline=settings.deadline)["seconds"]),
    }


def cases(settings):
    for workers in [0, 2] if settings.full else [0]:
        for kind, name in KINDS.items():
            yield Case(f"loader/{kind}/{workers}", f"a batch, {name}, {workers} workers", "µs",
                       functools.partial(contenders, settings, kind, workers))
