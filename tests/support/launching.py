"""Runs `accelerant launch` in tests with real processes. Waits have deadlines and end on a condition."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

COMMAND = os.environ.get("ACCELERANT_COMMAND", "accelerant")
DEADLINE = 60 * float(os.environ.get("ACCELERANT_TEST_TIMEOUT_SCALE", "1"))

# Variables that the launcher under test must not inherit from the machine that runs the tests.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCH", "ACCELERA", "OMPI_", "PMI", "SLURM_", "OMP_NUM",
           "CUDA_VISIBLE", "GROUP_", "ROLE_", "NCCL_SOCKET_", "NCCL_COMM_ID")


def clean_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def shell(script):
    """The program and arguments of a shell script."""
    return ["sh", "-c", textwrap.dedent(script)]


def python(script):
    return [sys.executable, "-c", textwrap.dedent(script)]


class Result:
    def __init__(self, process, out, err):
        self.code = process.returncode
        self.out = out
        self.err = err
        self.out_lines = out.decode(errors="replace").splitlines()
        self.err_lines = err.decode(errors="replace").splitlines()

    def __repr__(self):
        return f"code {self.code}\nout: {self.out[-3000:]!r}\nerr: {self.err[-3000:]!r}"


def start(options, program, env=None, **popen):
    """Starts the launcher in a session of its own, so that signals reach only the launcher."""
    popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
    return subprocess.Popen(
        [COMMAND, "launch", *map(str, options), "--", *map(str, program)],
        env=clean_environment() if env is None else env, start_new_session=True, stdin=subprocess.DEVNULL, **popen)


def finish(process):
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not over in time: {Result(process, out or b'', err or b'')}") from None
    return Result(process, out or b"", err or b"")


def launch(options, program, env=None, **popen):
    return finish(start(options, program, env, **popen))


def wait_for(condition, what):
    """Waits until condition() is true and returns its value."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not in time: {what}")


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def numbers_in(folder, count, suffix=".pid"):
    """Waits for `count` files in the folder and returns the process ids in them."""
    def all_there():
        texts = [file.read_text() for file in sorted(folder.glob(f"*{suffix}"))]
        return len(texts) == count and all(text.endswith("\n") for text in texts) and texts
    return [int(text) for text in wait_for(all_there, f"{count} files *{suffix}")]


def send(process, number):
    os.kill(process.pid, number)


__all__ = [name for name in dir() if not name.startswith("_")] + ["signal"]
