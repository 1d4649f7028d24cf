"""From the start of a launcher to the end of two processes that each take one step, on the CPU."""

import functools
import sys
import time

from rounds import Case, Contender
from worker import WorkerFailed, run_once

PROGRAMS = ("accelerant", "bench-distributed")
RANKS = 2


def seconds_of(settings, command):
    start = time.perf_counter()
    output = run_once(command, settings.environment(max(1, settings.threads // RANKS)), settings.deadline)
    if output.count("stepped") != RANKS:
        raise WorkerFailed(f"{output.count('stepped')} of {RANKS} processes stepped")
    return time.perf_counter() - start


def contenders(settings):
    step = [settings.program("bench-distributed"), "first-step"]
    script = [*settings.script("distributed_loop.py")[1:], "first-step"]
    commands = {
        "ours": [settings.program("accelerant"), "launch", "--num-processes", str(RANKS), "--", *step],
        # With --cpu it would start only one process.
        "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(RANKS),
                       "--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no",
                       "--dynamo_backend", "no", *script],
    }
    return {side: Contender(functools.partial(seconds_of, settings, command)) for side, command in commands.items()}


def cases(settings):
    yield Case("launch/2", "accelerant launch, accelerate launch: 2 processes, one step", "s",
               functools.partial(contenders, settings))
