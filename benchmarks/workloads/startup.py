"""From the start of a process to the end of its first step of the CNN."""

import functools
import time

from rounds import Case, Contender
from worker import WorkerFailed, run_once

PROGRAMS = ("bench-training",)


def seconds_to_first_step(settings, command):
    start = time.perf_counter()
    output = run_once(command, settings.environment(), settings.deadline)
    if "stepped" not in output:
        raise WorkerFailed("it did not step")
    return time.perf_counter() - start


def contenders(settings):
    program, script = [settings.program("bench-training")], settings.script("training_loop.py")
    commands = {"ours": [*program, "first-step", "accelerant"], "stock": [*program, "first-step", "libtorch"],
                "accelerate": [*script, "first-step", "accelerate"]}
    return {side: Contender(functools.partial(seconds_to_first_step, settings, command))
            for side, command in commands.items()}


def cases(settings):
    yield Case("startup/first-step", "from process start to its end after a first step", "s",
               functools.partial(contenders, settings))
