"""Models saved and loaded, in C++ and in Python, side by side.

One process of each language answers requests in turn (see model_io.cpp), so that a slow moment of the machine hits
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

PYTHON_SIDE = str(pathlib.Path(__file__).with_name("model_io.py"))
MEMORY = "/dev/shm"
TENSORS = 1_000_000
LOADS = [("Accelerant load_checkpoint_in_model", "ours", "load"),
         ("Python load_file and load_state_dict", "python", "load"),
         ("Python load_model", "python", "load_model"),
         ("Python load_file alone, into new tensors", "python", "load_file")]
COPIES = [("memcpy, 1 thread", "ours", "memcpy"), ("copy_ of torch", "ours", "copy_")]
OURS = LOADS[0][0]


class Figure:
    """Seconds of the rounds."""

    def __init__(self, values):
        self.median = statistics.median(values)
        quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        self.low, self.high = quarters[0], quarters[2]

    def cells(self):
        return f"{1e3 * self.median:.1f} | {1e3 * self.low:.1f} - {1e3 * self.high:.1f}"


class Sides:
    def __init__(self, program, device):
        threads = torch.get_num_threads()
        self.processes = {"ours": Process([program, device], threads),
                          "python": Process([sys.executable, PYTHON_SIDE, device], threads)}

    def ask(self, side, *words):
        return self.processes[side].ask(*words)["seconds"]

    def both(self, *words):
        for side in self.processes:
            self.ask(side, *words)

    def measure(self, cases, rounds):
        """The cases are (name, side, words...). Whoever comes first may find a colder machine, so turns change."""
        times = collections.defaultdict(list)
        for name, side, *words in cases:
            self.ask(side, *words)  # once for nothing
        for number in range(rounds):
            for name, side, *words in cases if number % 2 == 0 else reversed(cases):
                times[name].append(self.ask(side, *words))
        return {name: Figure(times[name]) for name, *_ in cases}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes.values():
            process.__exit__(*error)


def lines_of(title, figures, ours):
    lines = [f"## {title}", "", "| | ms | quartiles | Accelerant is so many times as fast |", "|---|---|---|---|"]
    for name, figure in figures.items():
        ratio = "" if name == ours else f"{figure.median / figures[ours].median:.2f}"
        lines.append(f"| {name} | {figure.cells()} | {ratio} |")
    return lines


def load_table(sides, device, path, size, rounds):
    cases = [(name, side, what, path) for name, side, what in LOADS]
    if device == "cpu":
        cases += [(name, side, what) for name, side, what in COPIES]
    figures = sides.measure(cases, rounds)
    return lines_of(f"Loading {size / 1e9:.2f} GB from the page cache to {device}", figures, OURS)


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


def tables(program, device, rounds, quick):
    blocks = 2 if quick else 21
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir=MEMORY) as memory, \
            Sides(program, device) as sides:
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


def table(program, rounds, quick):
    """Each round takes about half a second, but for what the disk takes."""
    rounds = 1 if quick else 5 * rounds
    lines = tables(program, "cpu", rounds, quick)
    if torch.cuda.is_available():
        lines += ["", *tables(program, "cuda", rounds, quick)]
    return "\n".join(lines) + "\n"
