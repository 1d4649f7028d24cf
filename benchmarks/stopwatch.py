"""What stopwatch.h does, in Python."""

import statistics
import time

TRIAL, LONGEST, LAPS = 2, 200, 4


def seconds_per_step(seconds, step, wait):
    """The median of at least three laps, measured for about that many seconds, with one wait for
    the device per lap."""
    step()
    wait()
    start = time.perf_counter()
    for _ in range(TRIAL):
        step()
    wait()
    trial = max((time.perf_counter() - start) / TRIAL, 1e-7)
    lap = min(max(int(seconds / LAPS / trial), 1), LONGEST)
    laps = []
    begin = time.perf_counter()
    while len(laps) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(lap):
            step()
        wait()
        laps.append((time.perf_counter() - start) / lap)
    return statistics.median(laps)
