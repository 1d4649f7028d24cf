"""Runs one benchmark of a Google Benchmark program, once."""

import json

from worker import WorkerFailed, run_once

PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


def parse(output, per_iteration):
    """Seconds. per_iteration names the context entry that says how much work one iteration does."""
    try:
        report = json.loads(output)
    except json.JSONDecodeError:
        raise WorkerFailed("no such benchmark") from None
    entry = report["benchmarks"][-1]
    if entry.get("error_occurred"):
        raise WorkerFailed(entry["error_message"])
    return entry["real_time"] / PER_SECOND[entry["time_unit"]] / int(report["context"][per_iteration])


def names(settings, command):
    """The names of its benchmarks."""
    output = run_once([*command, "--benchmark_list_tests=true"], settings.environment(), settings.deadline)
    return [line.removesuffix("/real_time") for line in output.splitlines()]


def run(settings, command, name, per_iteration):
    """Runs one benchmark. The filter is a regular expression; our names contain no special
    characters."""
    output = run_once([*command, f"--benchmark_filter=^{name}/real_time$", f"--benchmark_min_time={settings.seconds}",
                       "--benchmark_format=json"], settings.environment(), settings.deadline)
    return parse(output, per_iteration)
