"""The tail of a step in Python, like scaler_tail.cpp in C++: unscale, clip, AdamW, scale update.

It answers requests, one per line, with a line of JSON:

  prepare FORM SIZE     makes parameters and gradients. FORM: accelerate (the calls that Accelerate
                        makes, with a fused AdamW) or compiled (clipping and AdamW compiled
                        together)
  measure SECONDS       seconds per tail
"""

import json
import sys
import warnings

import torch
from stopwatch import seconds_per_step

SCALE = 1.0 + 2.0**-23  # gradients are unscaled each time but hardly change
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def gpt_shapes(layers, width, vocabulary, context):
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
             (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocabulary, width), (context, width)] + block * layers + [(width,), (width,)]


SHAPES = {
    "tiny": gpt_shapes(4, 128, 65, 64),
    "nano": gpt_shapes(6, 384, 65, 256),
    "small": gpt_shapes(12, 768, 50257, 1024),
    "512M": [(512, 1_000_000)],
    "many": [(16,)] * 10_000,
}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Tail:
    def __init__(self, form, size):
        torch.manual_seed(0)
        torch.compiler.reset()
        self.parameters = [torch.nn.Parameter(torch.randn(shape, device=DEVICE) * 0.02) for shape in SHAPES[size]]
        for parameter in self.parameters:
            parameter.grad = torch.randn_like(parameter)
        fused = form == "accelerate"
        # A learning rate in a tensor is not compiled in as a constant; graphs need capturable.
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4 if fused else torch.tensor(1e-4, device=DEVICE),
                                           fused=fused or None, capturable=not fused and DEVICE == "cuda")
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=SCALE, growth_interval=2**30)
        self.scaler.scale(torch.ones((), device=DEVICE))
        self.step = {"accelerate": self.eager, "compiled": self.compiled}[form]
        self.compiled_update = torch.compile(self.clip_and_update)

    def eager(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def clip_and_update(self):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()

    def compiled(self):
        self.scaler.unscale_(self.optimizer)
        found = self.scaler._found_inf_per_device(self.optimizer)
        if not any(flag.item() for flag in found.values()):  # as GradScaler.step if not fused
            self.compiled_update()
        self.scaler.update()


class Requests:
    def __init__(self):
        self.tail = None

    def prepare(self, form, size):
        self.tail = None
        self.tail = Tail(form, size)
        for _ in range(3):
            self.tail.step()
        synchronize()
        return {"parameters": sum(parameter.numel() for parameter in self.tail.parameters)}

    def measure(self, seconds):
        return {"seconds": seconds_per_step(float(seconds), self.tail.step, synchronize)}


def main():
    warnings.filterwarnings("ignore")
    requests = Requests()
    for request in sys.stdin:
        what, *words = request.split()
        print(json.dumps({"prepare": requests.prepare, "measure": requests.measure}[what](*words)), flush=True)


if __name__ == "__main__":
    main()
