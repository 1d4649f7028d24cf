"""Publishes the stored results: writes the tables in docs/benchmarks.md and the chart in
docs/images/speed.svg.

For each machine it takes the newest full result that has every row of the chart with every side, so
all figures of a machine come from one result. Needs nothing but Python.
"""

import argparse
import pathlib
import sys

import chart
import report
import result

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = ROOT / "docs/images/speed.svg"

# What the chart shows, by kind of machine. The page lists the machines in the same order.
CHART = {
    "h200": ["step/fp16/gpt-small", "step/fp16/gpt-nano", "step/fp16/gpt-tiny", "step/bf16/cnn", "step/fp16/mlp"],
    "cpu-2": ["step/fp32/gpt-nano", "step/bf16/gpt-nano", "step/fp32/gpt-tiny", "step/fp32/cnn", "step/bf16/cnn",
              "step/fp32/mlp"],
}

# The tables of a machine, in this order: the workload and its heading.
SECTIONS = {
    "step": "Training steps",
    "tail": "The tail of a step: unscale, clip, AdamW",
    "loop": "Overhead, and steps with their loader",
    "waits": "Waits for the GPU",
    "warnings": "Warnings about likely mistakes",
    "nonfinite": "Steps that look for inf and nan",
    "memory": "Memory of the GPU",
    "offload": "Training with the optimizer's state in host memory",
    "big_model": "Big models: weights in host memory or in files",
    "paging": "Operators on weights that come and go, while they are there",
    "loader": "Loading batches",
    "checkpoint": "Saving and loading",
    "startup": "Start of a process",
    "launch": "Start of two processes",
    "ddp": "Two processes over Gloo",
    "compile": "Compiling",
}


def sides_of(stored):
    """The bars of a machine. Captured steps need a GPU."""
    return [side for side in chart.BARS if side != "captured" or stored.machine["device"] == "cuda"]


def gaps(stored, keys):
    """What the chart needs and this result lacks, in words."""
    if stored.form != "full":
        yield f"its form is {stored.form}, not full"
    for key in keys:
        row = stored.row(key)
        if row is None:
            yield f"no row {key}"
            continue
        missing = [result.SIDES[side] for side in sides_of(stored) if side not in row.figures]
        if missing:
            yield f"{key} lacks {' and '.join(missing)}"


def newest_complete(kind, keys, folder):
    """The result to publish for this kind of machine, with its path."""
    found = [(stored.date, path, stored) for path in sorted(folder.glob("*.json"))
             if not path.name.startswith("baseline-") and (stored := result.load(path)).machine["kind"] == kind]
    reasons = []
    for _, path, stored in sorted(found, key=lambda entry: entry[:2], reverse=True):
        missing = list(gaps(stored, keys))
        if not missing:
            return path, stored
        reasons.append(f"{path.name}: {'; '.join(missing)}")
    reason = ". ".join(reasons) or "there is no result of such a machine"
    raise ValueError(f"no result of '{kind}' in {folder.name}/ is complete ({reason}); measure on that machine with: "
                     f"make bench ARGS='--full --save benchmarks/results/DATE-{kind}'")


def to_publish(folder=RESULTS):
    """The path and the result, by kind of machine."""
    return {kind: newest_complete(kind, keys, folder) for kind, keys in CHART.items()}


def picture(chosen):
    panels, caption = [], []
    for kind, (_, stored) in chosen.items():
        groups = [chart.Group(row.title.removeprefix("step, "),
                              {side: row.figures[side].median for side in sides_of(stored)})
                  for row in map(stored.row, CHART[kind])]
        panels.append(chart.Panel(stored.machine["name"], groups))
        caption.append(f"{stored.machine['name']}: {stored.date}, {versions(stored)}.")
    caption.append("Medians. Same network, batch, optimizer and clipping on all sides. "
                   "Quartiles and notes: benchmarks/results.")
    return chart.svg(panels, caption)


def versions(stored):
    names = {"accelerant": "Accelerant", "accelerate": "Accelerate", "python": "Python", "cuda": "CUDA"}
    return ", ".join(f"{names.get(name, name)} {version}" for name, version in stored.versions.items())


def tables(chosen):
    """The lines of the page, machine by machine."""
    lines = [""]
    for path, stored in chosen.values():
        lines += [f"### {stored.machine['name']}", "",
                  f"{stored.date}, {versions(stored)}. Quartiles and notes: "
                  f"[{path.stem}](../benchmarks/results/{path.stem}.md).", ""]
        for workload, heading in SECTIONS.items():
            rows = [row for row in stored.rows if row.workload == workload]
            if rows:
                lines += [f"**{heading}**", "", *report.table(rows, spread=False), ""]
                reasons = report.failure_lines(rows)
                lines += ["Not measured:", "", *reasons, ""] if reasons else []
    return lines


def page(text, chosen):
    return report.between_markers(text, tables(chosen))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    try:
        chosen = to_publish()
    except ValueError as error:
        sys.exit(f"publish: {error}")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), chosen), encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(chosen), encoding="utf-8")
    for path, _ in chosen.values():
        print(f"publish: {path.relative_to(ROOT)} is in {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
