"""The order in which sides are measured, and what happens to those that fail."""

import pytest
from rounds import Case, Contender, disagreement, measure
from worker import WorkerFailed


class Clockwork:
    """A side with given values for its rounds. It records when it was measured."""

    def __init__(self, name, values, journal):
        self.name, self.values, self.journal = name, list(values), journal

    def measure(self):
        self.journal.append(self.name)
        value = self.values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def failing(reason):
    def fail():
        raise WorkerFailed(reason)
    return fail


def case_of(contenders, unit="ms", rounds=None):
    return Case("a/b", "title", unit, lambda: contenders, rounds)


def test_sides_take_turns_and_the_order_changes():
    journal = []
    sides = {name: Contender(Clockwork(name, [0.001, 0.003, 0.002], journal).measure) for name in ("ours", "stock")}
    row = measure(case_of(sides), 3)
    assert journal == ["ours", "stock", "stock", "ours", "ours", "stock"]
    assert row.figures["ours"].median == pytest.approx(2.0)
    assert row.figures["ours"].rounds == 3


def test_a_failure_costs_its_side_and_nothing_else():
    journal = []
    sides = {"ours": Contender(Clockwork("ours", [1, 2, 3], journal).measure),
             "compiled": Contender(Clockwork("compiled", [1, WorkerFailed("it ended")], journal).measure),
             "accelerate": Contender(lambda: 1.0, failing("no answer within 60 s")),
             "stock": "not built"}
    row = measure(case_of(sides, "s"), 3)
    assert list(row.figures) == ["ours"]
    assert row.failures == {"compiled": "it ended", "accelerate": "no answer within 60 s", "stock": "not built"}
    assert journal.count("compiled") == 2


def test_a_case_may_have_its_own_number_of_rounds():
    assert measure(case_of({"ours": Contender(lambda: 0.0)}, "waits", rounds=1), 5).figures["ours"].rounds == 1


def test_sides_that_do_other_work_are_not_compared():
    def contender(parameters, losses):
        return Contender(lambda: 1.0, lambda: {"parameters": parameters, "losses": losses})

    row = measure(case_of({"ours": contender(10, [4.0, 3.9]), "stock": contender(10, [4.1, 4.0]),
                           "accelerate": contender(11, [4.0, 3.9]), "compiled": contender(10, [4.0, 5.0])}), 1)
    assert list(row.figures) == ["ours", "stock"]
    assert "11 parameters instead of 10" in row.failures["accelerate"]
    assert "at step 1" in row.failures["compiled"]
    assert row.facts["parameters"] == 10


def test_a_loss_that_is_no_number_disagrees():
    reference = {"parameters": 1, "losses": [1.0]}
    assert disagreement({"parameters": 1, "losses": [float("nan")]}, reference)
    assert disagreement({"parameters": 1, "losses": [1.05]}, reference) is None
