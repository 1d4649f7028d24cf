"""What counts as slower than before."""

import pytest
from baseline import confirmed, falls, falls_of_row
from result_test import result_of, row_of


def test_within_the_tolerance_nothing_fell():
    stored = row_of(ours=1.0, stock=2.0)
    assert falls_of_row(row_of(ours=1.0, stock=1.71), stored) == []
    assert falls_of_row(row_of(ours=1.0, stock=9.0), stored) == []


def test_a_ratio_under_it_is_named():
    fall, = falls_of_row(row_of(ours=2.0, stock=2.0, accelerate=8.0), row_of(ours=1.0, stock=2.0, accelerate=4.0))
    assert (fall.key, fall.ratio, fall.now, fall.stored) == ("step/fp16/cnn", "ours / stock", 1.0, 2.0)
    assert "50 % below" in str(fall)


def test_a_slow_machine_is_no_fall():
    assert falls_of_row(row_of(ours=10.0, stock=20.0), row_of(ours=1.0, stock=2.0)) == []


def test_a_competitor_that_is_missing_is_no_fall_but_ours_is():
    stored = row_of(ours=1.0, compiled=2.0)
    missing = row_of(ours=1.0)
    missing.failures["compiled"] = "no compiler"
    assert falls_of_row(missing, stored) == []
    broken = row_of(compiled=2.0)
    broken.failures["ours"] = "it ended"
    assert "it ended" in str(falls_of_row(broken, stored)[0])


def test_only_rows_that_both_have_are_compared():
    now = result_of(row_of("a", ours=2.0, stock=2.0), row_of("b", ours=2.0, stock=2.0))
    assert list(falls(now, result_of(row_of("a", ours=1.0, stock=2.0), row_of("c", ours=1.0, stock=2.0)))) == ["a"]


def measured_again(*stocks):
    """A function that returns a new row for each measurement, and the list of keys that it was asked for."""
    left, asked = list(stocks), []

    def again(key):
        asked.append(key)
        return row_of(key, ours=1.0, stock=left.pop(0))
    return again, asked


@pytest.mark.parametrize("stocks, fell, asked", [((1.9,), False, 1), ((1.0, 1.9), False, 2), ((1.0, 1.1), True, 2)])
def test_a_fall_counts_only_if_it_stays(stocks, fell, asked):
    stored = result_of(row_of("a", ours=1.0, stock=2.0))
    found = falls(result_of(row_of("a", ours=1.0, stock=1.0)), stored)
    again, keys = measured_again(*stocks)
    assert bool(confirmed(found, stored, again, repeats=2)) == fell
    assert keys == ["a"] * asked


def test_nothing_is_measured_again_where_nothing_fell():
    again, keys = measured_again()
    assert confirmed({}, result_of(), again, repeats=2) == [] and keys == []
