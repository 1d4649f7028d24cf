"""Processes that answer requests: a line of words in, a line of JSON out.

A worker starts at its first request, and again after a failure, so that a worker that dies or hangs
costs that request and nothing else. The reported reason is the last thing it printed to stderr.
"""

import json
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time

REASON_LENGTH = 160


class WorkerFailed(Exception):
    """A request without an answer. The text says why."""


def last_line(text, otherwise):
    """The last line of a failed program's output. For Python that is the error, without the
    traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:REASON_LENGTH] if lines else otherwise


def end_group(process):
    """Ends a process that was started in its own session, and everything it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Worker:
    def __init__(self, command, environment):
        self.command, self.environment = command, environment
        self.process = self.errors = None
        self.pending = b""

    def start(self):
        if self.process is not None:
            return
        if not pathlib.Path(self.command[0]).exists():
            raise WorkerFailed(f"{pathlib.Path(self.command[0]).name} is not built")
        self.errors = tempfile.TemporaryFile(mode="w+b")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=self.environment, start_new_session=True)
        self.pending = b""

    def send(self, *words):
        self.start()
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self.stop("it ended")) from None

    def receive(self, deadline):
        """Returns the answer if it arrives within that many seconds."""
        end = time.monotonic() + deadline
        while b"\n" not in self.pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.stop()
                raise WorkerFailed(f"no answer within {deadline:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise WorkerFailed(self.stop("it ended without an answer"))
            self.pending += piece
        line, self.pending = self.pending.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(last_line(answer["error"], "it failed"))
        return answer

    def ask(self, *words, deadline):
        self.send(*words)
        return self.receive(deadline)

    def stop(self, otherwise=""):
        """Ends the process and returns the last thing it printed."""
        if self.process is None:
            return otherwise
        process, self.process = self.process, None
        for stream in (process.stdin, process.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass
        try:
            process.wait(timeout=0.0 if otherwise == "" else 2.0)
        except subprocess.TimeoutExpired:
            pass
        end_group(process)
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        self.errors.close()
        return last_line(text, otherwise)

    def close(self):
        """Lets the process end by itself by closing its input."""
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            pass
        self.stop()


class Team:
    """Several workers that get the same requests. The answer of the slowest counts."""

    def __init__(self, workers):
        self.workers = workers

    def ask(self, *words, deadline):
        try:
            for worker in self.workers:
                worker.send(*words)
            answers = [worker.receive(deadline) for worker in self.workers]
        except WorkerFailed:
            for worker in self.workers:  # the others would wait for the failed one
                worker.stop()
            raise
        return {name: max(answer[name] for answer in answers) for name in answers[0]}

    def close(self):
        for worker in self.workers:
            if worker.process is not None:
                worker.process.stdin.close()
        for worker in self.workers:
            worker.close()


def run_once(command, environment, deadline):
    """Returns what a program that takes no requests prints."""
    if not pathlib.Path(command[0]).exists():
        raise WorkerFailed(f"{pathlib.Path(command[0]).name} is not built")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
                          start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            end_group(process)
            raise WorkerFailed(f"no answer within {deadline:.0f} s") from None
    if process.returncode != 0:
        raise WorkerFailed(last_line(errors, f"it ended with status {process.returncode}"))
    return output
