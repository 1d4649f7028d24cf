"""Runs programs as several processes, for tests. Every wait has a deadline, and the output of failing ranks is
shown."""

import json
import os
import select
import socket
import subprocess
import tempfile
import time

import launching

SCALE = float(os.environ.get("ACCELERANT_TEST_TIMEOUT_SCALE", 1))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment(**more) -> dict:
    """Has no variables of a launcher, and one thread for each rank: threads that wait for each other are slow on a busy
    machine."""
    return launching.clean_environment(OMP_NUM_THREADS=1, **more)


def rank_environment(rank: int, count: int, port: int) -> dict:
    """The variables that torchrun sets."""
    return clean_environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=count, LOCAL_WORLD_SIZE=count,
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


class Rank:
    """A process that answers each line with a line of JSON."""

    def __init__(self, command: list, environment: dict):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=environment, bufsize=0)
        self.answered = b""

    def send(self, line: str):
        try:
            self.process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            pass  # it has died, which the missing answer will show

    def receive(self, deadline: float):
        """The next answer; None if the process ends or the deadline passes first."""
        while b"\n" not in self.answered:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not data:
                return None
            self.answered += data
        line, self.answered = self.answered.split(b"\n", 1)
        return json.loads(line)

    def describe(self) -> str:
        code = self.process.poll()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        state = "still runs" if code is None else f"ended with {code}"
        return f"{state}; it wrote {self.answered.decode(errors='replace')!r} and to standard error:\n{text}"


class Ranks:
    """The ranks of a program, which get the same documents and answer them together."""

    def __init__(self, command: list, count: int):
        port = free_port()
        self.ranks = [Rank(command, rank_environment(rank, count, port)) for rank in range(count)]

    def __call__(self, document: dict, seconds: float = 120) -> list:
        """The answers, by rank."""
        for rank in self.ranks:
            rank.send(json.dumps(document))
        deadline = time.monotonic() + seconds * SCALE
        answers = [rank.receive(deadline) for rank in self.ranks]
        if None in answers:
            self.kill()
            told = "\n".join(f"rank {index} {rank.describe()}" for index, rank in enumerate(self.ranks))
            raise AssertionError(f"no answer from rank {answers.index(None)} to {json.dumps(document)}\n{told}")
        return answers

    def kill(self):
        for rank in self.ranks:
            rank.process.kill()

    def close(self, seconds: float = 60):
        """Ends the processes; all must succeed."""
        for rank in self.ranks:
            rank.process.stdin.close()
        try:
            for index, rank in enumerate(self.ranks):
                code = rank.process.wait(timeout=seconds * SCALE)
                assert code == 0, f"rank {index} {rank.describe()}"
        finally:
            self.kill()


def run_together(starts: list, seconds: float = 120):
    """Runs programs at the same time, each given as a command and an environment. All must succeed in time."""
    processes = []
    for command, environment in starts:
        output = tempfile.TemporaryFile()
        processes.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.STDOUT, env=environment), output))
    deadline = time.monotonic() + seconds * SCALE
    codes = [wait_for_end(process, deadline) for process, _ in processes]
    if any(code != 0 for code in codes):
        texts = []
        for (process, output), code in zip(processes, codes):
            output.seek(0)
            texts.append(f"{process.args} ended with {code}:\n{output.read().decode(errors='replace')}")
        raise AssertionError("\n".join(texts))


def wait_for_end(process, deadline: float):
    """The exit code; None if the process had to be stopped. SIGTERM comes first, so that a launcher ends its ranks."""
    try:
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
    return None
