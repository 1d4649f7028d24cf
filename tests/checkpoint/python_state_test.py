"""Reads folders of Accelerate's save_state: models, optimizers, schedulers, the scaler and random
states.

Random programs in Python prepare and train some models, save, and draw more numbers. What is read
is compared with what they had, and schedules and generators must continue as in Python.
"""

import json
import math
import os
import random
import re
import shutil
import warnings

import accelerate
import numpy
import pytest
import torch
from replay import close_enough, tensor_to_json, to_json

TOPIC = "python_state"
ROUNDS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "40"))
module = torch.optim.lr_scheduler


# --- Random programs ------------------------------------------------------------------------------


def random_model(rng):
    width = rng.randint(1, 4)
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))


def random_optimizer(rng, model):
    parameters = list(model.parameters())
    if rng.random() < 0.4:
        cut = rng.randrange(1, len(parameters))
        parameters = [{"params": parameters[:cut], "lr": 0.05}, {"params": parameters[cut:]}]
    kind, options = rng.choice([
        (torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}), (torch.optim.AdamW, {}),
        (torch.optim.Adam, {"amsgrad": True}), (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
        (torch.optim.Adagrad, {}), (torch.optim.Adam, {"lr": torch.tensor(0.25), "foreach": False}),
    ])
    return kind(parameters, **{"lr": 0.1, **options})


def halving(step):
    return 0.9**step


def random_scheduler(rng, optimizer):
    """Also returns a description of the same schedule in C++, or None if there is none."""
    rate = optimizer.param_groups[0]["lr"]
    base_lr = float(rate)
    more = {"base_lr": base_lr, "steps": rng.randint(1, 6)}
    plain = [
        lambda: (module.LinearLR(optimizer, total_iters=7), None),
        lambda: (module.MultiStepLR(optimizer, [2, 2, 5]), None),
        lambda: (module.CosineAnnealingWarmRestarts(optimizer, 3), None),
    ]
    if len(optimizer.param_groups) > 1 or isinstance(rate, torch.Tensor):
        return rng.choice(plain)()
    step_size, t_max, patience = rng.randint(1, 4), rng.randint(20, 40), rng.randint(0, 3)
    parts = lambda: [module.ExponentialLR(optimizer, 0.9), module.ExponentialLR(optimizer, 0.8)]
    makers = plain + [
        lambda: (module.StepLR(optimizer, step_size, 0.5),
                 {"kind": "StepLR", "step_size": step_size, "gamma": 0.5, **more}),
        lambda: (module.CosineAnnealingLR(optimizer, t_max), {"kind": "CosineAnnealingLR", "t_max": t_max, **more}),
        lambda: (module.LambdaLR(optimizer, halving), {"kind": "LambdaLR", **more}),
        lambda: (module.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience),
                 {"kind": "ReduceLROnPlateau", "factor": 0.5, "patience": patience, **more}),
        lambda: (module.SequentialLR(optimizer, parts(), [3]), {"kind": "SequentialLR", **more}),
        lambda: (module.ChainedScheduler(parts()), {"kind": "ChainedScheduler", **more}),
    ]
    if "momentum" in optimizer.defaults and optimizer.defaults["momentum"] or "betas" in optimizer.defaults:
        makers.append(lambda: (module.OneCycleLR(optimizer, base_lr, total_steps=60),
                               {"kind": "OneCycleLR", "total_steps": 60, **more}))
    return rng.choice(makers)()


