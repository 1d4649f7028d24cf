"""Measures Accelerant, plain libtorch, Hugging Face Accelerate (eager and compiled) and the machine itself on the same
work, side by side in one run.

Prints one table and writes it, with the figures as JSON, where --save says. docs/benchmarks.md tells what the rows are.
"""

import argparse
import os
import pathlib
import sys
import time

import machine
import report
import result
import rounds
import torch
import workloads
from settings import Settings

FORMS = {"quick": {"rounds": 3, "seconds": 0.3, "deadline": 60.0, "patience": 240.0},
         "full": {"rounds": 7, "seconds": 1.0, "deadline": 240.0, "patience": 600.0}}


def add_options(parser):
    parser.add_argument("--build", default="build", type=pathlib.Path,
                        help="the folder with the programs, or with a folder bin of them (build)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", dest="form", action="store_const", const="quick", default="quick",
                      help="few rows, short rounds: minutes on two cores (default)")
    form.add_argument("--full", dest="form", action="store_const", const="full", help="all rows, longer rounds")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--cpu", dest="device", action="store_const", const="cpu", help="also where there is a GPU")
    device.add_argument("--gpu", dest="device", action="store_const", const="cuda", help="an error where there is none")
    parser.add_argument("--only", default="", metavar="KEYS",
                        help="workloads or rows, by the beginning of their keys: tail,step/fp16,ddp")
    parser.add_argument("--rounds", type=int, help="rounds in which the sides take turns")
    parser.add_argument("--seconds", type=float, help="of one side in one round")
    parser.add_argument("--no-compile", dest="compiled", action="store_false", help="without torch.compile")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="begin no further row after so many; those left out are named")


def settings_of(arguments):
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
    """Measures the rows one by one. A row that cannot be measured by anyone stays, with the reasons."""
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
    """PATH.json and PATH.md."""
    path = pathlib.Path(str(path).removesuffix(".json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{path}.json").write_text(result.to_json(measured), encoding="utf-8")
    pathlib.Path(f"{path}.md").write_text(report.markdown(measured), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--save", metavar="PATH", help="write PATH.json and PATH.md (build/bench)")
    parser.add_argument("--note", action="append", default=[], help="a sentence about this run, for the report")
    arguments = parser.parse_args()
    only = [key for key in arguments.only.split(",") if key]
    for key in only:
        if key.split("/")[0] not in workloads.ALL:
            parser.error(f"no such workload: {key}; there are {', '.join(workloads.ALL)}")
    path = arguments.save or arguments.build / "bench"
    # What is measured is kept, even if the run is stopped.
    measured = measure_all(settings_of(arguments), only, arguments.minutes, say, lambda so_far: save(so_far, path))
    measured.notes = arguments.note + measured.notes
    save(measured, path)
    print(report.markdown(measured))


if __name__ == "__main__":
    main()
