"""Starts resumable-training, alone or under the launcher, and compares what it computed."""

import os
import pathlib
import signal
import subprocess
import time

PROGRAM = os.environ["ACCELERANT_RESUMABLE_TRAINING"]
LAUNCHER = os.environ["ACCELERANT_COMMAND"]


def command_of(log, settings, processes=1, launcher_options=(), wrapper=()):
    command = [*wrapper, PROGRAM, str(log), *(f"--{key}={value}" for key, value in settings.items())]
    if processes > 1 or launcher_options:
        options = ["--cpu", "--num-processes", str(processes), *launcher_options]
        command = [LAUNCHER, "launch", *options, "--", *command]
    return command


def environment_with(failpoint):
    more = {"OMP_NUM_THREADS": "1", "ACCELERANT_LOG_LEVEL": "info"}  # logs what is resumed
    return {**os.environ, **more, **({"ACCELERANT_FAILPOINT": failpoint} if failpoint else {})}


def start(log, settings, processes=1, failpoint=None, deadline=120, launcher_options=(), wrapper=()):
    command = command_of(log, settings, processes, launcher_options, wrapper)
    return subprocess.run(
        command, env=environment_with(failpoint), capture_output=True, text=True, timeout=deadline)


def expect_intact(project):
    """Every checkpoint is good, and nothing else is left."""
    for number in numbers_of(project):
        folder = pathlib.Path(project) / "checkpoints" / f"checkpoint_{number}"
        checked = subprocess.run([LAUNCHER, "verify", folder], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    left = [path.name for path in (pathlib.Path(project) / "checkpoints").iterdir() if path.name.endswith(".tmp")]
    assert not left


class Running:
    """A training that runs in its own process group while the test does something else."""

    def __init__(self, log, settings, processes=1, failpoint=None):
        self.log = log
        self.processes = processes
        self.process = subprocess.Popen(
            command_of(log, settings, processes), env=environment_with(failpoint), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait_for_batches(self, count, deadline=60):
        """Waits until every rank has trained that many more batches, or the training has ended."""
        last = f"{self.log}.{self.processes - 1}"
        before = count_lines(last)
        end = time.monotonic() + deadline
        while self.process.poll() is None and count_lines(last) < before + count:
            assert time.monotonic() < end, "no batches in time"
            time.sleep(0.005)

    def pid_of_rank(self, rank):
        if self.processes == 1:
            return self.process.pid
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for child in children.split():
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in environment:
                return int(child)
        raise ProcessLookupError(f"rank {rank} is not there any more")

    def finish(self, deadline=120):
        """Returns the exit code and the lines of standard error."""
        try:
            _, errors = self.process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return self.process.returncode, errors.splitlines()


def count_lines(file):
    return pathlib.Path(file).read_text().count("\n") if os.path.exists(file) else 0


def lines_of(log, processes):
    """What each process computed, by key. A value that was computed twice must be the same both
    times."""
    results = []
    for rank in range(processes):
        found = {}
        for line in open(f"{log}.{rank}"):
            key, separator, value = line.rstrip("\n").partition(" = ")
            assert separator, f"half a line: {line!r}"
            assert found.setdefault(key, value) == value, f"rank {rank}: {key} was {found[key]}, and then {value}"
        results.append(found)
    return results


def undisturbed(folder, settings, processes):
    log = folder / "undisturbed"
    done = start(log, {**settings, "project": folder / "undisturbed_project", "resume": "no"}, processes)
    assert done.returncode == 0, done.stderr
    return lines_of(log, processes)


def assert_same(log, expected):
    """Compares to the last bit."""
    for rank, (got, wanted) in enumerate(zip(lines_of(log, len(expected)), expected, strict=True)):
        assert got.keys() == wanted.keys()
        different = {key: (got[key], wanted[key]) for key in got if got[key] != wanted[key]}
        assert not different, f"rank {rank}"


def name_of_case(value):
    """The name of a case in pytest's ids."""
    if isinstance(value, dict):
        return "-".join(f"{key}-{part}" for key, part in value.items()) or "plain"
    if isinstance(value, signal.Signals):
        return value.name
    return f"{value}_ranks" if isinstance(value, int) else str(value)


def numbers_of(project):
    """The numbers of the checkpoints of a project."""
    checkpoints = pathlib.Path(project) / "checkpoints"
    return sorted(int(path.name.removeprefix("checkpoint_")) for path in checkpoints.iterdir()
                  if path.name.removeprefix("checkpoint_").isdigit())
