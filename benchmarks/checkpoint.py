"""Models and whole trainings saved and loaded, in C++ and in Python, side by side.

One process of each language answers requests in turn (see model_io.cpp and checkpoint_loop.cpp), so that a slow moment of the machine hits
both. Figures are medians over the rounds, with the quartiles beside them as a measure of noise. The files that are
loaded are in the page cache. Saves are compared twice: on the disk, where Accelerant always waits for it and Python
does so only if asked to, and in memory (tmpfs), where waiting costs nothing.
"""

import collections
import pathlib
import statistics
import sys
import tempfile

import torch
from training import Process

MEMORY = "/dev/shm"
TENSORS = 1_000_000
LOADS = [("Accelerant load_checkpoint_in_model", "ours", "load"),
         ("Python load_file and load_state_dict", "python", "load"),
         ("Python load_model", "python", "load_model"),
         ("Python load_file alone", "python", "load_file")]
COPIES = [("memcpy, 1 thread", "ours", "memcpy"), ("copy_ of torch", "ours", "copy_")]
OURS = LOADS[0][0]
WAYS = [("Accelerant save_state", "ours", "sync"), ("Accelerant save_state, async", "ours", "async"),
        ("Accelerate save_state, not synced", "python", "accelerate"),
        ("Accelerate save_state, then fsync", "python", "accelerate-synced"),
        ("torch.distributed.checkpoint.save", "python", "dcp"),
        ("torch.distributed.checkpoint.async_save", "python", "dcp-async")]


class Figure:
    """Seconds of the rounds."""

    def __init__(self, values):
        self.median = statistics.median(values)
        quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        self.low, self.high = quarters[0], quarters[2]

    def cells(self):
        return f"{1e3 * self.median:.1f} | {1e3 * self.low:.1f} - {1e3 * self.high:.1f}"


class Sides:
    def __init__(self, program, script, *arguments):
        threads = torch.get_num_threads()
        script = str(pathlib.Path(__file__).with_name(script))
        self.processes = {"ours": Process([program, *arguments], threads),
                          "python": Process([sys.executable, script, *arguments], threads)}

    def ask(self, side, *words):
        return self.processes[side].ask(*words)

    def both(self, *words):
        for side in self.processes:
            self.ask(side, *words)

    def measure(self, cases, rounds, warm_ups=2):
        """The cases are (name, side, words...); the result is {name: {what was answered: Figure}}."""
        times = collections.defaultdict(lambda: collections.defaultdict(list))
        for _, side, *words in warm_ups * cases:
            self.ask(side, *words)  # for nothing; twice, as asynchronous saves have two buffers
        for number in range(rounds):
            # Whoever comes first may find a colder machine; so turns change.
            for name, side, *words in cases if number % 2 == 0 else reversed(cases):
                for what, seconds in self.ask(side, *words).items():
                    times[name][what].append(seconds)
        return {name: {what: Figure(values) for what, values in times[name].items()} for name, *_ in cases}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes.values():
            process.__exit__(*error)


def lines_of(title, figures, ours):
    lines = [f"## {title}", "", "| | ms | quartiles | Accelerant is so many times as fast |", "|---|---|---|---|"]
    for name, figure in figures.items():
        ratio = "" if name == ours else f"{figure['seconds'].median / figures[ours]['seconds'].median:.2f}"
        lines.append(f"| {name} | {figure['seconds'].cells()} | {ratio} |")
    return lines


def load_table(sides, device, path, size, rounds):
    cases = [(name, side, what, path) for name, side, what in LOADS]
    if device == "cpu":
        cases += [(name, side, what) for name, side, what in COPIES]
    figures = sides.measure(cases, rounds)
    lines = lines_of(f"Loading {size / 1e9:.2f} GB from the page cache to {device}", figures, OURS)
    if device == "cpu":
        lines += ["", "load_file alone only maps the file; what is used is read later."]
    return lines


