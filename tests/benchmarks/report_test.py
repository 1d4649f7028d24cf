"""Tables."""

import pytest
import report
from result import Figure
from result_test import result_of, row_of


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_best_form_of_ours_is_compared():
    head, _, line = report.table([row_of(ours=2.0, captured=0.5, stock=4.0, accelerate=1.0)], spread=False)
    found = dict(zip(cells(head), cells(line)))
    assert found["plain libtorch"] == "4.00"
    assert found["x plain libtorch"] == "8.00"
    assert found["x Accelerate"] == "2.00"


def test_columns_that_nobody_fills_are_left_out():
    head = report.table([row_of(ours=2.0, stock=4.0)])[0]
    assert "torch.compile" not in head and "floor" not in head
    assert "x plain libtorch" in head
    assert "x plain libtorch" not in report.table([row_of(unit="MB", ours=2.0, stock=4.0)])[0]  # no time, so no ratio


def test_spread_failures_and_gaps_show():
    first, second = row_of("a", ours=2.0), row_of("b", ours=1.0, stock=1.0)
    first.figures["ours"] = Figure(2.0, 1.5, 2.5, 3)
    first.failures["compiled"] = "no answer within 60 s"
    head, _, line, other = report.table([first, second])
    found, beside = dict(zip(cells(head), cells(line))), dict(zip(cells(head), cells(other)))
    assert found["Accelerant"] == "2.00 (1.50 - 2.50)"
    assert found["Accelerate, torch.compile"] == "not measured"
    assert found["plain libtorch"] == found["x plain libtorch"] == "-"
    assert beside["x plain libtorch"] == "1.00"
    assert beside["Accelerate, torch.compile"] == "-"
    assert "- Accelerate, torch.compile, a: no answer within 60 s" in report.markdown(result_of(first, second))


@pytest.mark.parametrize("value, text", [(0, "0"), (0.98765, "0.988"), (3.14159, "3.14"), (31.4159, "31.4"),
                                         (31415.9, "31,416")])
def test_numbers_have_three_digits_that_count(value, text):
    assert report.number(value) == text


def test_only_what_is_between_the_markers_changes():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.between_markers(page, ["new", "lines"])
    assert once == f"before\n{report.BEGIN}\nnew\nlines\n{report.END}\nafter\n"
    assert report.between_markers(once, ["new", "lines"]) == once


@pytest.mark.parametrize("page", ["no markers", f"{report.BEGIN}\n", f"{report.END}\n{report.BEGIN}\n"])
def test_a_page_without_markers_is_an_error(page):
    with pytest.raises(ValueError):
        report.between_markers(page, ["new"])
