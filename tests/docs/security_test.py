"""docs/security.md says which test shows each promise: those tests exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
TESTS = ROOT / "tests"

FILE = re.compile(r"[\w/]+_test\.(py|cpp)|tests/[\w/]+")
PYTHON_TEST = re.compile(r"test_\w+")
CPP_TEST = re.compile(r"(\w+\.)?([A-Z][A-Za-z]*[a-z][A-Za-z]*)")  # a test, a test of a suite, or a suite


def names():
    return sorted(set(re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8"))))


def sources(suffix):
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob(f"*{suffix}")))


def test_every_promise_names_tests():
    table = PAGE.read_text(encoding="utf-8").split("| promise | shown by |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(table) > 10
    silent = [row for row in table if "`" not in row.split(" | ")[1]]
    assert not silent, silent


def test_named_tests_exist():
    python, cpp = sources(".py"), sources(".cpp")
    missing, known = [], 0
    for name in names():
        if FILE.fullmatch(name):
            found = (ROOT / name).exists() or (TESTS / name).is_file() or list(TESTS.glob(f"*/{name}"))
        elif PYTHON_TEST.fullmatch(name):
            found = re.search(rf"^def {name}\(", python, re.MULTILINE)
        elif match := CPP_TEST.fullmatch(name):
            found = re.search(rf"TEST(_F|_P)?\((\w+, )?{match[2]}[,)]|\(\w+, {match[2]}, \d", cpp)
        else:
            continue  # an option, a program, a file of a checkpoint
        known += 1
        if not found:
            missing.append(name)
    assert known > 30
    assert not missing, "named in docs/security.md, but not in tests/: " + ", ".join(missing)
