"""Checks the includes of include/ and src/ against the table of rooms in docs/architecture.md.

Prints every finding as "file:line: message". Reads the names of files from standard input.
"""

import pathlib
import re
import sys

TABLE = pathlib.Path("docs/architecture.md")
ROW = re.compile(r"\| `(\w+)` \|[^|]*\|([^|]*)\|$")
INCLUDE = re.compile(r'\s*#\s*include\s*["<](?:accelerant/)?(\w+)/')
PLACE = re.compile(r"(?:include/accelerant|src)/(\w+)/")


def read_table():
    """Maps each room to the rooms that it may use, including itself."""
    table = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row:
            table[row[1]] = {row[1], *re.findall(r"`(\w+)`", row[2])}
    return table


def check(name, table):
    place = PLACE.match(name)
    if not place:
        return  # not in a room: accelerant.h, amp.h, version.h
    room = place[1]
    if room not in table:
        yield 1, f"the room '{room}' has no row in {TABLE}"
        return
    with open(name, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            include = INCLUDE.match(line)
            used = include[1] if include else room
            if used in table and used not in table[room]:
                yield number, f"'{room}' may not use '{used}' (see the table in {TABLE})"


def main():
    table = read_table()
    if not table:
        print(f"{TABLE}:1: no table of rooms")
    for room, uses in table.items():
        for unknown in sorted(uses - table.keys()):
            print(f"{TABLE}:1: '{room}' may use '{unknown}', which is not a room")
        if not pathlib.Path("src", room).is_dir():
            print(f"{TABLE}:1: src/{room} does not exist")
    for name in map(str.strip, sys.stdin):
        for line, message in check(name, table):
            print(f"{name}:{line}: {message}")


main()
