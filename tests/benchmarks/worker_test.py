"""Processes that answer, die, hang or print nonsense."""

import os
import sys
import time

import pytest
from worker import Team, Worker, WorkerFailed, last_line, run_once

ECHO = """
import json, os, sys, time
for line in sys.stdin:
    words = line.split()
    if words[0] == "die":
        print("the reason", file=sys.stderr)
        sys.exit(3)
    if words[0] == "hang":
        time.sleep(60)
    if words[0] == "error":
        print(json.dumps({"error": "cannot"}), flush=True)
        continue
    print(json.dumps({"value": float(words[0]), "process": os.getpid()}), flush=True)
"""


@pytest.fixture
def worker():
    made = Worker([sys.executable, "-c", ECHO], dict(os.environ))
    yield made
    made.close()


def test_it_answers_and_stays(worker):
    first, second = worker.ask(1, deadline=20), worker.ask(2, deadline=20)
    assert (first["value"], second["value"]) == (1, 2)
    assert first["process"] == second["process"]


def test_one_that_dies_says_why_and_is_started_again(worker):
    first = worker.ask(1, deadline=20)
    with pytest.raises(WorkerFailed, match="the reason"):
        worker.ask("die", deadline=20)
    assert worker.ask(1, deadline=20)["process"] != first["process"]


def test_one_that_hangs_is_given_up(worker):
    worker.ask(1, deadline=20)
    start = time.monotonic()
    with pytest.raises(WorkerFailed, match="no answer within 0 s"):
        worker.ask("hang", deadline=0.2)
    assert time.monotonic() - start < 20
    assert worker.ask(3, deadline=20)["value"] == 3


def test_an_error_that_is_answered_leaves_it_running(worker):
    first = worker.ask(1, deadline=20)
    with pytest.raises(WorkerFailed, match="cannot"):
        worker.ask("error", deadline=20)
    assert worker.ask(1, deadline=20)["process"] == first["process"]


def test_a_program_that_is_not_there():
    with pytest.raises(WorkerFailed, match="bench-none is not built"):
        Worker(["/nowhere/bench-none"], {}).ask("x", deadline=1)
    with pytest.raises(WorkerFailed, match="bench-none is not built"):
        run_once(["/nowhere/bench-none"], {}, 1)


def test_the_slowest_of_a_team_counts():
    script = "import sys\nfor line in sys.stdin: print('{\"seconds\": %s}' % sys.argv[1], flush=True)"
    team = Team([Worker([sys.executable, "-c", script, value], dict(os.environ)) for value in ("1.0", "2.5")])
    assert team.ask("go", deadline=20) == {"seconds": 2.5}
    team.close()


def test_a_program_that_runs_once():
    environment = dict(os.environ)
    assert run_once([sys.executable, "-c", "print('done')"], environment, 20) == "done\n"
    with pytest.raises(WorkerFailed, match="ValueError: bad"):
        run_once([sys.executable, "-c", "raise ValueError('bad')"], environment, 20)
    with pytest.raises(WorkerFailed, match="no answer"):
        run_once([sys.executable, "-c", "import time; time.sleep(60)"], environment, 0.2)


def test_the_reason_is_the_last_line_that_says_something():
    assert last_line("Traceback\n  File\nValueError: bad\n\n", "?") == "ValueError: bad"
    assert last_line(" \n", "it ended") == "it ended"
