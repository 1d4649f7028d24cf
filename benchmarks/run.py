"""Measures Accelerant, plain libtorch, Hugging Face Accelerate (eager and compiled) and the machine
itself on the same work, side by side in one run.

Prints one table, and writes the table and the figures (JSON) to the path after --save.
docs/benchmarks.md explains the rows.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import machine
import report
import result
import rounds
import workloads
from settings import Settings, program_path

FORMS = {"quick": {"rounds": 3, "seconds": 0.3, "deadline": 60.0, "patience": 240.0},
         "full": {"rounds": 7, "seconds": 1.0, "deadline": 240.0, "patience": 600.0}}


def add_options(parser):
    parser.add_argument("--build", default="build", type=pathlib.Path,
                        help="the folder with the programs, directly or in bin/ (default: build)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", dest="form", action="store_const", const="quick", default="quick",
                      help="few rows, short rounds: minutes on two cores (default)")
    form.add_argument("--full", dest="form", action="store_const", const="full", help="all rows, longer rounds")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--cpu", dest="device", action="store_const", const="cpu", help="use the CPU even if there is a GPU")
    device.add_argument("--gpu", dest="device", action="store_const", const="cuda", help="fail if there is no GPU")
    parser.add_argument("--only", default="", metavar="KEYS",
                        help="measure only rows whose keys start with one of these: tail,step/fp16,ddp")
    parser.add_argument("--rounds", type=int, help="the number of rounds; the sides take turns in each")
    parser.add_argument("--seconds", type=float, help="how long one side runs in one round")
    parser.add_argument("--no-compile", dest="compiled", action="store_false", help="do not measure torch.compile")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="start no new row after this time; the report names the rows left out")


def keys_of(arguments):
    """The key prefixes after --only."""
    return [key for key in arguments.only.split(",") if key]


def check_start(build, only):
    """Exits before anything is measured if something that the wanted rows need is missing."""
    for key in only:
        if key.split("/")[0] not in workloads.ALL:
            raise SystemExit(f"bench: --only {key}: no such workload; expected one of {', '.join(workloads.ALL)}")
    needed = {program for name, workload in workloads.ALL.items() if concerned(name, only)
              for program in workload.PROGRAMS}
    missing = sorted(program for program in needed if not program_path(build, program).is_file())
    if missing:
        raise SystemExit(f"bench: not built in {build}: {', '.join(missing)}; build and measure with: make bench")
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"bench: {sys.executable} has no torch; to set up one that has, run: make bench")


def settings_of(arguments):
    import torch

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench: torch sees no GPU")
    form = {**FORMS[arguments.form]}
    for name in ("rounds", "seconds"):
        if getattr(arguments, name) is not None:
            form[name] = getattr(arguments, name)
    threads = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
    return Settings(build=arguments.build, device=device, threads=threads, full=arguments.form == "full",
                    compiled=arguments.compiled, **form)


def wanted(key, only):
    return not only or any(key == name or key.startswith(name + "/") for name in only)


def concerned(workload, only):
    """Whether any row of the workload may be wanted."""
    return not only or any(name.split("/")[0] == workload for name in only)


def measure_all(settings, only, minutes=float("inf"), say=print, after_row=lambda measured: None):
    """Measures the rows one by one. A row that no side can measure stays in the result, with the
    reasons."""
    measured = result.Result(machine.today(), machine.describe(settings.device), machine.versions(settings.device),
                             "full" if settings.full else "quick")
    start = time.monotonic()
    left_out = []
    for name, workload in workloads.ALL.items():
        if not concerned(name, only):
            continue
        try:
            for case in workload.cases(settings):
                if not wanted(case.key, only):
                    continue
                if time.monotonic() - start > 60.0 * minutes:
                    left_out.append(case.title)
                    continue
                begin = time.monotonic()
                measured.add(rounds.measure(case, settings.rounds))
                after_row(measured)
                say(f"{case.title}: {time.monotonic() - begin:.0f} s")
        finally:
            settings.close()
    if left_out:
        measured.notes.append("Left out for lack of time: " + "; ".join(left_out) + ".")
    return measured


def say(text):
    print(text, file=sys.stderr, flush=True)


def save(measured, path):
    """Writes PATH.json and PATH.md."""
    path = pathlib.Path(str(path).removesuffix(".json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{path}.json").write_text(result.to_json(measured), encoding="utf-8")
    pathlib.Path(f"{path}.md").write_text(report.markdown(measured), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--save", metavar="PATH", help="write PATH.json and PATH.md (default: build/bench)")
    parser.add_argument("--note", action="append", default=[], help="a sentence about this run for the report")
    arguments = parser.parse_args()
    only = keys_of(arguments)
    check_start(arguments.build, only)
    path = arguments.save or arguments.build / "bench"
    # Keep what was measured, even if the run is stopped.
    measured = measure_all(settings_of(arguments), only, arguments.minutes, say, lambda so_far: save(so_far, path))
    measured.notes = arguments.note + measured.notes
    save(measured, path)
    print(report.markdown(measured))


if __name__ == "__main__":
    main()
