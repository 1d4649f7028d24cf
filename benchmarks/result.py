"""What a run measured: rows of figures, with the machine and the versions, as JSON.

A row is one piece of work. Its figures are stored by side, that is, by who did the work. A side
that could not do it is in `failures`, with the reason.
"""

import dataclasses
import json
import pathlib
import statistics

# In the order of the table's columns.
SIDES = {
    "ours": "Accelerant",
    "captured": "Accelerant, captured",
    "stock": "plain libtorch",
    "aten": "ATen's fused calls",
    "unwatched": "Accelerant, no warnings",
    "skipping": "Accelerant, skip",
    "stopping": "Accelerant, stop",
    "unchecked": "Accelerant, no checksums",
    "in_backward": "Accelerant, updates in backward",
    "resident": "Accelerant, nothing offloaded",
    "copied": "Accelerant, copied",
    "accelerate": "Accelerate",
    "pinned": "Accelerate, pinned weights",
    "compiled": "Accelerate, torch.compile",
    "floor": "floor",
}
OUR_SIDES = ("ours", "captured")
OTHER_SIDES = ("stock", "aten", "accelerate", "pinned", "compiled")

# How many of the unit make a second; None if the unit is not a time.
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "waits": None, "MB": None}


@dataclasses.dataclass
class Figure:
    """The rounds of one side: their median and quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values):
        low, high = values[0], values[0]
        if len(values) > 1:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high, len(values))


@dataclasses.dataclass
class Row:
    key: str  # workload/..., unique, for --only and for comparing runs
    title: str
    unit: str
    figures: dict = dataclasses.field(default_factory=dict)  # side: Figure
    failures: dict = dataclasses.field(default_factory=dict)  # side: reason
    facts: dict = dataclasses.field(default_factory=dict)  # such as the number of parameters

    @property
    def workload(self):
        return self.key.split("/")[0]

    def ratios(self):
        """How many times as fast ours is, as {"ours / stock": 2.0}. Empty if the row does not
        measure time."""
        if UNITS[self.unit] is None:
            return {}
        return {f"{ours} / {other}": self.figures[other].median / self.figures[ours].median
                for ours in OUR_SIDES for other in OTHER_SIDES if ours in self.figures and other in self.figures}


@dataclasses.dataclass
class Result:
    date: str
    machine: dict
    versions: dict
    form: str
    rows: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)

    def row(self, key):
        return next((row for row in self.rows if row.key == key), None)

    def add(self, row):
        """Adds a row. It replaces an earlier row with the same key."""
        self.rows = [other for other in self.rows if other.key != row.key] + [row]


def to_json(result):
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False) + "\n"


def from_json(text):
    document = json.loads(text)
    rows = [Row(**{**row, "figures": {side: Figure(**figure) for side, figure in row["figures"].items()}})
            for row in document.pop("rows")]
    return Result(**document, rows=rows)


def load(path):
    return from_json(pathlib.Path(path).read_text(encoding="utf-8"))


def merge(results):
    """Merges several runs on one machine into one result; later rows win."""
    first = results[0]
    merged = Result(first.date, first.machine, first.versions, first.form)
    for result in results:
        if result.machine["kind"] != first.machine["kind"]:
            raise ValueError(f"results of different machines: {first.machine['kind']} and {result.machine['kind']}")
        for row in result.rows:
            merged.add(row)
        merged.notes += [note for note in result.notes if note not in merged.notes]
    return merged
