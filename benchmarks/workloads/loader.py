"""Batches of a loader: 60000 pictures of 1 x 28 x 28 bytes, 64 at a time, shuffled (loader.cpp, loader_loop.py)."""

import functools
import json
import re

from rounds import Case, Contender
from worker import run_once

KINDS = {"tensors": "tensors", "samples": "sample by sample"}


def run_cpp(settings, name):
    output = run_once([settings.program("bench-loader"), f"--benchmark_filter=^{re.escape(name)}(/|$)",
                       f"--benchmark_min_time={settings.seconds}", "--benchmark_format=json"],
                      settings.environment(), settings.deadline)
    report = json.loads(output)
    return report["benchmarks"][-1]["real_time"] / 1e3 / int(report["context"]["batches_per_iteration"])


def contenders(settings, kind, workers):
    python = settings.worker("loader", settings.script("loader_loop.py"))
    tail = f", {workers} workers"
    return {
        "ours": Contender(functools.partial(run_cpp, settings, f"ours, {KINDS[kind]}{tail}")),
        "stock": Contender(functools.partial(run_cpp, settings, f"torch::data{tail}")),
        "accelerate": Contender(lambda: python.ask("epoch", kind, workers, deadline=settings.deadline)["seconds"]),
    }


def cases(settings):
    for workers in [0, 2] if settings.full else [0]:
        for kind, name in KINDS.items():
            yield Case(f"loader/{kind}/{workers}", f"a batch, {name}, {workers} workers", "µs",
                       functools.partial(contenders, settings, kind, workers))
