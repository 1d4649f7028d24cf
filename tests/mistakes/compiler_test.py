"""What the compiler says about misuse: the words that its messages must contain."""

import os
import pathlib
import re
import subprocess

import pytest

MISUSE = pathlib.Path(__file__).with_name("misuse.cpp")


@pytest.fixture(scope="session")
def messages():
    torch = [f"-isystem{folder}" for folder in os.environ["TORCH_INCLUDES"].split(":")]
    command = [os.environ["ACCELERANT_COMPILER"], "-std=c++20", "-fsyntax-only", "-fmax-errors=0",
               "-I" + os.environ["ACCELERANT_INCLUDE"], *torch, str(MISUSE)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, timeout=300)
    if "clang" in subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("the words are those of g++")
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("function, words", [
    ("prepares_a_number", "Accelerator::prepare takes models .* this argument is none of them"),
    ("prepares_a_temporary", "Accelerator::prepare borrows this object"),
    ("hides_tensors_in_an_output", "the output of this model's forward may hold tensors that cannot be seen"),
    ("accumulates_over_the_original", "Accelerator::accumulate takes prepared models"),
    ("uses_an_arrow", "a_prepared_model_has_no_arrow_call_it_as_model_x"),
    ("uses_an_arrow", r"call it as model\(x\)"),
    ("dereferences_a_loader", r"a Loader is not a pointer: write for \(auto&& batch : loader\)"),
    ("keeps_the_graph", r"backward\(loss, \{.retain_graph = true\}\)"),
    ("misspells_an_option", "no non-static data member named .mixed_precison"),
    ("uses_an_option_of_python", "to see which option the compiler refuses, write AcceleratorOptions"),
    ("orders_options_differently", "designator order"),
    ("does_not_name_the_window", r"write auto window = accelerator.accumulate\(model\);"),
])
def test_words(messages, function, words):
    assert f"{function}(" in MISUSE.read_text()
    assert re.search(words, messages.replace("\n", " "))
