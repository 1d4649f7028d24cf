"""The tail of a step: unscale, clip, AdamW, scale update (scaler_tail.cpp, tail_loop.py)."""

import functools
import re

import google_benchmark
from rounds import Case, Contender
from settings import reason_of
from worker import run_once
from workloads import floors

PROGRAMS = ("bench-scaler-tail",)

# (name in the programs, parameters, title, only in a full run on a CPU)
SIZES = [
    ("tiny", 0.8e6, "tail, 0.8 M parameters", False),
    ("nano", 10.8e6, "tail, 10.8 M parameters", False),
    ("many", 0.16e6, "tail, 10,000 tensors of 16", False),
    ("small", 124.4e6, "tail, 124 M parameters", True),
    ("512M", 512e6, "tail, 512 M parameters", True),
]
LARGEST_ON_CPU = 200e6

# The variants of scaler_tail.cpp by side. The first one that the program offers is used.
VARIANTS = {
    "ours": ["FusedStep, clip", "ours, fused AdamW, clip"],
    "stock": ["stock libtorch, clip"],
    "aten": ["ATen calls, fused AdamW, clip"],
}


def variant_of(side, names):
    """The name of the benchmark for this side, or None."""
    return next((name for name in VARIANTS[side] if name in names), None)


def offered_sizes(settings, program):
    """The sizes that the program lists in its usage line, such as nano|small."""
    _, usage = reason_of(lambda: run_once([program], settings.environment(), settings.deadline))
    found = re.search(r"usage: bench-scaler-tail (\S+)", usage or "")
    return found.group(1).split("|") if found else []


def python_contender(settings, form, size):
    worker = settings.worker(f"tail {form}", settings.script("tail_loop.py"))
    return Contender(
        prepare=lambda: worker.ask("prepare", form, size, deadline=settings.patience),
        measure=lambda: worker.ask("measure", settings.seconds, deadline=settings.deadline)["seconds"])


def contenders(settings, size, parameters):
    program = settings.program("bench-scaler-tail")
    command = [program, size, settings.device]
    names, reason = reason_of(lambda: google_benchmark.names(settings, command))
    sides = {}
    for side in VARIANTS:
        name = variant_of(side, names or [])
        if name:
            sides[side] = Contender(functools.partial(google_benchmark.run, settings, command, name,
                                                      "steps_per_iteration"))
        elif reason and side in ("ours", "stock"):
            sides[side] = reason
    sides["accelerate"] = python_contender(settings, "accelerate", size)
    if settings.compiled and settings.full:
        sides["compiled"] = (python_contender(settings, "compiled", size) if size != "many"
                             else "not tried: compiling 10,000 tensors takes too long")
    sides["floor"] = Contender(lambda: floors.tail_seconds(settings, parameters))
    return sides


def cases(settings):
    sizes = offered_sizes(settings, settings.program("bench-scaler-tail"))
    for size, parameters, title, large in SIZES:
        if sizes and size not in sizes:
            continue  # the program of this build does not have it
        if large and settings.device == "cpu" and (not settings.full or parameters > LARGEST_ON_CPU):
            continue
        yield Case(f"tail/{size}", title, "ms", functools.partial(contenders, settings, size, parameters))
