"""Starts attacked-training, alone or under the launcher, finds its processes, and says what it has left.

How much is tried comes from ACCELERANT_ATTACK_<NAME> (README.md).
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time
import uuid

import launching
import replay

PROGRAM = os.environ["ACCELERANT_ATTACKED_TRAINING"]
COMMAND = os.environ["ACCELERANT_COMMAND"]
SCALE = float(os.environ.get("ACCELERANT_TEST_TIMEOUT_SCALE", "1"))
DEADLINE = 120 * SCALE
SEED = replay.seed_from_environment()
MARK = "ACCELERANT_ATTACK_RUN"  # in the environment of all processes of a run

# 32 steps and 16 saves.
SETTINGS = {"samples": 64, "epochs": 2, "batch": 4, "every": 2, "limit": 2}


def extent(name, otherwise):
    variable = f"ACCELERANT_ATTACK_{name}"
    count = int(os.environ.get(variable, otherwise))
    assert count > 0, f"{variable}={count} would try nothing"
    return count


def wait_until(condition, what, deadline=DEADLINE, pause=0.002):
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(pause)
    return value


def environment_of(pid):
    """Empty if the process has ended."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def send(pid, number):
    """Whether the process was still there."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


class Run:
    """A training that runs while the test does something else. Its log is FOLDER/NAME.<rank>."""

    def __init__(self, folder, settings, processes=1, failpoint=None, name="log", launcher_options=(), wrapper=()):
        self.folder = folder
        self.log = folder / name
        self.processes = processes
        self.id = uuid.uuid4().hex
        self.temporary = folder / f"temporary_{self.id}"
        self.temporary.mkdir()
        command = [PROGRAM, str(self.log), *(f"{key}={value}" for key, value in settings.items())]
        if processes > 1 or launcher_options:
            options = ["--cpu", "--num-processes", str(processes), *map(str, launcher_options)]
            command = [COMMAND, "launch", *options, "--", *command]
        more = {"ACCELERANT_FAILPOINT": failpoint} if failpoint else {}
        environment = launching.clean_environment(OMP_NUM_THREADS=1, ACCELERANT_LOG_LEVEL="info",
                                                  TMPDIR=self.temporary, **{MARK: self.id}, **more)
        self.steps_before = self.count_steps()
        with open(f"{self.log}.err", "wb") as errors:
            self.process = subprocess.Popen([*map(str, wrapper), *command], env=environment, start_new_session=True,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)

    def errors(self):
        return pathlib.Path(f"{self.log}.err").read_text(errors="replace")

    def count_steps(self):
        """The fewest steps that any rank has logged, of all runs with this log."""
        logs = [pathlib.Path(f"{self.log}.{rank}") for rank in range(self.processes)]
        return min(log.read_bytes().count(b"step ") if log.exists() else 0 for log in logs)

    def has_ended(self):
        return self.process.poll() is not None

    def wait_for_steps(self, count):
        """Until every rank has made that many more, or the training has ended."""
        wait_until(lambda: self.has_ended() or self.count_steps() >= self.steps_before + count, "steps")

    def wait_for_save(self, project):
        """Until a checkpoint is being written, or the training has ended."""
        folder = project / "checkpoints"

        def is_saving():
            return self.has_ended() or (folder.exists() and any(map(is_staging, os.listdir(folder))))
        wait_until(is_saving, "a save", pause=0.0005)

    def pids(self):
        """Of all its processes that live, also of orphans."""
        mark = f"{MARK}={self.id}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if mark in pathlib.Path(f"/proc/{entry}/environ").read_bytes():
                        found.append(int(entry))
                except OSError:
                    pass
        return found

    def ranks(self):
        """Process ids by rank, as far as they are there."""
        if self.process.args[0] == PROGRAM:
            return {} if self.has_ended() else {0: self.process.pid}
        found = {}
        for pid in self.pids():
            rank = environment_of(pid).get("RANK")
            if rank is not None and parent_of(pid) == self.process.pid:
                found[int(rank)] = pid
        return found

    def suspend(self):
        """Not for a launcher."""
        os.kill(self.process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(self.process.pid) == "T", "stopped")

    def finish(self, deadline=DEADLINE):
        """Its exit code. Nobody may outlive it."""
        try:
            code = self.process.wait(deadline)
            self.expect_nobody_left()
            return code
        except BaseException:
            self.kill_all()
            raise

    def expect_nobody_left(self):
        wait_until(lambda: not self.pids(), f"the end of all processes of {self.log}", 20 * SCALE, pause=0.005)

    def kill_all(self):
        for pid in self.pids():
            send(pid, signal.SIGKILL)
        self.process.wait()


def run(folder, settings, processes=1, **more):
    """Runs to the end."""
    training = Run(folder, settings, processes, **more)
    return training.finish(), training.errors()


# --- What is left ---------------------------------------------------------------------------------


def is_staging(name):
    return name.endswith(".tmp")


def checkpoints_of(project):
    """The folders of committed checkpoints, by number."""
    folder = project / "checkpoints"
    names = os.listdir(folder) if folder.exists() else []
    found = {int(name.removeprefix("checkpoint_")): folder / name for name in names
             if re.fullmatch(r"checkpoint_\d+", name)}
    return dict(sorted(found.items()))


def expect_no_damage(project):
    """In any committed checkpoint."""
    if checkpoints_of(project):
        done = subprocess.run([COMMAND, "verify", project], capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stdout + done.stderr


def expect_clean(project, limit=None):
    """After the end of a training that nothing disturbed."""
    expect_no_damage(project)
    assert os.listdir(project) == ["checkpoints"], "a lock is left"
    names = os.listdir(project / "checkpoints")
    assert not [name for name in names if is_staging(name)], names
    assert 1 <= len(checkpoints_of(project)) <= (limit or len(names))


def results_of(log, processes):
    """What each rank computed. What was computed twice must be the same both times."""
    results = []
    for rank in range(processes):
        found = {}
        for line in pathlib.Path(f"{log}.{rank}").read_text().splitlines():
            key, separator, value = line.partition(" = ")
            if separator and value.endswith(";") and key != "child":
                known = found.setdefault(key, value)
                assert known == value, f"rank {rank}: {key} was {known}, and then {value}"
        results.append(found)
    return results


def expect_same(log, expected):
    """To the last bit."""
    for rank, (got, wanted) in enumerate(zip(results_of(log, len(expected)), expected, strict=True)):
        different = {key: (got.get(key), wanted.get(key)) for key in got.keys() | wanted.keys()
                     if got.get(key) != wanted.get(key)}
        assert not different, f"rank {rank}"


def undisturbed(folder, settings, processes):
    """The results of a training that nobody attacks."""
    folder.mkdir(parents=True)
    code, errors = run(folder, {**settings, "project": folder / "project"}, processes)
    assert code == 0, errors
    results = results_of(folder / "log", processes)
    steps = settings["samples"] * settings["epochs"] // settings["batch"] // processes
    assert all(len(found) == steps + 2 for found in results), [len(found) for found in results]
    return results


@dataclasses.dataclass
class Figures:
    """Measured times, for the last lines of a test."""
    name: str
    seconds: list = dataclasses.field(default_factory=list)

    def __str__(self):
        ordered = sorted(self.seconds)
        return (f"{self.name}: p50 {ordered[len(ordered) // 2]:.3f} s, p90 {ordered[len(ordered) * 9 // 10]:.3f} s, "
                f"max {ordered[-1]:.3f} s of {len(ordered)}")
