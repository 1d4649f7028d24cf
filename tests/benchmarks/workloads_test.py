"""What each workload asks of which program, without running it."""

import json
import pathlib

import google_benchmark
import machine
import pytest
import run
import workloads
from rounds import Contender
from settings import Settings
from worker import WorkerFailed
from workloads import memory, tail, trainings


def settings_of(device, full):
    return Settings(build=pathlib.Path("/nowhere"), device=device, threads=2, full=full, rounds=1, seconds=0.1,
                    compiled=True, deadline=1.0, patience=1.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("full", [False, True])
def test_rows_have_keys_of_their_own(device, full):
    cases = [case for workload in workloads.ALL.values() for case in workload.cases(settings_of(device, full))]
    keys = [case.key for case in cases]
    assert len(keys) == len(set(keys)) and len({case.title for case in cases}) == len(cases)
    for name in workloads.ALL:
        if device == "cuda" or name not in ("waits", "memory"):
            assert any(key.startswith(name + "/") for key in keys)


def test_a_quick_run_is_part_of_a_full_one():
    for device in ("cpu", "cuda"):
        quick, full = ({case.key for workload in workloads.ALL.values() for case in workload.cases(settings_of(device, full))}
                       for full in (False, True))
        assert quick < full


def test_programs_that_are_not_built_are_named():
    case = next(tail.cases(settings_of("cpu", False)))
    assert case.contenders()["ours"] == "bench-scaler-tail is not built"


def test_rows_are_chosen_by_the_beginning_of_their_keys():
    assert run.wanted("step/fp16/cnn", ["tail", "step/fp16"])
    assert not run.wanted("step/fp16/cnn", ["step/fp", "step/fp16/cn"])
    assert run.wanted("anything", [])
    assert run.concerned("step", ["step/fp16"]) and not run.concerned("tail", ["step/fp16"])


def test_variants_of_the_tail():
    names = ["ours, fused AdamW, clip", "ATen calls, fused AdamW, clip", "ours, fused AdamW, no clip",
             "ours, torch::optim::AdamW, clip", "stock libtorch, clip"]
    assert tail.variant_of("ours", names) == "ours, fused AdamW, clip"
    assert tail.variant_of("ours", ["FusedStep, clip", *names]) == "FusedStep, clip"
    assert tail.variant_of("stock", names) == "stock libtorch, clip"


def test_memory_is_of_a_fresh_process_that_does_the_same_work(monkeypatch):
    calls = []

    class FakeWorker:
        def close(self):
            calls.append("close")

    def prepare():
        calls.append("prepare")
        return {"parameters": 7}

    monkeypatch.setattr(trainings, "worker_of", lambda *_: FakeWorker())
    monkeypatch.setattr(trainings, "contender", lambda *_, **__: Contender(prepare=prepare, measure=lambda: 3e6))
    contender = memory.contender(settings_of("cuda", True), "ours", "gpt-nano", "fp16")
    assert contender.prepare() == {"parameters": 7} and calls == ["close", "prepare"]
    assert contender.measure() == 3.0  # megabytes


def test_the_time_of_a_benchmark():
    report = {"context": {"steps_per_iteration": "10"}, "benchmarks": [{"real_time": 20.0, "time_unit": "ms"}]}
    assert google_benchmark.parse(json.dumps(report), "steps_per_iteration") == pytest.approx(0.002)
    report["benchmarks"][0] = {"error_occurred": True, "error_message": "no GPU"}
    with pytest.raises(WorkerFailed, match="no GPU"):
        google_benchmark.parse(json.dumps(report), "steps_per_iteration")
    with pytest.raises(WorkerFailed, match="no such benchmark"):
        google_benchmark.parse("Failed to match any benchmarks", "steps_per_iteration")


def test_kinds_of_machines():
    assert machine.kind_of("cpu", 2, None) == "cpu-2"
    assert machine.kind_of("cuda", 16, "NVIDIA H200") == "h200"
    assert machine.kind_of("cuda", 16, "NVIDIA GeForce RTX 4090") == "rtx-4090"
