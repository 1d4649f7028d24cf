"""Runs the benchmarks in C++ and in Python, side by side, and prints ratios.

Rounds of both languages alternate, so that a slow moment of the machine hits both; each figure is
the median over the rounds. With --save the table goes to benchmarks/results/.
"""

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import checkpoint
import distributed
import loader
import torch
import training

SCALE = 1.0 + 2.0**-23
STEPS = 10


def gpt_shapes(layers, width, vocabulary, context):
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
             (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocabulary, width), (context, width)] + block * layers + [(width,), (width,)]


SHAPES = {"nano": gpt_shapes(6, 384, 65, 256), "small": gpt_shapes(12, 768, 50257, 1024)}


def python_tail(size, device, clip, **adamw):
    """Seconds per step of unscale, clip, step and update with torch.amp.GradScaler."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in SHAPES[size]]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **adamw)
    scaler = torch.amp.GradScaler(device, init_scale=SCALE, growth_interval=2**30)
    scaler.scale(torch.ones((), device=device))

    def step():
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()

    def synchronize():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    synchronize()
    times = []
    while len(times) < 5 or sum(times) < 0.5:
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / STEPS


PYTHON_VARIANTS = {
    "Python GradScaler, fused AdamW, clip": {"clip": True, "fused": True},
    "Python GradScaler, fused AdamW, no clip": {"clip": False, "fused": True},
    "Python GradScaler, default AdamW, clip": {"clip": True},
}

# What is compared with what: (ours, the other).
RATIOS = [
    ("ours, fused AdamW, clip", "ATen calls, fused AdamW, clip"),
    ("ours, fused AdamW, clip", "Python GradScaler, fused AdamW, clip"),
    ("ours, fused AdamW, no clip", "ATen calls, fused AdamW, no clip"),
    ("ours, fused AdamW, no clip", "Python GradScaler, fused AdamW, no clip"),
    ("ours, torch::optim::AdamW, clip", "stock libtorch, clip"),
    ("ours, torch::optim::AdamW, clip", "Python GradScaler, default AdamW, clip"),
]


def cpp_round(program, size, device):
    output = subprocess.run(
        [program, size, device, "--benchmark_format=json", "--benchmark_min_time=0.5"],
        check=True, capture_output=True, text=True).stdout
    report = json.loads(output)
    steps = int(report["context"]["steps_per_iteration"])
    return {entry["name"].removesuffix("/real_time"): entry["real_time"] / steps
            for entry in report["benchmarks"]}


def measure(program, size, device, rounds):
    figures = {}
    for _ in range(rounds):
        for name, milliseconds in cpp_round(program, size, device).items():
            figures.setdefault(name, []).append(milliseconds)
        for name, settings in PYTHON_VARIANTS.items():
            figures.setdefault(name, []).append(1000 * python_tail(size, device, **settings))
    return {name: statistics.median(values) for name, values in figures.items()}


def table(size, device, figures):
    shapes = SHAPES[size]
    count = sum(torch.Size(shape).numel() for shape in shapes)
    lines = [f"## Scaler tail on {device}: {count / 1e6:.1f} M parameters in {len(shapes)} tensors", "",
             "| variant | ms per step |", "|---|---|"]
    lines += [f"| {name} | {value:.3f} |" for name, value in figures.items()]
    lines += ["", "| ours | against | times as fast |", "|---|---|---|"]
    lines += [f"| {ours} | {other} | {figures[other] / figures[ours]:.2f} |" for ours, other in RATIOS]
    return "\n".join(lines) + "\n"


def heading(device):
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    return (f"# {machine}, {datetime.date.today()}\n\n"
            f"torch {torch.__version__}, Python {platform.python_version()}\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", help="the C++ benchmark of the scaler, bench-scaler-tail")
    parser.add_argument("--loader", help="the C++ benchmark of loaders, bench-loader")
    parser.add_argument("--training", help="the C++ benchmark of training steps, bench-training")
    parser.add_argument("--distributed", help="the C++ benchmark of several processes, bench-distributed")
    parser.add_argument("--launcher", help="the command accelerant, whose start-up is measured with --distributed")
    parser.add_argument("--checkpoint", nargs=2, metavar=("MODELS", "TRAININGS"),
                        help="the C++ benchmarks of saving and loading, bench-model-io and bench-checkpoint")
    parser.add_argument("--sweep", action="store_true", help="with --distributed: also try sizes of buckets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true",
                        help="one short round of all but the scaler and the loader, to see them run")
    parser.add_argument("--save", help="write the table to this file too")
    arguments = parser.parse_args()
    cases = [("nano", "cpu")]
    if torch.cuda.is_available():
        cases = [("nano", "cuda"), ("small", "cuda")]
    text = heading(cases[0][1])
    for size, device in cases if arguments.program else []:
        text += table(size, device, measure(arguments.program, size, device, arguments.rounds)) + "\n"
    if arguments.loader:
        text += loader.table(arguments.loader, arguments.rounds) + "\n"
    if arguments.training:
        text += training.table(arguments.training, 1 if arguments.quick else arguments.rounds, arguments.quick) + "\n"
    if arguments.distributed:
        text += distributed.table(arguments.distributed, arguments.launcher,
                                  1 if arguments.quick else arguments.rounds, arguments.quick, arguments.sweep) + "\n"
    if arguments.checkpoint:
        text += checkpoint.table(*arguments.checkpoint, arguments.rounds, arguments.quick) + "\n"
    print(text)
    if arguments.save:
        pathlib.Path(arguments.save).write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    sys.exit(main())
