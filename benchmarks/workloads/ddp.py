"""Steps of two processes over Gloo on the CPU (distributed_loop.cpp, distributed_loop.py).

A step takes as long as the slowest rank reports. The ranks share the cores evenly: all have the
same number of threads. `alone` is the same step inside no_sync, without the exchange of gradients.
"""

import functools
import json

from rounds import Case, Contender
from worker import run_once

PROGRAMS = ("bench-distributed",)
RANKS = 2
TASKS = {"mlp-64": "MLP, 64 rows", "mlp-512": "MLP, 512 rows", "gpt-tiny": "GPT tiny"}
BUCKETS = [1, 4, 8, 25]  # MiB
LOADER_PROCESSES = [1, 2, 4, 8]


def contenders(settings, task, mode, bucket):
    threads = max(1, settings.threads // RANKS)
    commands = {"ours": [settings.program("bench-distributed")], "accelerate": settings.script("distributed_loop.py")}
    sides = {}
    for side, command in commands.items():
        ranks = settings.ranks(f"ddp {side}", command, RANKS, threads)
        steps = {}

        def prepare(ranks=ranks, steps=steps):
            trial = ranks.ask(task, mode, bucket, 3, deadline=settings.patience)
            steps["count"] = max(5, min(200, round(settings.seconds / trial["seconds"])))
            return {"parameters": trial["parameters"]}

        def measure(ranks=ranks, steps=steps):
            return ranks.ask(task, mode, bucket, steps["count"], deadline=settings.deadline)["seconds"]

        sides[side] = Contender(measure, prepare)
    return sides


def loader_contenders(settings, processes):
    """What a batch costs the last of several processes. Only that one runs."""
    commands = {"ours": [settings.program("bench-distributed")], "accelerate": settings.script("distributed_loop.py")}

    def measure(command):
        output = run_once([*command, "loader", str(processes), str(settings.seconds)], settings.environment(1),
                          settings.deadline)
        return json.loads(output.splitlines()[-1])["step"]

    return {side: Contender(functools.partial(measure, command)) for side, command in commands.items()}


def cases(settings):
    for task in TASKS if settings.full else ["mlp-64", "gpt-tiny"]:
        yield Case(f"ddp/{task}", f"2 ranks, {TASKS[task]}", "ms", functools.partial(contenders, settings, task, "sync", 0))
        if settings.full:
            yield Case(f"ddp/{task}/alone", f"2 ranks, {TASKS[task]}, no exchange", "ms",
                       functools.partial(contenders, settings, task, "no_sync", 0))
    if settings.full:
        for processes in LOADER_PROCESSES:
            yield Case(f"ddp/loader/{processes}", f"a batch for one of {processes} processes", "µs",
                       functools.partial(loader_contenders, settings, processes))
        for bucket in BUCKETS:
            yield Case(f"ddp/mlp-64/buckets/{bucket}", f"2 ranks, {TASKS['mlp-64']}, buckets of {bucket} MiB", "ms",
                       functools.partial(contenders, settings, "mlp-64", "sync", bucket))
