"""Checks the documentation: docs/README.md links to every page, relative links lead to files and headings that exist,
and README.md names the version of the header.

Prints every finding as "file:line: message". Reads the names of files from standard input.
"""

import functools
import pathlib
import re
import sys

INDEX = pathlib.Path("docs/README.md")
README = pathlib.Path("README.md")
VERSION_HEADER = pathlib.Path("include/accelerant/version.h")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def links(page):
    """The line, the file and the heading of every link within the project."""
    # Code keeps its line breaks, so that the numbers of lines stay right.
    text = CODE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        for target, heading in LINK.findall(line):
            if "://" not in target and not target.startswith("mailto:"):
                yield number, target, heading


@functools.cache
def anchors(page):
    """The headings of a page as GitHub names them in links."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(pages):
    for page in pages:
        for line, target, heading in links(page):
            file = page.parent / target if target else page
            if not file.exists():
                yield f"{page}:{line}: the link leads to '{target}', which does not exist"
            elif heading and file.suffix == ".md" and heading not in anchors(file):
                yield f"{page}:{line}: '{target or page.name}' has no heading '#{heading}'"


def check_index(pages):
    if INDEX not in pages:
        yield f"{INDEX}:1: no index of the pages"
        return
    listed = {target for _, target, _ in links(INDEX)}
    for page in pages:
        if page.parent == INDEX.parent and page != INDEX and page.name not in listed:
            yield f"{INDEX}:1: no link to {page.name}"


def check_version():
    version = re.search(r'ACCELERANT_VERSION "([^"]+)"', VERSION_HEADER.read_text(encoding="utf-8"))[1]
    if f"| Version | {version} |" not in README.read_text(encoding="utf-8"):
        yield f"{README}:1: expected the row '| Version | {version} |', as in {VERSION_HEADER}"


def main():
    pages = [pathlib.Path(line.strip()) for line in sys.stdin if line.strip().endswith(".md")]
    for finding in [*check_links(pages), *check_index(pages), *check_version()]:
        print(finding)


main()
