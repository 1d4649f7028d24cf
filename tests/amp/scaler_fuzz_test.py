"""Random programs on a GradScaler: compares the library with torch.amp.GradScaler, operation by
operation.

Where the two differ on purpose, `Differences` says so; everything else must agree: values, flags,
errors and their texts. ACCELERANT_FUZZ_DOCUMENTS sets the number of documents.
"""

import collections
import copy
import json
import os
import random

import torch
from replay import Replay, close_enough, from_json, seed_from_environment, tensor_to_json, to_json

DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "2500"))
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
DTYPES = ["float32", "float32", "float32", "float64", "bfloat16", "float16"]


# --- The original ---------------------------------------------------------------------------------


class Original:
    """Runs a document on torch.amp.GradScaler."""

    def __init__(self, document):
        self.scaler = torch.amp.GradScaler(document["device"], **document["scaler"])
        self.parameters, self.optimizers = [], []
        for description in document["optimizers"]:
            dtype = getattr(torch, description["dtype"])
            parameters = [
                torch.tensor(values, dtype=dtype, requires_grad=True) for values in description["params"]
            ]
            self.parameters.append(parameters)
            self.optimizers.append(KINDS[description["kind"]](parameters, lr=description["lr"]))

    def run(self, operation):
        try:
            return getattr(self, operation["op"])(operation)
        except (AssertionError, RuntimeError, ValueError, KeyError) as error:
            return {"error": str(error)}

    def gradients(self, index):
        return [tensor_to_json(parameter.grad) for parameter in self.parameters[index]]

    def scale(self, operation):
        outputs = [torch.tensor(from_json(value)) for value in operation["values"]]
        return {"values": [to_json(scaled.item()) for scaled in self.scaler.scale(outputs)]}

    def grads(self, operation):
        for parameter, values in zip(self.parameters[operation["optimizer"]], operation["values"]):
            parameter.grad = None
            if values is not None:
                numbers = [from_json(value) for value in values]
                parameter.grad = torch.tensor(numbers, dtype=torch.float64).to(parameter.dtype)
        return {}

    def unscale_(self, operation):
        index = operation["optimizer"]
        self.scaler.unscale_(self.optimizers[index])
        found = 0
        if self.scaler.is_enabled():
            flags = self.scaler._found_inf_per_device(self.optimizers[index]).values()
            found = int(any(flag.item() for flag in flags))
        return {"grads": self.gradients(index), "found_inf": found}

    def clip_grad_norm(self, operation):
        index = operation["optimizer"]
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters[index], operation["max_norm"], from_json(operation["norm_type"])
        )
        return {"norm": to_json(norm.item()), "grads": self.gradients(index)}

    def clip_grad_value(self, operation):
        index = operation["optimizer"]
        torch.nn.utils.clip_grad_value_(self.parameters[index], operation["value"])
        return {"grads": self.gradients(index)}

    def step(self, operation):
        # The original does not report whether it skipped, so the optimizer is watched.
        index = operation["optimizer"]
        optimizer, stepped = self.optimizers[index], []
        hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        try:
            self.scaler.step(optimizer)
        finally:
            hook.remove()
        params = [tensor_to_json(parameter.detach()) for parameter in self.parameters[index]]
        return {"skipped": not stepped, "params": params}

    def update(self, operation):
        self.scaler.update(operation.get("new_scale"))
        return {"scale": to_json(self.scaler.get_scale()), "growth_tracker": self.scaler._get_growth_tracker()}

    def get_scale(self, operation):
        return {"scale": to_json(self.scaler.get_scale())}

    def set(self, operation):
        for key in ("growth_factor", "backoff_factor", "growth_interval"):
            if key in operation:
                getattr(self.scaler, f"set_{key}")(operation[key])
        return {}

    def state_dict(self, operation):
        return {"state": self.scaler.state_dict()}

    def load_state_dict(self, operation):
        self.scaler.load_state_dict(operation["state"])
        return {}


# --- Random documents -----------------------------------------------------------------------------


def random_gradient(rng, size):
    magnitude = 10.0 ** rng.uniform(-4, 6)
    values = [rng.choice([0.0, rng.gauss(0, magnitude)]) if rng.random() < 0.1 else rng.gauss(0, magnitude)
              for _ in range(size)]
    if rng.random() < 0.15:
        values[rng.randrange(size)] = rng.choice(["inf", "-inf", "nan"])
    return values