class Program:
    def __init__(self, rng):
        torch.manual_seed(rng.randrange(2**32))
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=rng.choice([1, 2, 3]))
        self.models = [random_model(rng) for _ in range(rng.randint(1, 3))]
        self.optimizers = [random_optimizer(rng, model) for model in self.models[: rng.randint(1, len(self.models))]]
        made = [random_scheduler(rng, optimizer) for optimizer in self.optimizers[: rng.randint(0, 3)]]
        self.schedulers, self.descriptions = [scheduler for scheduler, _ in made], [text for _, text in made]
        self.accelerator.prepare(*self.models, *self.optimizers, *self.schedulers)
        for _ in range(rng.randrange(6)):
            self.train()
        if rng.random() < 0.5:  # Accelerate creates none on the CPU
            self.accelerator.scaler = torch.amp.GradScaler("cpu")
            self.accelerator.scaler.load_state_dict({
                "scale": 2.0**rng.randint(-10, 20), "growth_factor": 1.5, "backoff_factor": 0.25,
                "growth_interval": rng.randint(5, 9), "_growth_tracker": rng.randrange(5)})

    def train(self):
        with self.accelerator.accumulate(*self.models):
            for model in self.models:
                loss = model(torch.randn(4, 3)).square().mean()
                self.accelerator.backward(loss)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for scheduler in self.schedulers:
            self.advance(scheduler)

    @staticmethod
    def advance(scheduler):
        scheduler.step(*([1.0] if isinstance(scheduler, module.ReduceLROnPlateau) else []))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- What is read ---------------------------------------------------------------------------------


def as_json(value):
    """Values as they are read: keys are strings, a tensor of one element is its number."""
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    if isinstance(value, torch.Tensor):
        return value.item()
    return to_json(value) if isinstance(value, float) else value


def split(tree):
    tensors = {}

    def visit(value, path):
        if isinstance(value, torch.Tensor):
            tensors[path] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape),
                             "values": tensor_to_json(value)}
            return None
        if isinstance(value, dict):
            parts = {str(key): (part, visit(part, f"{path}.{key}".lstrip("."))) for key, part in value.items()}
            return {key: seen for key, (part, seen) in parts.items() if not isinstance(part, torch.Tensor)}
        if isinstance(value, (list, tuple)):
            return [visit(part, f"{path}.{i}") for i, part in enumerate(value)]
        return to_json(value) if isinstance(value, float) else value

    return {"values": visit(tree, ""), "tensors": tensors}


def test_random_programs(replay, rng, tmp_path):
    for number in range(ROUNDS):
        program = Program(rng)
        folder = tmp_path / str(number)
        safe = rng.random() < 0.6
        program.accelerator.save_state(str(folder), safe_serialization=safe)
        drawn = torch.rand(5)
        result = replay({"folder": str(folder), "draw": 5, "schedules": program.descriptions})
        assert "error" not in result, (number, result)
        names = ["model{}.safetensors" if safe else "pytorch_model{}.bin"] * len(program.models)
        assert result["models"] == [name.format(f"_{i}" if i else "") for i, name in enumerate(names)]
        assert [json.dumps(state, sort_keys=True) for state in result["optimizers"]] == \
            [json.dumps(split(optimizer.state_dict()), sort_keys=True) for optimizer in program.optimizers], number
        assert result["schedulers"] == [as_json(scheduler.state_dict()) for scheduler in program.schedulers], number
        scaler = program.accelerator.scaler
        assert result.get("scaler") == (scaler.state_dict() if scaler else None)
        if scaler:
            assert {key: result["loaded_scaler"][key] for key in scaler.state_dict()} == scaler.state_dict()
        assert result["step"] == program.accelerator.step
        assert result["drawn"] == tensor_to_json(drawn) and result["skipped"] == []
        assert result["unread"] == [] and result["ranks"] == 1
        check_rates(program, result["rates"], number)


def check_rates(program, rates, number):
    for scheduler, description, ours in zip(program.schedulers, program.descriptions, rates):
        if description is None:
            continue
        expected = [float(scheduler.optimizer.param_groups[0]["lr"])] if hasattr(scheduler, "optimizer") else \
            [float(scheduler._schedulers[0].optimizer.param_groups[0]["lr"])]
        for _ in range(description["steps"]):
            Program.advance(scheduler)
            expected.append(float(scheduler.get_last_lr()[0]))
        assert close_enough(ours, expected, 1e-9), (number, description, ours, expected)


# --- What is not read, and what is wrong ----------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A folder with one of each."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu")
    accelerator.prepare(model, optimizer, module.StepLR(optimizer, 1))
    accelerator.save_state(str(tmp_path / "state"))
    return tmp_path / "state"


def ask(replay, folder, **more):
    return replay({"folder": str(folder), "draw": 1, "schedules": [None] * 9, **more})


