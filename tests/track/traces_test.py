"""Traces of real training runs follow Chrome's trace format; merge-traces; schedules like those of torch.profiler."""

import collections
import json
import os
import random
import subprocess

import pytest
import torch.profiler
from launching import COMMAND, DEADLINE, clean_environment, launch
from replay import seed_from_environment

TRAINING = os.environ["ACCELERANT_PROFILED_TRAINING"]

NEEDED = {"X": {"ts", "dur", "pid", "tid"}, "i": {"ts", "s", "pid", "tid"}, "C": {"ts", "args", "pid"},
          "M": {"args", "pid"}}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}


def strict_load(path):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def check_events(events):
    """Checks the rules of the format: fields, types, and that the spans of a thread nest."""
    open_spans = collections.defaultdict(list)
    for event in events:
        kind = event["ph"]
        assert isinstance(event["name"], str) and NEEDED[kind] <= set(event), event
        assert isinstance(event["pid"], int), event
        if kind == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
        else:
            assert event["ts"] >= 0 and event.get("dur", 0) >= 0
        if kind == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        if kind == "i":
            assert event["s"] in "gpt"
    spans = [event for event in events if event["ph"] == "X"]
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        begin, end = round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000)
        outer = open_spans[span["pid"], span["tid"]]
        while outer and outer[-1][0] <= begin:
            outer.pop()
        assert not outer or end <= outer[-1][0] + 1, f"{span} reaches out of {outer[-1][1]}"
        outer.append((end, span))


def run(*arguments, code=0):
    result = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE,
                            env=clean_environment(), stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    result = launch(["--num-processes", 2, "--cpu"], [TRAINING, "train", folder])
    assert result.code == 0, result
    return folder, result


def test_every_rank_writes_a_trace(trained):
    folder, result = trained
    files = sorted(path.name for path in (folder / "traces").glob("*"))
    assert files == ["kernels_0.json", "kernels_1.json", "profile_0.json", "profile_1.json"]
    for rank in range(2):
        trace = strict_load(folder / f"traces/profile_{rank}.json")
        check_events(trace["traceEvents"])
        assert trace["accelerant"]["rank"] == rank and trace["accelerant"]["dropped_events"] == 0
        counts = collections.Counter(event["name"] for event in trace["traceEvents"])
        assert counts["forward"] == counts["backward"] == counts["reduction"] == counts["step"] == 8
        assert counts["a moment"] == counts['memory "used"'] == 8
        assert counts["gather"] == 2 and counts["save"] == counts["write checkpoint"] == 2
        assert all(counts[f"step #{number}"] == 1 for number in range(8))
    lines = [line for line in result.err_lines if "time of" in line]
    assert len(lines) == 1 and "[rank 0] time of 8 updates: " in lines[0], result


def test_merged_they_tell_one_story(trained, tmp_path):
    folder, _ = trained
    result = run("merge-traces", folder / "traces", tmp_path / "all.json")
    for rank in range(2):
        assert f"rank {rank}: time of 8 updates: " in result.stdout
    merged = strict_load(tmp_path / "all.json")
    parts = {path.name: strict_load(path) for path in (folder / "traces").glob("*_*.json")}
    events = merged["traceEvents"]
    check_events([event for event in events if event["pid"] in (0, 1)])

    # Nothing is lost, and every event keeps its time of day. Torch's times have half nanoseconds.
    def moments(*traces):
        return sorted((event["name"], trace["baseTimeNanoseconds"] + round(event["ts"] * 1000))
                      for trace in traces for event in trace["traceEvents"] if event["ph"] == "X")
    for (name, moment), (own_name, own_moment) in zip(moments(merged), moments(*parts.values()), strict=True):
        assert name == own_name and abs(moment - own_moment) <= 2
    assert min(event["ts"] for event in events if "ts" in event) == 0

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[0] == "rank 0" and names[1] == "rank 1"
    assert {event["pid"] for event in events} == set(names)
    kernels = {event["pid"] for event in events if event["name"].startswith("aten::")}
    assert sorted(names[pid] for pid in kernels) == ["rank 0 kernels CPU", "rank 1 kernels CPU"]

    # On one machine there is one clock: both ranks leave an exchange of gradients within a step of each other, and
    # the operators of a rank lie within the time of its profile.
    def of(rank, name):
        return [event for event in events if event["pid"] == rank and event["name"] == name]
    for here, there in zip(of(0, "reduction"), of(1, "backward"), strict=True):
        assert here["ts"] + here["dur"] >= there["ts"]

    # Arrows of one trace never end in another. In torch's own traces, some have two ends.
    def uses_of_arrows(trace):
        arrows = collections.Counter((event["ph"], event["id"]) for event in trace if event["ph"] in "sf")
        return list(arrows.values())
    own_uses = [uses for part in parts.values() for uses in uses_of_arrows(part["traceEvents"])]
    assert own_uses and sorted(uses_of_arrows(events)) == sorted(own_uses)


