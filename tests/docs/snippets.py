"""Turns the C++ snippets of documentation pages into one program: snippets.py program.cpp page.md...

Each snippet becomes a function. What it assumes is in fixtures/<page>.h beside this script: includes and
declarations, then the line

    // ---- in each snippet ----

and then the code for the start of each function. Every page has a namespace of its own. The program runs
all snippets, or those of the pages named as arguments.

A snippet with a main() is a whole program: it gets a namespace instead of the fixture, and its main()
becomes the function, so it must not return a value.
"""

import pathlib
import re
import sys

MARK = "// ---- in each snippet ----\n"
SNIPPET = re.compile(r"^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
MAIN_FUNCTION = "int main() {"

MAIN = """\
namespace {{

struct Snippet {{
  std::string_view page;
  int line;
  void (*run)();
}};

constexpr Snippet kSnippets[] = {{
{table}}};

}}  // namespace

int main(int argc, char** argv) {{
  const std::vector<std::string_view> pages(argv + 1, argv + argc);
  int count = 0;
  for (const auto& [page, line, run] : kSnippets) {{
    if (!pages.empty() && std::find(pages.begin(), pages.end(), page) == pages.end()) continue;
    try {{
      run();
    }} catch (const std::exception& error) {{
      std::cerr << "docs/" << page << ".md:" << line << ": " << error.what() << '\\n';
      return 1;
    }}
    ++count;
  }}
  std::cout << count << " snippets ran\\n";
  return count > 0 ? 0 : 1;  // a page without snippets is no page of this program
}}
"""


def page_source(page):
    """The includes of a page, its namespace, and the table rows for its snippets."""
    name = page.stem
    fixture_file = pathlib.Path(__file__).parent / "fixtures" / f"{name}.h"
    fixture = fixture_file.read_text()
    if fixture.count(MARK) != 1:
        sys.exit(f"{fixture_file}: the line '{MARK.strip()}' must be there once")
    declarations, prologue = fixture.split(MARK)
    includes = INCLUDE.findall(declarations)
    declarations = re.sub(r"^#(include .*|pragma once)\n", "\n", declarations, flags=re.MULTILINE)
    prologue_line = fixture[: fixture.index(MARK)].count("\n") + 2

    # Compiler messages name lines of the page and the fixture, not of the program.
    parts = [f"namespace {name} {{\n#line 1 \"{fixture_file}\"\n{declarations}"]
    rows = []
    text = page.read_text()
    for number, match in enumerate(SNIPPET.finditer(text)):
        line = text[: match.start(1)].count("\n") + 1
        snippet = match.group(1)
        function = f"snippet_{number}"
        if MAIN_FUNCTION in snippet:
            includes += INCLUDE.findall(snippet)
            program = INCLUDE.sub("\n", snippet).replace(MAIN_FUNCTION, "void run() {")
            parts.append(f'namespace {function} {{\n#line {line} "{page}"\n{program}}}\n')
            function += "::run"
        else:
            parts.append(
                f"void {function}() {{\n"
                f'#line {prologue_line} "{fixture_file}"\n{prologue}{{\n'
                f'#line {line} "{page}"\n{snippet}}}\n}}\n'
            )
        rows.append(f'    {{"{name}", {line}, {name}::{function}}},\n')
    parts.append(f"}}  // namespace {name}\n\n")
    return includes, "".join(parts), "".join(rows)


def main(program, *pages):
    includes = ["#include <algorithm>\n", "#include <exception>\n", "#include <iostream>\n"]
    includes += ["#include <string_view>\n", "#include <vector>\n"]
    namespaces, table = "", ""
    for page in pages:
        page_includes, namespace, rows = page_source(pathlib.Path(page))
        includes += [include for include in page_includes if include not in includes]
        namespaces += namespace
        table += rows
    pathlib.Path(program).write_text("".join(includes) + "\n" + namespaces + MAIN.format(table=table))


if __name__ == "__main__":
    main(*sys.argv[1:])