def test_what_is_not_read_is_told(replay, saved):
    for name in ["custom_checkpoint_0.pkl", "dl_state_dict.bin", "sampler_1.bin", "pytorch_model.bin", "model_2.safetensors",
                 "optimizer_3.bin", "random_states_7.pkl", "notes.txt", "pytorch_model_fsdp.bin"]:
        (saved / name).write_bytes(b"")
    (saved / "pytorch_model_fsdp_0").mkdir()
    result = ask(replay, saved)
    assert [text.split(":")[0] for text in result["unread"]] == sorted(
        ["custom_checkpoint_0.pkl", "dl_state_dict.bin", "sampler_1.bin", "pytorch_model.bin", "model_2.safetensors",
         "optimizer_3.bin", "random_states_7.pkl", "notes.txt", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0"])
    reasons = dict(text.split(": ", 1) for text in result["unread"])
    assert "load_tensors" in reasons["custom_checkpoint_0.pkl"]
    assert "two formats" in reasons["pytorch_model.bin"]
    assert "FSDP" in reasons["pytorch_model_fsdp_0"]
    assert result["models"] == ["model.safetensors"] and result["ranks"] == 1


def test_random_states_of_each_rank(replay, saved):
    torch.manual_seed(5)
    states = torch.load(saved / "random_states_0.pkl", weights_only=False)
    states["torch_manual_seed"] = torch.get_rng_state()
    states["torch_cuda_manual_seed"] = [torch.zeros(16, dtype=torch.uint8)] * 2
    states["step"] = 4
    torch.save(states, saved / "random_states_1.pkl")
    result = ask(replay, saved, rank=1)
    assert result["ranks"] == 2 and result["step"] == 4
    assert result["drawn"] == tensor_to_json(torch.rand(1))
    assert result["skipped"] == [f"cuda.{i}" for i in range(torch.cuda.device_count(), 2)]
    result = ask(replay, saved, rank=2)
    assert "step" not in result and "drawn" not in result


def test_numpy_numbers_and_arrays_in_random_states(replay, saved):
    states = {"numpy_random_seed": numpy.random.default_rng(1).bit_generator.state, "array": numpy.ones((2, 3)),
              "number": numpy.float64(2.5), "step": 3, "torch_manual_seed": torch.get_rng_state(),
              "random_state": random.getstate(), "same": [numpy.dtype("float32")] * 2, "inf": -math.inf}
    del states["numpy_random_seed"]  # integers beyond 64 bits
    torch.save(states, saved / "random_states_0.pkl")
    assert ask(replay, saved)["step"] == 3


def test_other_folders_are_refused(replay, tmp_path, saved):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing", saved / "scaler.pt"):
        assert "not written by Accelerate's save_state" in ask(replay, folder)["error"]
    (saved / "manifest.json").write_text("{}")
    assert "a checkpoint of Accelerant" in ask(replay, saved)["error"]


@pytest.mark.parametrize("name", ["optimizer.bin", "scheduler.bin", "scaler.pt", "random_states_0.pkl"])
def test_damaged_files_are_refused(replay, saved, name):
    whole = (saved / name).read_bytes()
    for damaged in (b"", whole[:-10], whole[: len(whole) // 2], b"x" * 100):
        (saved / name).write_bytes(damaged)
        assert name in ask(replay, saved)["error"]
    torch.save([1, 2], saved / name)
    assert re.search(f"{name} .*expected a dict, got a Python list", ask(replay, saved)["error"])
    torch.save({"x": os.system}, saved / name)
    assert "nothing was executed" in ask(replay, saved)["error"]


def test_an_array_elsewhere_is_refused(replay, saved):
    torch.save({"last_epoch": numpy.ones(2)}, saved / "scheduler.bin")
    assert "numpy" in ask(replay, saved)["error"]
    torch.save({"last_epoch": torch.ones(2)}, saved / "scheduler.bin")
    assert "unexpected at last_epoch" in ask(replay, saved)["error"]
    torch.save({"last_epoch": 1}, saved / "scheduler.bin")
    result = ask(replay, saved, schedules=[{"kind": "LambdaLR", "base_lr": 0.1, "steps": 0}])
    assert "with 'base_lrs'" in result["error"]
    shutil.rmtree(saved)
