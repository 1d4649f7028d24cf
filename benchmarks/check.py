"""Fails if a ratio is more than 15 % below the one stored for this kind of machine.

A row that falls is measured again, up to twice, before it counts: the machine may have been busy.
--store makes this run the baseline.
"""

import argparse
import pathlib
import sys

import baseline
import machine
import report
import result
import run

RESULTS = pathlib.Path(__file__).with_name("results")
REPEATS = 2


def baseline_path(kind):
    return RESULTS / f"baseline-{kind}.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_options(parser)
    parser.add_argument("--store", action="store_true", help="write the baseline instead of comparing with it")
    parser.add_argument("--tolerance", type=float, default=baseline.TOLERANCE)
    arguments = parser.parse_args()
    only = run.keys_of(arguments)
    run.check_start(arguments.build, only)
    settings = run.settings_of(arguments)
    path = baseline_path(machine.describe(settings.device)["kind"])
    if not arguments.store and not path.exists():
        print(f"bench-check: no baseline for this kind of machine ({path.name}); create it with: "
              "make bench-check ARGS=--store")
        return 2
    measured = run.measure_all(settings, only, arguments.minutes, run.say)
    print(report.markdown(measured))
    if arguments.store:
        path.write_text(result.to_json(measured), encoding="utf-8")
        return 0
    stored = result.load(path)
    found = baseline.falls(measured, stored, arguments.tolerance)

    def measure_again(key):
        run.say(f"again: {key}")
        return run.measure_all(settings, [key], say=run.say).row(key)

    fallen = baseline.confirmed(found, stored, measure_again, REPEATS, arguments.tolerance)
    for fall in fallen:
        print(f"bench-check: {fall}")
    compared = sum(stored.row(row.key) is not None for row in measured.rows)
    if compared == 0:
        print("bench-check: no row of this run is in the baseline")
        return 2
    print(f"bench-check: {compared} rows compared, {len({fall.key for fall in fallen})} fell")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