def test_merge_puts_the_trace_beside(trained, tmp_path):
    folder, _ = trained
    copy = tmp_path / "traces"
    copy.mkdir()
    (copy / "profile_1.json").write_bytes((folder / "traces/profile_1.json").read_bytes())
    for _ in range(2):  # the second time, its own output must not be an input
        assert "merged 1 file into" in run("merge-traces", copy).stdout
    assert len(list(copy.iterdir())) == 2
    own = strict_load(copy / "profile_1.json")["traceEvents"]
    assert len(strict_load(copy / "trace.json")["traceEvents"]) == len(own)


@pytest.mark.parametrize("content, words", [
    ("", "parse error"),
    ("{", "parse error"),
    ("[]", "no traceEvents"),
    ('{"a": 1}', "no traceEvents"),
    ('{"accelerant": {"rank": 1}, "traceEvents": []}', "of rank 1 too"),
])
def test_merge_refuses_what_is_no_trace(trained, tmp_path, content, words):
    folder, _ = trained
    (tmp_path / "profile_1.json").write_bytes((folder / "traces/profile_1.json").read_bytes())
    (tmp_path / "profile_2.json").write_text(content)
    assert words in run("merge-traces", tmp_path, code=1).stderr
    assert not (tmp_path / "trace.json").exists()


def test_merge_needs_traces(tmp_path):
    assert "There is nothing to merge" in run("merge-traces", tmp_path, code=1).stderr
    assert run("merge-traces", tmp_path / "not there", code=2).stderr
    assert "Usage: accelerant merge-traces" in run("merge-traces", "--help").stdout


def test_the_slowest_rank_is_named(tmp_path):
    for rank, waits in enumerate([0.4, 0.1, 0.5]):
        own = {"rank": rank, "seconds": 1.0, "phase_seconds": {"reduction": waits, "step": 0.5},
               "phase_counts": {"step": 2}}
        (tmp_path / f"profile_{rank}.json").write_text(json.dumps({"accelerant": own, "traceEvents": []}))
    out = run("merge-traces", tmp_path).stdout
    assert "rank 1 is the slowest: it waits 10 % of the time for others, rank 2 50 %" in out


def test_schedules_are_those_of_torch():
    rng = random.Random(seed_from_environment())
    schedules = [{"skip_first": rng.randrange(6), "wait": rng.randrange(5), "warmup": rng.randrange(4),
                  "active": 1 + rng.randrange(5), "repeat": rng.randrange(4)} for _ in range(300)]
    result = subprocess.run([TRAINING, "schedules"], input=json.dumps(schedules), capture_output=True, text=True,
                            timeout=DEADLINE, check=True)
    for schedule, actions in zip(schedules, json.loads(result.stdout), strict=True):
        theirs = torch.profiler.schedule(**schedule)
        assert actions == [theirs(step).name for step in range(40)], schedule
