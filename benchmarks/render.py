"""Prints stored results as tables, or merges several runs of one machine into one result:

  render.py run1.json run2.json --save benchmarks/results/2026-11-15-h200
"""

import argparse

import report
import result
import run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="JSON files; merged by kind of machine")
    parser.add_argument("--save", metavar="PATH", help="write PATH.json and PATH.md; for one kind of machine")
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
    else:
        print("\n".join(report.markdown(one) for one in merged))


if __name__ == "__main__":
    main()
