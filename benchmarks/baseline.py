"""Compares the ratios of a run with stored ratios from the same kind of machine."""

import dataclasses

TOLERANCE = 0.15


@dataclasses.dataclass
class Fall:
    """A ratio that is lower than it was."""

    key: str
    ratio: str
    now: float
    stored: float

    def __str__(self):
        return (f"{self.key}: {self.ratio} is {self.now:.2f}, {100 * (1 - self.now / self.stored):.0f} % below the stored "
                f"{self.stored:.2f}")


def falls_of_row(row, stored, tolerance=TOLERANCE):
    """A ratio that only the stored run has is not a fall: a competitor may be missing here."""
    now = row.ratios()
    falls = [Fall(row.key, name, now[name], before) for name, before in stored.ratios().items()
             if name in now and now[name] < before * (1.0 - tolerance)]
    return falls + [Fall(row.key, f"{side}: {row.failures[side]}", 0.0, 1.0)
                    for side in ("ours", "captured") if side in stored.figures and side in row.failures]


def falls(result, stored, tolerance=TOLERANCE):
    """Falls by row key, for rows that both results have."""
    found = {}
    for row in result.rows:
        before = stored.row(row.key)
        if before is not None and (fallen := falls_of_row(row, before, tolerance)):
            found[row.key] = fallen
    return found


def confirmed(found, stored, measure_again, repeats, tolerance=TOLERANCE):
    """The falls that persist when their rows are measured again: noise goes away, a slower program
    does not."""
    for _ in range(repeats):
        again = {}
        for key, fallen in found.items():
            names = {fall.ratio for fall in fallen}
            still = [fall for fall in falls_of_row(measure_again(key), stored.row(key), tolerance)
                     if fall.ratio in names]
            if still:
                again[key] = still
        found = again
    return [fall for fallen in found.values() for fall in fallen]
