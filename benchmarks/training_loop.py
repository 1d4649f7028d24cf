"""The training steps of training_loop.cpp in Python: with Accelerate, eager and compiled.

It takes the same requests, with the forms accelerate and compiled (the model compiled by torch.compile, through
Accelerate's dynamo_backend). Both use torch's fused optimizers, which are the fastest it has.
"""

import contextlib
import json
import sys
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from stopwatch import seconds_per_step
from torch.utils.data import DataLoader, TensorDataset
from training_tasks import parameter_count, task_named

MAX_NORM = 1.0
SCHEDULE_STEPS = 1_000_000
BATCHES = 8  # on the device
BATCHES_PER_EPOCH = 128  # from a loader
FIRST_LOSSES, WARM_UP_STEPS = 5, 5
CUDA = torch.cuda.is_available()
WAITS = {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemset",
         "cuCtxSynchronize", "cuStreamSynchronize"}


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


class Training:
    def __init__(self, form, name, precision):
        if form not in ("accelerate", "compiled"):
            raise ValueError(f"no such form: {form}")
        if precision == "fp16" and not CUDA:
            raise ValueError("Accelerate ignores fp16 on a CPU and trains in fp32")
        torch.manual_seed(0)
        AcceleratorState._reset_state(reset_partial_state=True)  # forgets the first precision
        torch.compiler.reset()
        self.accelerator = Accelerator(mixed_precision="no" if precision in ("fp32", "tf32") else precision,
                                       dynamo_backend="inductor" if form == "compiled" else None)
        # If Accelerate compiles with the precision "no", it turns TF32 on for products. Here all
        # sides must compute alike.
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        self.task = task_named(name, CUDA)
        network = self.task.make_network()
        self.parameters = parameter_count(network)
        optimizer = self.task.make_optimizer(network.parameters())
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(network, optimizer, cosine)

    def step(self, data, target):
        with self.accelerator.accumulate(self.model):
            loss = self.task.loss(self.model(data), target)
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def batches(self):
        """Batches on the device, over and over."""
        data, target = (tensor.to(self.accelerator.device).split(self.task.batch)
                        for tensor in self.task.make_data(BATCHES))
        while True:
            yield from zip(data, target)

    def loaded_batches(self):
        """Batches from a loader, over and over."""
        dataset = TensorDataset(*self.task.make_data(BATCHES_PER_EPOCH))
        loader = self.accelerator.prepare(DataLoader(dataset, self.task.batch, shuffle=True, drop_last=True))
        while True:
            yield from loader


class Requests:
    def __init__(self):
        self.training = self.source = None

    def take_step(self):
        return self.training.step(*next(self.source))

    def forms(self):
        return {"forms": ["accelerate", "compiled"]}

    def prepare(self, form, task, precision):
        self.training = self.source = None
        self.training = Training(form, task, precision)
        self.source = self.training.batches()
        losses = [self.take_step().item() for _ in range(FIRST_LOSSES)]
        for _ in range(WARM_UP_STEPS):
            self.take_step()
        synchronize()
        return {"parameters": self.training.parameters, "losses": losses}

    def measure(self, seconds):
        return {"seconds": seconds_per_step(float(seconds), self.take_step, synchronize)}

    def loop(self, form, task, precision, seconds):
        self.training = Training(form, task, precision)
        self.source = self.training.loaded_batches()
        return self.measure(seconds)

    def memory(self):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            self.take_step()
        synchronize()
        return {"bytes": torch.cuda.max_memory_reserved()}

    def waits_of(self, steps):
        synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                self.take_step()
        return sum(event.name in WAITS for event in profile.events())

    def waits(self):
        """The profiler also waits when it starts and stops. Subtracting a short run from a long one
        removes these waits."""
        if not CUDA:
            raise ValueError("waits are counted on GPUs only")
        self.waits_of(1)  # the first use sets the profiler up
        few, many = self.waits_of(5), self.waits_of(25)
        return {"waits": (many - few) / 20}

    def answer(self, what, *words):
        return {"forms": self.forms, "prepare": self.prepare, "measure": self.measure, "loop": self.loop,
                "memory": self.memory, "waits": self.waits}[what](*words)


def first_step(form):
    training = Training(form, "cnn", "fp32")
    data, target = training.task.make_data(1)
    training.step(data.to(training.accelerator.device), target.to(training.accelerator.device))
    synchronize()
    print("stepped", flush=True)


def main():
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] == ["first-step"]:
        first_step(sys.argv[2])
        return
    requests = Requests()
    for request in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):  # compilers may print; stdout is for answers
            answer = requests.answer(*request.split())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
