"""docs/parity.md has one row for every public Python name, and no row for a name that is gone.

The names come from the installed packages, not from a list typed in here, so a new release of
torch or accelerate that adds or drops a name fails this test until the document says what
Accelerant does about it.

What counts as a public name (a leading underscore is never public):

* torch.amp.GradScaler    every attribute of the class;
* torch.amp               every argument of autocast's constructor, written `autocast(dtype)`, and
                          every name of the module that is not a submodule. `GradScaler` is left
                          out, because it has a table of its own;
* accelerate.Accelerator  every attribute of the class, and every attribute that one of its methods
                          assigns on `self`. The test reads those from the source of the class. This
                          needs no Accelerator, and also finds attributes that are set only in some
                          configurations (`deepspeed_config`);
* accelerate              every name of the module that is not a submodule;
* DistributedDataParallel every argument of the constructor, written `DDP(module)`, and every name
                          that the class itself defines. Only for torch 2.13, since versions differ;
* kwargs of accelerate    every field of DistributedDataParallelKwargs and InitProcessGroupKwargs;
* accelerate.utils.operations, accelerate.utils.modeling
                          every function and class that the module defines.
"""

import ast
import dataclasses
import inspect
import pathlib
import re
import textwrap
import types

import pytest

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "parity.md"
COLUMNS = ["Python name", "C++ name", "Status", "Note"]
STATUSES = {"same", "differs", "planned", "not offered"}
NOTE_REQUIRED = {"differs": "how", "not offered": "why"}
NO_CPP_NAME = "—"


# --- The Python side: what each table must list -------------------------------------------------


def public(names):
    return {name for name in names if not name.startswith("_")}


def module_names(module):
    members = vars(module)
    return public(name for name in members if not isinstance(members[name], types.ModuleType))


def attributes_set_on_self(cls):
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    return public(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def grad_scaler_names():
    torch = pytest.importorskip("torch")
    return public(dir(torch.amp.GradScaler))


def torch_amp_names():
    torch = pytest.importorskip("torch")
    arguments = [name for name in inspect.signature(torch.amp.autocast.__init__).parameters if name != "self"]
    return (module_names(torch.amp) - {"GradScaler"}) | {f"autocast({name})" for name in arguments}


def accelerator_names():
    accelerate = pytest.importorskip("accelerate")
    return public(dir(accelerate.Accelerator)) | attributes_set_on_self(accelerate.Accelerator)


def accelerate_names():
    return module_names(pytest.importorskip("accelerate"))


def data_parallel_names():
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the document has the arguments of torch 2.13")
    data_parallel = torch.nn.parallel.DistributedDataParallel
    arguments = [name for name in inspect.signature(data_parallel.__init__).parameters if name != "self"]
    return public(vars(data_parallel)) | {f"DDP({name})" for name in arguments}


def field_names(class_name):
    accelerate = pytest.importorskip("accelerate")
    return public(field.name for field in dataclasses.fields(getattr(accelerate, class_name)))


def defined_names(module_name):
    module = pytest.importorskip(module_name)
    members = vars(module)
    return public(name for name in members if getattr(members[name], "__module__", None) == module_name)


# Heading of each table in the document, and where its names come from.
TABLES = {
    "torch.amp.GradScaler": grad_scaler_names,
    "torch.amp.autocast": torch_amp_names,
    "accelerate.Accelerator": accelerator_names,
    "accelerate": accelerate_names,
    "torch.nn.parallel.DistributedDataParallel": data_parallel_names,
    "accelerate.DistributedDataParallelKwargs": lambda: field_names("DistributedDataParallelKwargs"),
    "accelerate.InitProcessGroupKwargs": lambda: field_names("InitProcessGroupKwargs"),
    "accelerate.utils.operations": lambda: defined_names("accelerate.utils.operations"),
    "accelerate.utils.modeling": lambda: defined_names("accelerate.utils.modeling"),
}


# --- The document -------------------------------------------------------------------------------


def cells(line):
    """The cells of one table line; `\\|` inside a cell is a plain bar."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def read_table(text, title):
    """Rows of the only table under the heading "## `title`": lists of four cells."""
    section = re.search(rf"^## `{re.escape(title)}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"{DOCUMENT.name} has no section '## `{title}`'"
    lines = [cells(line) for line in section.group(1).splitlines() if line.startswith("|")]
    assert lines and lines[0] == COLUMNS, f"the table of `{title}` must have the columns {COLUMNS}"
    return lines[2:]


def problems(text, title, expected):
    """Everything wrong with one table, as sentences; empty if nothing is wrong."""
    found, listed = [], []
    for row in read_table(text, title):
        if len(row) != len(COLUMNS):
            found.append(f"a row has {len(row)} cells instead of {len(COLUMNS)}: {row}")
            continue
        name, cpp_name, status, note = row
        listed.append(name.strip("`"))
        if not re.fullmatch(r"`[^`]+`", name):
            found.append(f"{name}: write the Python name in backticks and nothing else")
        if status not in STATUSES:
            found.append(f"{name}: unknown status '{status}', expected one of {sorted(STATUSES)}")
        if status in NOTE_REQUIRED and not note:
            found.append(f"{name}: '{status}' needs a note that says {NOTE_REQUIRED[status]}")
        if (status == "not offered") != (cpp_name == NO_CPP_NAME) or not cpp_name:
            found.append(f"{name}: the C++ name is '{NO_CPP_NAME}' exactly when the status is 'not offered'")
    repeated = sorted({name for name in listed if listed.count(name) > 1})
    missing = sorted(expected - set(listed))
    gone = sorted(set(listed) - expected)
    if repeated:
        found.append(f"more than one row: {', '.join(repeated)}")
    if missing:
        found.append(f"no row: {', '.join(missing)}")
    if gone:
        found.append(f"a row, but no such name in the installed Python package: {', '.join(gone)}")
    return found


@pytest.fixture(scope="module")
def text():
    return DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("title", TABLES)
def test_every_public_name_has_one_true_row(text, title):
    found = problems(text, title, TABLES[title]())
    assert not found, f"docs/parity.md, table `{title}`:\n  " + "\n  ".join(found)


# --- The check itself ---------------------------------------------------------------------------

SAMPLE = """\
## `thing`

| Python name | C++ name | Status | Note |
|---|---|---|---|
| `one` | `accelerant::one` | same | |
| `two` | — | not offered | Needs a Python interpreter. |
"""


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("", "", None),
        ("| `one` | `accelerant::one` | same | |\n", "", "no row: one"),
        ("`one`", "`uno`", "no such name in the installed Python package: uno"),
        ("| `two`", "| `one`", "more than one row: one"),
        ("| same |", "| equal |", "unknown status 'equal'"),
        ("| same |", "| differs |", "'differs' needs a note that says how"),
        ("Needs a Python interpreter.", "", "'not offered' needs a note that says why"),
        ("| `accelerant::one` |", "| |", "the C++ name is"),
        ("| — |", "| `accelerant::two` |", "the C++ name is"),
        ("| same | |", "| same |", "3 cells instead of 4"),
    ],
)
def test_the_check_notices(old, new, complaint):
    found = problems(SAMPLE.replace(old, new, 1), "thing", {"one", "two"})
    if complaint is None:
        assert found == []
    else:
        assert complaint in "\n".join(found)
