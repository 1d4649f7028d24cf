"""Writes the tables of results: as Markdown, or into a page between its markers.

  render.py run1.json run2.json --save benchmarks/results/2026-11-15-h200     several runs of one machine as one
  render.py results/....json --page README.md --rows tail,step                the table of the README
"""

import argparse
import pathlib

import report
import result
import run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="JSON files; those of one kind of machine become one result")
    parser.add_argument("--save", metavar="PATH", help="write PATH.json and PATH.md; all files must be of one machine")
    parser.add_argument("--page", help=f"replace what stands between {report.BEGIN} and {report.END}")
    parser.add_argument("--rows", default="tail,step", help="with --page: the beginnings of keys (tail,step)")
    arguments = parser.parse_args()
    by_machine = {}
    for path in arguments.results:
        loaded = result.load(path)
        by_machine.setdefault(loaded.machine["kind"], []).append(loaded)
    merged = [result.merge(several) for several in by_machine.values()]
    if arguments.save:
        if len(merged) != 1:
            parser.error("--save takes results of one kind of machine")
        run.save(merged[0], arguments.save)
    if arguments.page:
        page = pathlib.Path(arguments.page)
        lines = []
        for one in merged:
            lines += ([""] if lines else []) + report.summary(one, arguments.rows.split(","))
        page.write_text(report.between_markers(page.read_text(encoding="utf-8"), lines), encoding="utf-8")
    if not arguments.save and not arguments.page:
        print("\n".join(report.markdown(one) for one in merged))


if __name__ == "__main__":
    main()
