"""A training that is told to stop saves its state and exits with code 75. The same command resumes
it, to the same bits.

Ctrl-C ends it at once; it then resumes from the last save.
"""

import os
import random
import re
import signal
import subprocess
import time

import pytest
import replay
from resumable import Running, assert_same, name_of_case, numbers_of, start, undisturbed

SEED = replay.seed_from_environment()
SLOW = "training.batch:sleep=15"  # slow enough to be stopped
SETTINGS = {"samples": 32, "epochs": 3, "batch": 4}
SAVED = re.compile(r"accelerant: (SIG\w+) received: state saved in (\S+), exit code 75$")

CASES = [
    # processes, signal, who gets it, settings
    (1, signal.SIGTERM, "program", {}),
    (1, signal.SIGUSR1, "program", {"save_every": 2, "async": 1, "accumulate": 3, "precision": "fp16"}),
    (2, signal.SIGTERM, "launcher", {"accumulate": 2}),
    (2, signal.SIGUSR1, "launcher", {"save_every": 3, "async": 1}),
    (2, signal.SIGTERM, "a rank", {"precision": "fp16", "save_every": 1}),
    (2, signal.SIGUSR1, "a rank", {"two": 1, "accumulate": 2}),
]


def send(training, number, receiver, chooser):
    if receiver == "a rank":
        os.kill(training.pid_of_rank(chooser.randrange(training.processes)), number)
    else:
        os.kill(training.process.pid, number)


def expect_stopped(code, errors, number, project, processes):
    """Expects exit code 75, and a line that names the newest checkpoint."""
    text = "\n".join(errors)
    assert code == 75, text
    said = [found for line in errors if (found := SAVED.search(line))]
    assert len(said) == processes, text
    newest = f"{project}/checkpoints/checkpoint_{numbers_of(project)[-1]}"
    assert {found.groups() for found in said} == {(number.name, newest)}, text
    if processes > 1:
        assert any(line.startswith("[accelerant] stopped on request") for line in errors), text


@pytest.mark.parametrize("processes, number, receiver, settings", CASES, ids=name_of_case)
def test_told_to_stop(tmp_path, processes, number, receiver, settings):
    chooser = random.Random(f"{SEED}-{processes}-{number}-{receiver}")
    settings = {**SETTINGS, **settings, "project": tmp_path / "project"}
    log = tmp_path / "log"
    expected = undisturbed(tmp_path, settings, processes)
    for _ in range(2):
        training = Running(log, settings, processes, SLOW)
        training.wait_for_batches(chooser.randint(1, 3))
        send(training, number, receiver, chooser)
        code, errors = training.finish()
        expect_stopped(code, errors, number, settings["project"], processes)
    done = start(log, settings, processes)
    assert done.returncode == 0, done.stderr
    assert_same(log, expected)


@pytest.mark.parametrize("processes", [1, 2], ids=name_of_case)
def test_interrupted_by_the_keyboard(tmp_path, processes):
    """Ctrl-C saves nothing; the last save is used."""
    chooser = random.Random(f"{SEED}-{processes}")
    settings = {**SETTINGS, "save_every": 2, "accumulate": 2, "project": tmp_path / "project"}
    log = tmp_path / "log"
    expected = undisturbed(tmp_path, settings, processes)
    training = Running(log, settings, processes, SLOW)
    training.wait_for_batches(chooser.randint(3, 6))
    os.killpg(training.process.pid, signal.SIGINT)  # as a terminal does
    code, errors = training.finish()
    assert code == (-signal.SIGINT if processes == 1 else 128 + signal.SIGINT), errors
    assert not any("state saved" in line for line in errors)
    done = start(log, settings, processes)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    assert_same(log, expected)


def test_a_second_signal_ends_it_at_once(tmp_path):
    """No update follows, so nothing can be saved; earlier saves remain."""
    settings = {**SETTINGS, "save_every": 1, "project": tmp_path / "project"}
    log = tmp_path / "log"
    expected = undisturbed(tmp_path, settings, 1)
    training = Running(log, settings, 1, "training.batch:hang@3")
    training.wait_for_batches(3)
    while numbers_of(settings["project"]) != [0, 1, 2]:
        time.sleep(0.01)
    os.kill(training.process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        training.process.wait(timeout=2.2)  # a sooner signal is the same request
    os.kill(training.process.pid, signal.SIGTERM)
    code, _ = training.finish()
    assert code == -signal.SIGTERM
    assert start(log, settings).returncode == 0
    assert_same(log, expected)