def random_state(rng):
    state = {
        "scale": 2.0 ** rng.randint(-10, 20),
        "growth_factor": rng.choice([2.0, 1.5, 4.0]),
        "backoff_factor": rng.choice([0.5, 0.25]),
        "growth_interval": rng.randint(1, 4),
        "_growth_tracker": 0,
    }
    if rng.random() < 0.15:
        del state[rng.choice(list(state))]
    return {} if rng.random() < 0.1 else state


def random_operation(rng, document):
    optimizers = document["optimizers"]
    index = rng.randrange(len(optimizers))
    sizes = [len(values) for values in optimizers[index]["params"]]
    op = rng.choices(
        ["grads", "scale", "unscale_", "clip_grad_norm", "clip_grad_value", "step", "update",
         "get_scale", "set", "state_dict", "load_state_dict"],
        weights=[6, 2, 4, 2, 1, 6, 6, 1, 1, 1, 1],
    )[0]
    if op == "scale":
        return {"op": op, "values": [rng.gauss(0, 10) for _ in range(rng.randint(0, 3))]}
    if op == "grads":
        values = [None if rng.random() < 0.1 else random_gradient(rng, size) for size in sizes]
        return {"op": op, "optimizer": index, "values": values}
    if op == "clip_grad_norm":
        norm_type = rng.choice([2.0, 2.0, 1.0, 3.5, "inf", 0.0])
        return {"op": op, "optimizer": index, "max_norm": 10.0 ** rng.uniform(-2, 2), "norm_type": norm_type}
    if op == "clip_grad_value":
        return {"op": op, "optimizer": index, "value": 10.0 ** rng.uniform(-2, 2)}
    if op in ("unscale_", "step"):
        return {"op": op, "optimizer": index}
    if op == "update" and rng.random() < 0.1:
        return {"op": op, "new_scale": 2.0 ** rng.randint(-10, 20)}
    if op == "set":
        return {"op": op, **rng.choice([{"growth_factor": rng.choice([1.5, 3.0])},
                                        {"backoff_factor": rng.choice([0.25, 0.75])},
                                        {"growth_interval": rng.randint(1, 4)}])}
    if op == "load_state_dict":
        return {"op": op, "state": random_state(rng)}
    return {"op": op}


def random_document(rng):
    document = {
        "device": "cpu",
        "scaler": {
            "init_scale": rng.choice([1.0, 4.0, 65536.0, 2.0**40, 3.7, 2.0**-20]),
            "growth_factor": rng.choice([2.0, 1.5, 4.0, 1.0]) if rng.random() < 0.2 else 2.0,
            "backoff_factor": rng.choice([0.5, 0.25, 0.9, 1.0]) if rng.random() < 0.2 else 0.5,
            "growth_interval": rng.choice([1, 2, 3, 2000]),
            "enabled": rng.random() < 0.93,
        },
        "optimizers": [
            {
                "kind": rng.choice(list(KINDS)),
                "lr": 10.0 ** rng.uniform(-3, -0.5),
                "dtype": rng.choice(DTYPES),
                "params": [[rng.gauss(0, 1) for _ in range(rng.randint(1, 4))]
                           for _ in range(rng.randint(1, 3))],
            }
            for _ in range(rng.randint(1, 3))
        ],
    }
    operations = [random_operation(rng, document) for _ in range(rng.randint(3, 25))]
    if rng.random() < 0.9:
        operations.insert(0, {"op": "scale", "values": [1.0]})
    document["ops"] = operations
    return document


# --- Comparison -----------------------------------------------------------------------------------


class Differences:
    """Follows a document and knows where the library differs from PyTorch on purpose."""

    def __init__(self, document):
        self.dtypes = [optimizer["dtype"] for optimizer in document["optimizers"]]
        self.unscaled, self.changed_since = set(), set()

    def follow(self, operation, theirs):
        op, index = operation["op"], operation.get("optimizer")
        if op == "unscale_" and "error" not in theirs:
            self.unscaled.add(index)
        if op in ("grads", "clip_grad_norm", "clip_grad_value") and index in self.unscaled:
            self.changed_since.add(index)
        if op == "update" and "error" not in theirs:
            self.unscaled.clear()
            self.changed_since.clear()

    def reason(self, operation, theirs, ours, growth_interval):
        """Why the two may differ here, and whether they are nevertheless in the same state."""
        op, index = operation["op"], operation.get("optimizer")
        if op == "load_state_dict" and "incomplete" in ours.get("error", "") and "error" in theirs:
            return "a state with a missing key is refused whole, not taken in part", False
        if op == "clip_grad_value" and "nested_tensorlist" in theirs.get("error", ""):
            return "clipping no gradients by value is no error", True
        if op == "step" and index in self.changed_since and ours.get("skipped"):
            return "gradients spoiled after unscale_ are caught", False
        if op == "unscale_" and ours.get("found_inf") == 1 and not_finite(theirs.get("grads")):
            return "values that overflow by unscaling count", False
        if op == "step" and ours.get("skipped") and not_finite(theirs.get("params")):
            return "values that overflow by unscaling count", False
        if op == "update" and theirs.get("growth_tracker", 0) >= growth_interval:
            return "growth does not stall behind a lowered interval", False
        if op == "clip_grad_norm" and self.dtypes[index] in ("float16", "bfloat16"):
            return "norms of 16-bit gradients are made in float32", False
        return None, False


