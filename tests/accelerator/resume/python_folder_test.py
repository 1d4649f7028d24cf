"""A training that Python began and saved continues in C++ as it does in Python, and Python opens
the model saved in C++."""

import os
import subprocess
import warnings

import accelerate
import pytest
import replay
import safetensors.torch
import torch
from torch.nn import functional

PROGRAM = os.environ["ACCELERANT_PYTHON_FOLDER"]
SEED = replay.seed_from_environment()


def network():
    return torch.nn.Sequential(torch.nn.Linear(6, 12, bias=False), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.25),
                               torch.nn.ReLU(), torch.nn.Linear(12, 1))


class Training:
    def __init__(self, half):
        self.half = half
        self.accelerator = accelerate.Accelerator(cpu=True)
        if half:  # Accelerate creates none on the CPU
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=3)
        self.net = network()
        adamw = torch.optim.AdamW(self.net.parameters(), lr=0.02, betas=(0.8, 0.95), weight_decay=0.1)
        decay = torch.optim.lr_scheduler.StepLR(adamw, 3, 0.5)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(self.net, adamw, decay)

    def train(self, inputs, targets):
        losses, rates = [], []
        for x, y in zip(inputs, targets):
            with torch.autocast("cpu", torch.float16, enabled=self.half):
                output = self.model(x)
            loss = functional.mse_loss(output.float(), y)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
            rates.append(self.scheduler.get_last_lr()[0])
        return losses, rates


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_goes_on_where_python_stopped(tmp_path, precision):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    training = Training(precision == "fp16")
    inputs = torch.randn(20, 8, 6)
    targets = inputs.sum(2, keepdim=True)
    training.train(inputs[:7], targets[:7])
    saved, data, result = tmp_path / "python", tmp_path / "data.safetensors", tmp_path / "ours"
    training.accelerator.save_state(saved)
    safetensors.torch.save_file({"inputs": inputs[7:].contiguous(), "targets": targets[7:].contiguous()}, data)
    losses, rates = training.train(inputs[7:], targets[7:])

    done = subprocess.run([PROGRAM, saved, data, result, precision], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found = safetensors.torch.load_file(f"{result}.safetensors")
    assert found["rates"].tolist() == pytest.approx(rates, rel=1e-12)
    # Dropout needs Python's random numbers: a different mask would change a loss by much more. In
    # fp16 a weight may be rounded to a neighbouring number, which changes a loss slightly.
    of_losses, of_weights = (1e-5, 1e-6) if precision == "no" else (2e-3, 1e-3)
    assert found["losses"].tolist() == pytest.approx(losses, rel=of_losses, abs=of_losses / 10)
    for name, tensor in training.net.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=of_weights, atol=of_weights,
                                   msg=lambda text: f"{name}: {text}")
    if precision == "fp16":
        assert found["scale"].item() == training.accelerator.scaler.get_scale()

    # The reverse: Python loads the model from the checkpoint saved in C++.
    net = network()
    net.load_state_dict(safetensors.torch.load_file(result / "model.safetensors"))  # strict: exactly these names
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(net(inputs[7]), found["outputs"], rtol=1e-6, atol=1e-6)
