"""Whole training steps and start-up: Accelerant, plain libtorch, Accelerate and plain torch.

One process of each language answers requests in turn (see training_loop.cpp), so that a slow moment
of the machine hits both. Every figure is the median over the rounds. Both use as many threads as
torch does here, so OMP_NUM_THREADS counts.
"""

import collections
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

PYTHON_SIDE = str(pathlib.Path(__file__).with_name("training_loop.py"))
NAMES = {"accelerant": "Accelerant", "libtorch": "plain libtorch",
         "accelerate": "Accelerate", "torch": "plain torch"}
Figures = collections.namedtuple("Figures", "seconds parameters")  # both by side


def command_of(program, side):
    return [program] if side in ("accelerant", "libtorch") else [sys.executable, PYTHON_SIDE]


def environment(threads):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Process:
    """One language, answering requests."""

    def __init__(self, command, threads):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment(threads))

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended at the request {words}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def sides_for(device, precision):
    """Accelerate ignores fp16 on a CPU and trains in fp32, so there is nothing to compare."""
    missing = set()
    if importlib.util.find_spec("accelerate") is None or (device, precision) == ("cpu", "fp16"):
        missing.add("accelerate")
    return [side for side in NAMES if side not in missing]


def measure(program, device, threads, cases, rounds, seconds):
    """The cases are (task, precision, steps in a chunk)."""
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    parameters = collections.defaultdict(set)
    with Process(command_of(program, "accelerant"), threads) as cpp, \
            Process(command_of(program, "accelerate"), threads) as python:
        def ask(side, case, length):
            process = cpp if side in ("accelerant", "libtorch") else python
            return process.ask(side, *case, length)

        # Once for nothing: what a process loads and tunes at its first use is no part of a step.
        for case in cases:
            for side in sides_for(device, case[1]):
                ask(side, case, 0)
        for number in range(rounds):
            for case in cases:
                task, precision, _ = case
                sides = sides_for(device, precision)
                # Whoever comes first may pay for what all use; so it is someone else's turn each time.
                for side in sides if number % 2 == 0 else reversed(sides):
                    figures = ask(side, case, seconds)
                    times[case][side].append(figures["seconds"])
                    parameters[task].add(figures["parameters"])
    for task, counts in parameters.items():
        if len(counts) != 1:
            raise RuntimeError(f"the networks of {task} differ: {counts} parameters")
    return {case: Figures({side: statistics.median(values) for side, values in by_side.items()},
                          min(parameters[case[0]]))
            for case, by_side in times.items()}


def seconds_to_first_step(program, side, threads):
    start = time.perf_counter()
    with subprocess.Popen([*command_of(program, side), "first-step", side], stdout=subprocess.PIPE, text=True,
                          env=environment(threads)) as process:
        line = process.stdout.readline()
        elapsed = time.perf_counter() - start
        process.communicate()
    if line != "stepped\n" or process.returncode != 0:
        raise RuntimeError(f"the first step of {side} failed")
    return elapsed


def ratio(seconds, side, other):
    return f"{seconds[other] / seconds[side]:.2f}" if other in seconds else "-"


def start_up_table(program, device, threads, rounds):
    times = collections.defaultdict(list)
    for _ in range(rounds):
        for side in sides_for(device, "no"):
            times[side].append(seconds_to_first_step(program, side, threads))
    lines = [f"## From process start to the end of the first step on {device}", "", "| side | seconds |", "|---|---|"]
    lines += [f"| {NAMES[side]} | {statistics.median(values):.2f} |" for side, values in times.items()]
    return lines


def overhead_table(device, results):
    lines = [f"## Loop overhead on {device}: a step of Linear(1, 1) with clipping, SGD and a schedule, µs", "",
             "| precision | " + " | ".join(NAMES.values()) + " | Accelerant over libtorch | Accelerate over torch |",
             "|---|---|---|---|---|---|---|"]
    for (_, precision, _), figures in results.items():
        micro = {side: 1e6 * value for side, value in figures.seconds.items()}
        cells = [f"{micro[side]:.1f}" if side in micro else "-" for side in NAMES]
        cells.append(f"{micro['accelerant'] - micro['libtorch']:+.1f}")
        cells.append(f"{micro['accelerate'] - micro['torch']:+.1f}" if "accelerate" in micro else "-")
        lines.append(f"| {precision} | " + " | ".join(cells) + " |")
    return lines


def step_table(device, results):
    lines = [f"## Training steps on {device}, loader included, ms", "",
             "| network | precision | " + " | ".join(NAMES.values()) + " | Accelerant, steps/s "
             "| times as fast as libtorch | as Accelerate | as torch |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for (task, precision, _), (seconds, parameters) in results.items():
        cells = [f"{task}, {parameters / 1e6:.1f} M", precision]
        cells += [f"{1e3 * seconds[side]:.3f}" if side in seconds else "-" for side in NAMES]
        cells.append(f"{1 / seconds['accelerant']:.1f}")
        cells += [ratio(seconds, "accelerant", other) for other in ("libtorch", "accelerate", "torch")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table(program, rounds, quick):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    seconds = 0.1 if quick else 1.0
    # fp16 in a CNN is for GPUs: most CPUs have no instructions for it.
    precisions = ["no", "bf16", "fp16"] if device == "cuda" else ["no", "bf16"]
    chunk = 20 if device == "cuda" else 5
    # On a CPU there is nothing to wait for, and short chunks are seldom hit by other programs.
    empty = [("empty", precision, 100 if device == "cuda" else 2) for precision in ("no", "bf16", "fp16")]
    networks = [(task, precision, chunk) for task in ("cnn", "gpt") for precision in precisions]
    lines = start_up_table(program, device, threads, rounds)
    lines += ["", *overhead_table(device, measure(program, device, threads, empty, rounds, seconds))]
    lines += ["", *step_table(device, measure(program, device, threads, networks, rounds, seconds))]
    return "\n".join(lines) + "\n"
