"""Talks to accelerant-replay, one process for a whole run."""

import functools
import json
import math
import os
import random
import subprocess


@functools.cache
def seed_from_environment() -> int:
    """The seed of this run's random tests; set ACCELERANT_SEED to repeat a failing one."""
    seed = int(os.environ.get("ACCELERANT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nACCELERANT_SEED={seed}")
    return seed


class Replay:
    def __init__(self, topic: str, environment: dict | None = None, deadline: int | None = None):
        """The process is ended after `deadline` seconds."""
        limit = ["timeout", str(deadline)] if deadline else []
        self.process = subprocess.Popen(
            [*limit, os.environ["ACCELERANT_REPLAY"], topic, "--lines"],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, document: dict) -> dict:
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"accelerant-replay died with {self.process.wait()} on {json.dumps(document)}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0


def to_json(number: float):
    """A number as the protocol writes it."""
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return number


def from_json(number) -> float:
    return float(number)


def tensor_to_json(tensor):
    return None if tensor is None else [to_json(value) for value in tensor.double().flatten().tolist()]


def close_enough(left, right, relative: float, absolute: float = 0.0) -> bool:
    """Compares results of the protocol: structure exactly, numbers within the tolerance."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            close_enough(left[key], right[key], relative, absolute) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            close_enough(a, b, relative, absolute) for a, b in zip(left, right)
        )
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return math.isclose(left, right, rel_tol=relative, abs_tol=absolute)
    return left == right
