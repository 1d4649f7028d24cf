"""A run checks what it needs before it measures anything."""

import pathlib
import subprocess
import sys

import pytest
import run
import workloads
from settings import Settings

BENCHMARKS = pathlib.Path(run.__file__).parent


def build_of(folder, *programs):
    (folder / "bin").mkdir()
    for program in programs:
        (folder / "bin" / program).touch()
    return folder


def refusal(build, *only):
    with pytest.raises(SystemExit) as stopped:
        run.check_start(build, list(only))
    return str(stopped.value)


@pytest.mark.parametrize("script", ["run.py", "check.py"])
def test_programs_that_are_not_built_stop_the_run_at_once(script, tmp_path):
    done = subprocess.run([sys.executable, BENCHMARKS / script, "--build", tmp_path / "none"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "bench-training" in done.stderr and done.stderr.endswith("make bench\n")
    assert not (tmp_path / "none").exists()  # no report is written either


def test_the_programs_that_are_missing_are_named(tmp_path):
    message = refusal(build_of(tmp_path, "bench-training", "bench-loader"), "step", "loader", "launch/2")
    assert "accelerant, bench-distributed;" in message
    assert "bench-training" not in message and "bench-loader" not in message


def test_only_what_the_wanted_rows_need_is_asked_for(tmp_path):
    run.check_start(build_of(tmp_path, "bench-training"), ["step/fp16", "startup"])
    run.check_start(tmp_path, ["compile"])


def test_programs_may_lie_in_the_folder_itself(tmp_path):
    (tmp_path / "bench-loader").touch()
    run.check_start(tmp_path, ["loader"])


def test_a_workload_that_does_not_exist(tmp_path):
    assert "--only nothing/fp16: no such workload; expected one of tail, step" in refusal(tmp_path, "nothing/fp16")


def test_python_without_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    assert "has no torch" in refusal(tmp_path, "compile")


class Recorder(Settings):
    """Records which programs a workload asks for."""

    def program(self, name):
        self.shared.setdefault("asked", set()).add(name)
        return super().program(name)


@pytest.mark.parametrize("name", workloads.ALL)
def test_workloads_name_the_programs_that_they_ask_for(name):
    asked = set()
    for device in ("cpu", "cuda"):
        settings = Recorder(build=pathlib.Path("/nowhere"), device=device, threads=2, full=True, rounds=1, seconds=0.1,
                            compiled=True, deadline=1.0, patience=1.0)
        for case in workloads.ALL[name].cases(settings):
            case.contenders()
        asked |= settings.shared.get("asked", set())
    assert asked == set(workloads.ALL[name].PROGRAMS)
