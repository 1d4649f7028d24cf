"""The list of mistakes names tests that exist."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def rows():
    for line in (HERE / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "/" in cells[1]:
            yield cells


@pytest.mark.parametrize("mistake, file, test", rows())
def test_the_mistake_has_a_test(mistake, file, test):
    assert test in (HERE.parent / file).read_text(), mistake


def test_there_are_sixty():
    assert len(list(rows())) >= 60