def save_table(sides, folder, where, size, rounds):
    ours = "Accelerant save_model, synced, whole or not at all"
    cases = [(ours, "ours", "save", f"{folder}/ours"),
             ("Python save_file, then fsync", "python", "save_and_sync", f"{folder}/python.safetensors"),
             ("Python save_file, not synced", "python", "save", f"{folder}/python.safetensors")]
    return lines_of(f"Saving {size / 1e9:.2f} GB from cpu to {where}", sides.measure(cases, rounds), ours)


def header_table(sides, folder, rounds):
    path = f"{folder}/many.safetensors"
    sides.ask("ours", "many", path, TENSORS)
    ours = "Accelerant SafetensorsFile::open"
    figures = sides.measure([(ours, "ours", "open", path), ("Python safe_open", "python", "open", path)], rounds)
    return lines_of(f"Opening a file of {TENSORS:,} tensors", figures, ours)


def model_tables(program, device, rounds, quick):
    blocks = 2 if quick else 21
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir=MEMORY) as memory, \
            Sides(program, "model_io.py", device) as sides:
        sides.both("model", blocks)
        model = pathlib.Path(disk, "model.safetensors")
        sides.ask("python", "save_and_sync", model)
        size = model.stat().st_size
        lines = load_table(sides, device, model, size, rounds)
        if device == "cpu":
            lines += ["", *save_table(sides, disk, "the disk", size, rounds)]
            lines += ["", *save_table(sides, memory, "memory (tmpfs)", size, rounds)]
            lines += ["", *header_table(sides, disk, rounds)]
    return lines


def state_table(sides, folder, size, rounds):
    """How long a save holds the training up, and when it is on the disk."""
    figures = sides.measure([(name, side, "save", way, size, f"{folder}/{side}") for name, side, way in WAYS], rounds)
    lines = [f"## Saving a training of {size}, weights and AdamW's state", "",
             "| | training held up, ms | quartiles | complete, ms | quartiles |", "|---|---|---|---|---|"]
    return lines + [f"| {name} | {figure['blocked'].cells()} | {figure['complete'].cells()} |"
                    for name, figure in figures.items()]


def training_table(sides, folder, device, size, steps, every, rounds):
    """What saves cost a training that goes on."""
    cases = [(f"no saves, {side}", side, "train", "none", size, f"{folder}/{side}", steps, every)
             for side in ("ours", "python")]
    cases += [(name, side, "train", way, size, f"{folder}/{side}", steps, every) for name, side, way in WAYS]
    figures = sides.measure(cases, rounds, warm_ups=0)  # the saves before have filled the buffers
    lines = [f"## Training of {size} on {device} with a save every {every} of {steps} steps", "",
             "| | steps/s | slower than without saves | until the last save is complete, s |", "|---|---|---|---|"]
    for name, side, *_ in cases:
        trained, alone = figures[name]["trained"].median, figures[f"no saves, {side}"]["trained"].median
        lines.append(f"| {name} | {steps / trained:.1f} | {100 * (trained / alone - 1):.1f} % "
                     f"| {figures[name]['complete'].median:.2f} |")
    return lines


def state_tables(program, rounds, quick):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save_rounds = 1 if quick else 2 * rounds + 1
    with tempfile.TemporaryDirectory() as folder, Sides(program, "checkpoint_loop.py") as sides:
        lines = state_table(sides, folder, "100MB", save_rounds)
        size, steps, every = ("1GB", 600, 200) if device == "cuda" and not quick else ("100MB", 40, 20)
        if not quick:
            lines += ["", *state_table(sides, folder, "1GB", save_rounds)]
        lines += ["", *training_table(sides, folder, device, size, steps, every, 1 if quick else rounds)]
    return lines


def table(model_program, state_program, rounds, quick):
    lines = model_tables(model_program, "cpu", 1 if quick else 5 * rounds, quick)
    if torch.cuda.is_available():
        lines += ["", *model_tables(model_program, "cuda", 1 if quick else 5 * rounds, quick)]
    lines += ["", *state_tables(state_program, rounds, quick)]
    return "\n".join(lines) + "\n"
