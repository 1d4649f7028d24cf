"""Several processes on the CPU: Accelerant against Accelerate, which uses torch's DistributedDataParallel.

The ranks of both languages stay, and answer requests in turn (see distributed_loop.cpp), so that a slow
moment of the machine hits both. A step takes as long as the slowest rank says; every figure is the
median over the rounds. All ranks have the same number of threads: the cores, shared between the
ranks of one side, or OMP_NUM_THREADS.
"""

import collections
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

PYTHON_SIDE = str(pathlib.Path(__file__).with_name("distributed_loop.py"))
RANKS = 2
TASKS = ["mlp-64", "mlp-512", "gpt"]
BUCKETS = [1, 2, 4, 8, 16, 25]  # MiB
NAMES = {"ours": "Accelerant", "python": "Accelerate"}
Figures = collections.namedtuple("Figures", "seconds exchanges parameters")  # the first two by (side, mode)


def threads_per_rank():
    return int(os.environ.get("OMP_NUM_THREADS", max(1, len(os.sched_getaffinity(0)) // RANKS)))


def environment(**more):
    threads = str(threads_per_rank())
    return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
            "KINETO_LOG_LEVEL": "99",  # Python counts exchanges with the profiler, which would chatter
            **more}


def commands(program):
    return {"ours": [program], "python": [sys.executable, PYTHON_SIDE]}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The ranks of one side, answering requests together."""

    def __init__(self, command):
        port = str(free_port())
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                                             LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
            for rank in range(RANKS)]

    def ask(self, *words):
        for process in self.processes:
            process.stdin.write(" ".join(map(str, words)) + "\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise RuntimeError(f"a rank of {self.processes[0].args} ended at the request {words}")
        answers = [json.loads(line) for line in lines]
        return {name: max(answer[name] for answer in answers) for name in answers[0]}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for process in self.processes:
            process.stdin.close()
            if kind is not None:
                process.kill()
        for process in self.processes:
            process.wait()


def measure(program, cases, rounds, seconds):
    """The cases are (task, bucket size in MiB or 0 for each side's own)."""
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    exchanges = collections.defaultdict(dict)
    parameters = {}
    starts = commands(program)
    with Ranks(starts["ours"]) as ours, Ranks(starts["python"]) as python:
        ranks = {"ours": ours, "python": python}
        steps = {}
        for task, bucket in cases:
            # Once for the number of steps only: what a process tunes at its first use is no part of a step.
            slowest = max(ranks[side].ask(task, "sync", bucket, 3)["seconds"] for side in ranks)
            steps[task, bucket] = max(5, min(200, round(seconds / slowest)))
        for number in range(rounds):
            for case in cases:
                # Whoever comes first may find a colder machine; so it is the other's turn each time.
                for side in ranks if number % 2 == 0 else reversed(ranks):
                    for mode in ("sync", "no_sync"):
                        answer = ranks[side].ask(case[0], mode, case[1], steps[case])
                        times[case][side, mode].append(answer["seconds"])
                        exchanges[case][side, mode] = answer["exchanges"]
                        if parameters.setdefault(case[0], answer["parameters"]) != answer["parameters"]:
                            raise RuntimeError(f"the networks of {case[0]} differ")
    return {case: Figures({key: statistics.median(values) for key, values in by_key.items()},
                          exchanges[case], parameters[case[0]])
            for case, by_key in times.items()}


def step_table(results):
    lines = [f"## Training steps of {RANKS} processes over Gloo on cpu, {threads_per_rank()} thread(s) each, ms", "",
             "| network | Accelerant | Accelerate | times as fast | exchanges a step | in Accelerate |",
             "|---|---|---|---|---|---|"]
    for (task, _), (seconds, exchanges, parameters) in results.items():
        ours, python = seconds["ours", "sync"], seconds["python", "sync"]
        lines.append(f"| {task}, {parameters / 1e6:.1f} M | {1e3 * ours:.1f} | {1e3 * python:.1f} "
                     f"| {python / ours:.2f} | {exchanges['ours', 'sync']} | {exchanges['python', 'sync']} |")
    return lines


def overlap_table(results):
    lines = [f"## What the exchange of gradients costs a step: with it against inside no_sync, {RANKS} processes, ms",
             "", "| network | side | with | without | ratio |", "|---|---|---|---|---|"]
    for (task, _), (seconds, _, _) in results.items():
        for side, name in NAMES.items():
            synced, alone = seconds[side, "sync"], seconds[side, "no_sync"]
            lines.append(f"| {task} | {name} | {1e3 * synced:.1f} | {1e3 * alone:.1f} | {synced / alone:.2f} |")
    return lines


def sweep_table(program, rounds, seconds):
    results = measure(program, [(task, bucket) for task in ("mlp-64", "mlp-512") for bucket in [0, *BUCKETS]],
                      rounds, seconds)
    lines = [f"## Size of the groups in which gradients are exchanged: a step of {RANKS} processes, ms", "",
             "| network | MiB | Accelerant | exchanges a step | over no_sync | Accelerate | exchanges a step | over no_sync |",
             "|---|---|---|---|---|---|---|---|"]
    for (task, bucket), (times, exchanges, _) in results.items():
        cells = [task, str(bucket or "default")]
        for side in NAMES:
            cells += [f"{1e3 * times[side, 'sync']:.1f}", str(exchanges[side, "sync"]),
                      f"{times[side, 'sync'] / times[side, 'no_sync']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def seconds_to_first_step(command):
    """From the start of the launcher until all ranks have stepped."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as process:
        stepped = 0
        while stepped < RANKS and (line := process.stdout.readline()):
            stepped += line.count("stepped")
        elapsed = time.perf_counter() - start
        _, errors = process.communicate()
    if stepped != RANKS or process.returncode != 0:
        raise RuntimeError(f"the first step of {command} failed:\n{errors}")
    return elapsed


def launch_table(program, launcher, rounds):
    first_step = {side: [*command, "first-step"] for side, command in commands(program).items()}
    script = first_step["python"][1:]
    starts = {
        "accelerant launch": [launcher, "launch", "--num-processes", str(RANKS), "--", *first_step["ours"]],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
                     *script],
        # With --cpu it would start a single process.
        "accelerate launch": [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes",
                              str(RANKS), "--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no",
                              "--dynamo_backend", "no", *script],
    }
    times = collections.defaultdict(list)
    for number in range(rounds):
        for name in starts if number % 2 == 0 else reversed(starts):
            times[name].append(seconds_to_first_step(starts[name]))
    lines = [f"## From the start of the launcher to the first step of all of {RANKS} processes on cpu", "",
             "| launcher | seconds |", "|---|---|"]
    return lines + [f"| {name} | {statistics.median(times[name]):.2f} |" for name in starts]


def loader_table(program, rounds, seconds):
    counts = [1, 2, 4, 8]
    times = collections.defaultdict(list)
    for number in range(rounds):
        for count in counts:
            sides = commands(program)
            for side in sides if number % 2 == 0 else reversed(sides):
                output = subprocess.run([*sides[side], "loader", str(count), str(seconds)], check=True,
                                        stdout=subprocess.PIPE, text=True, env=environment()).stdout
                for part, value in json.loads(output).items():
                    times[side, count, part].append(value)
    lines = ["## Loader of one of several processes on cpu: 60000 x 1 x 28 x 28 uint8, batches of 64, shuffled, µs", "",
             "| processes | Accelerant, a step | start of an epoch | Accelerate, a step | start of an epoch "
             "| times as fast |", "|---|---|---|---|---|---|"]
    for count in counts:
        micro = {(side, part): 1e6 * statistics.median(times[side, count, part])
                 for side in NAMES for part in ("step", "start")}
        lines.append(f"| {count} | " + " | ".join(f"{value:,.1f}" for value in micro.values())
                     + f" | {micro['python', 'step'] / micro['ours', 'step']:.1f} |")
    return lines


def table(program, launcher, rounds, quick, sweep):
    """`launcher` is the command accelerant, or None to leave the start-up out."""
    seconds = 0.5 if quick else 4.0
    results = measure(program, [(task, 0) for task in TASKS], rounds, seconds)
    lines = step_table(results) + ["", *overlap_table(results)]
    if launcher:
        lines += ["", *launch_table(program, launcher, rounds)]
    lines += ["", *loader_table(program, rounds, 0.2 if quick else 1.0)]
    if sweep:
        lines += ["", *sweep_table(program, rounds, seconds)]
    return "\n".join(lines) + "\n"
