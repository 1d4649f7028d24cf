"""Figures, ratios, and results as JSON."""

import pytest
import result
from result import Figure, Result, Row


def row_of(key="step/fp16/cnn", unit="ms", **medians):
    return Row(key, key, unit, {side: Figure(value, value, value, 3) for side, value in medians.items()})


def result_of(*rows, kind="cpu-2"):
    return Result("2026-01-31", {"kind": kind, "name": "a machine"}, {"torch": "2.13"}, "quick", list(rows))


def test_a_figure_is_median_and_quartiles():
    assert Figure.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Figure(3.0, 2.0, 4.0, 5)
    assert Figure.of([7.0]) == Figure(7.0, 7.0, 7.0, 1)


def test_ratios_say_how_many_times_as_fast_each_form_of_ours_is():
    row = row_of(ours=2.0, captured=1.0, stock=6.0, accelerate=3.0, floor=0.5)
    assert row.ratios() == {"ours / stock": 3.0, "ours / accelerate": 1.5, "captured / stock": 6.0,
                            "captured / accelerate": 3.0}


def test_counts_have_no_ratios():
    assert row_of(unit="waits", ours=0.0, stock=2.0).ratios() == {}


def test_json_gives_back_what_was_written():
    row = row_of(ours=2.0)
    row.failures["compiled"] = "no answer within 60 s"
    row.facts["parameters"] = 12
    written = result_of(row)
    written.notes.append("µs and ms")
    assert result.from_json(result.to_json(written)) == written


def test_merged_runs_keep_the_later_row():
    first, second = result_of(row_of(ours=2.0), row_of("tail/tiny", ours=1.0)), result_of(row_of(ours=3.0))
    merged = result.merge([first, second])
    assert {row.key: row.figures["ours"].median for row in merged.rows} == {"tail/tiny": 1.0, "step/fp16/cnn": 3.0}


def test_runs_of_different_machines_do_not_merge():
    with pytest.raises(ValueError, match="different machines"):
        result.merge([result_of(), result_of(kind="h200")])