def not_finite(tensors):
    return any(isinstance(value, str) for values in tensors or [] if values for value in values)


def tolerance(dtype):
    """For parameters, relative and absolute, per step: the two optimizers round in different
    places."""
    return {"bfloat16": 3e-2, "float16": 4e-3, "float32": 2e-5, "float64": 2e-5}[dtype]


def compare(document, ours):
    """Returns what is wrong, or None, and the intended differences that occurred."""
    met = []
    try:
        original = Original(document)
    except AssertionError as error:
        return (None if ours == {"error": str(error)} else f"{ours} instead of error {error}"), met
    if "results" not in ours:
        return f"no results: {ours}", met
    differences = Differences(document)
    steps = collections.Counter()
    for number, (operation, mine) in enumerate(zip(document["ops"], ours["results"], strict=True)):
        theirs = original.run(copy.deepcopy(operation))
        mine.get("state", {}).pop("accelerant", None)
        differences.follow(operation, theirs)
        index = operation.get("optimizer")
        # Everything except what optimizers compute must agree bit for bit.
        relative = 0.0
        if operation["op"] == "step":
            steps[index] += 1
            relative = steps[index] * tolerance(document["optimizers"][index]["dtype"])
        if close_enough(mine, theirs, relative, absolute=relative):
            continue
        reason, same_state = differences.reason(
            operation, theirs, mine, original.scaler.get_growth_interval() if original.scaler.is_enabled() else 0
        )
        if reason:
            met.append(reason)
        if same_state:
            continue
        if reason:
            return None, met
        return f"op {number} {operation}:\n  ours     {mine}\n  original {theirs}", met
    return None, met


def test_scaler_agrees_with_the_original():
    seed = seed_from_environment()
    rng = random.Random(seed)
    replay = Replay("scaler")
    met = {}
    operations = skipped = errors = 0
    for number in range(DOCUMENTS):
        document = random_document(rng)
        ours = replay(document)
        problem, differences = compare(document, ours)
        assert problem is None, (
            f"seed {seed}, document {number}: {problem}\n{json.dumps(document)}"
        )
        for difference in differences:
            met[difference] = met.get(difference, 0) + 1
        for result in ours.get("results", []):
            operations += 1
            skipped += bool(result.get("skipped"))
            errors += "error" in result
    replay.close()
    print(f"{operations} operations, {skipped} skipped steps, {errors} errors; on purpose: {met}")
    # A fuzzer that finds nothing interesting proves nothing.
    assert skipped > DOCUMENTS / 50 and errors > DOCUMENTS / 10
    assert sum(met.values()) < DOCUMENTS / 2


def test_states_travel_both_ways():
    rng = random.Random(seed_from_environment())
    replay = Replay("scaler")
    for _ in range(50):
        theirs = torch.amp.GradScaler("cpu", init_scale=2.0 ** rng.randint(-5, 30), growth_interval=3)
        theirs.scale(torch.ones(()))
        state = theirs.state_dict() | {"_growth_tracker": rng.randint(0, 2)}
        document = {
            "device": "cpu",
            "optimizers": [],
            "ops": [{"op": "load_state_dict", "state": state}, {"op": "state_dict"}],
        }
        ours = replay(document)["results"][1]["state"]
        restored = torch.amp.GradScaler("cpu")
        restored.load_state_dict(ours)  # our extra key does no harm
        assert restored.state_dict() == state
        ours.pop("accelerant")
        assert ours == state
    replay.close()


def test_documents_that_cannot_be_understood():
    replay = Replay("scaler")
    assert "error" in replay({"ops": [{"op": "no such thing"}]})
    assert "error" in replay({})
    assert replay({"device": "cpu", "ops": [{"op": "get_scale"}]}) == {"results": [{"scale": 65536.0}]}
    replay.close()
