"""Describes the machine of a run. torch is imported only where it is needed, so that a run that
cannot start says so at once."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def kind_of(device, cores, gpu_name):
    """Machines of one kind share a baseline: cpu-2, h200."""
    if device == "cpu":
        return f"cpu-{cores}"
    words = re.findall(r"[a-z0-9]+", gpu_name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "tesla")) or "gpu"


def describe(device):
    import torch

    cores = len(os.sched_getaffinity(0))
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {"name": gpu or f"{cpu_name()}, {cores} cores", "kind": kind_of(device, cores, gpu), "device": device,
            "cpu": cpu_name(), "cores": cores, "gpu": gpu, "load at the start": os.getloadavg()[0]}


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def accelerant_version():
    header = pathlib.Path(__file__).parents[1] / "include/accelerant/version.h"
    found = re.search(r'ACCELERANT_VERSION "?([0-9.]+)', header.read_text())
    return found.group(1) if found else "unknown"


def versions(device):
    import torch

    found = {"accelerant": accelerant_version(), "torch": torch.__version__, "accelerate": version_of("accelerate"),
             "python": platform.python_version()}
    if device == "cuda":
        found["cuda"] = torch.version.cuda
    return found


def today():
    return str(datetime.date.today())
