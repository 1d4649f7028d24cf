"""How long a launch lasts after the death of a rank. The figures are printed. A busy machine delays some of them, so
that only the median is held to the promise, with room for slow machines.

ACCELERANT_ATTACK_TRIALS=100 for the long form.
"""

import random
import signal
import statistics
import threading
import time

import pytest
from attack import SCALE, SEED, Figures, Run, extent, send

TRIALS = extent("TRIALS", 3)
SETTINGS = {"samples": 100_000, "epochs": 1, "batch": 2, "width": 32, "resume": "no"}  # longer than any trial


class End:
    """When the process ended, seen by a thread that does nothing but wait for it."""

    def __init__(self, process):
        self.moment = None
        self.thread = threading.Thread(target=self.wait, args=(process,))
        self.thread.start()

    def wait(self, process):
        process.wait()
        self.moment = time.monotonic()


@pytest.mark.parametrize("processes, trials", [(2, TRIALS), (8, max(1, TRIALS // 2))], ids=["2_ranks", "8_ranks"])
def test_from_the_death_of_a_rank_to_the_end_of_the_launch(tmp_path, processes, trials):
    chooser = random.Random(f"{SEED}-{processes}")
    launch = Figures(f"{processes} ranks, from SIGKILL of one to the end of the launch")
    everybody = Figures(f"{processes} ranks, until no process is left")
    for trial in range(trials):
        training = Run(tmp_path, SETTINGS, processes, name=f"log{trial}")
        try:
            training.wait_for_steps(2)
            ranks = training.ranks()
            assert len(ranks) == processes, training.errors()
            victim = ranks[chooser.randrange(processes)]
            end = End(training.process)
            time.sleep(chooser.uniform(0, 0.05))
            killed = time.monotonic()
            assert send(victim, signal.SIGKILL)
            code = training.finish()
            everybody.seconds.append(time.monotonic() - killed)
            end.thread.join()
        finally:
            training.kill_all()
        launch.seconds.append(end.moment - killed)
        assert code == 128 + signal.SIGKILL, training.errors()
        assert f"of {processes} failed: SIGKILL (exit code 137)" in training.errors(), training.errors()
        assert launch.seconds[-1] < 25 * SCALE, training.errors()
    print(f"\n{launch}\n{everybody}")
    assert statistics.median(launch.seconds) < 2 * SCALE
