"""Rounds in which the sides take turns, so that a slow moment of the machine affects all of
them."""

import dataclasses
import typing

from result import UNITS, Figure, Row
from worker import WorkerFailed

LOSS_TOLERANCE = 0.1


@dataclasses.dataclass
class Contender:
    """One side of a row."""

    measure: typing.Callable  # one round: seconds, or whatever the row's unit counts
    prepare: typing.Callable = None  # once before the rounds; returns facts such as parameters and first losses


@dataclasses.dataclass
class Case:
    """A row that is still to be measured."""

    key: str
    title: str
    unit: str
    contenders: typing.Callable  # returns {side: Contender, or the reason why there is none}
    rounds: int = None  # if different from the rounds of the run


def disagreement(facts, reference):
    """Why two sides cannot have done the same work, or None."""
    if facts.get("parameters") != reference.get("parameters"):
        return f"different work: {facts.get('parameters')} parameters instead of {reference.get('parameters')}"
    for step, (loss, expected) in enumerate(zip(facts.get("losses", []), reference.get("losses", []))):
        if not abs(loss - expected) <= LOSS_TOLERANCE * abs(expected):
            return f"different work: loss {loss:.4g} instead of {expected:.4g} at step {step}"
    return None


def prepare_all(case, row):
    """The sides that can run and that do the same work as the first side that reports its work."""
    ready, reference = {}, None
    for side, contender in case.contenders().items():
        if isinstance(contender, str):
            row.failures[side] = contender
            continue
        try:
            facts = contender.prepare() if contender.prepare else {}
        except WorkerFailed as failure:
            row.failures[side] = str(failure)
            continue
        if "parameters" in facts:
            reference = reference or facts
            reason = disagreement(facts, reference)
            if reason:
                row.failures[side] = reason
                continue
            row.facts["parameters"] = facts["parameters"]
            row.facts.setdefault("first losses", {})[side] = facts.get("losses", [])
        ready[side] = contender
    return ready


def measure(case, rounds):
    row = Row(case.key, case.title, case.unit)
    ready = prepare_all(case, row)
    values = {side: [] for side in ready}
    for number in range(case.rounds or rounds):
        # The first side may find a colder machine, so the order alternates.
        for side in list(ready) if number % 2 == 0 else list(reversed(ready)):
            if side in row.failures:
                continue
            try:
                values[side].append(ready[side].measure() * (UNITS[case.unit] or 1.0))
            except WorkerFailed as failure:
                row.failures[side] = str(failure)
    row.figures = {side: Figure.of(values[side]) for side in ready if side not in row.failures}
    return row
