"""Optimizer states move between C++ and Python's torch.optim, and the training continues as if it
had not moved.

Random optimizers (kind, options, groups, parameters without gradients) train a few steps on one
side. The other side loads the state, in Python with Optimizer.load_state_dict, and both continue.
"""

import copy
import json
import os

import pytest
import torch
from replay import close_enough, tensor_to_json

TOPIC = "optimizer_state"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "300"))
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
KINDS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS"]


# --- Random documents -----------------------------------------------------------------------------


def random_options(rng, kind):
    lr = rng.choice([0.001, 0.01, 0.05])
    if kind == "LBFGS":
        line_search_fn = rng.choice([None, "strong_wolfe"])
        max_iter = rng.randint(1, 4)
        return {
            "lr": 0.5 if line_search_fn else lr,
            "max_iter": max_iter,
            # Python's line search stops at this limit, that of C++ only after 25 evaluations.
            "max_eval": 1000 if line_search_fn else max_iter * 5 // 4,
            "history_size": rng.choice([2, 5, 100]),
            "line_search_fn": line_search_fn,
        }
    options = {"lr": lr, "weight_decay": rng.choice([0.0, 0.1])}
    if kind == "SGD":
        options["momentum"] = rng.choice([0.0, 0.5, 0.9])
        options["nesterov"] = options["momentum"] > 0 and rng.random() < 0.4
        options["dampening"] = 0.0 if options["nesterov"] else rng.choice([0.0, 0.3])
    elif kind in ("Adam", "AdamW"):
        options["betas"] = rng.choice([[0.9, 0.999], [0.5, 0.9]])
        options["amsgrad"] = rng.random() < 0.5
    elif kind == "Adagrad":
        options["lr_decay"] = rng.choice([0.0, 0.1])
        options["initial_accumulator_value"] = rng.choice([0.0, 0.5])
    elif kind == "RMSprop":
        options["alpha"] = rng.choice([0.9, 0.99])
        options["momentum"] = rng.choice([0.0, 0.9])
        options["centered"] = rng.random() < 0.5
    return options


def random_document(rng, kind):
    groups = []
    count = 1 if kind == "LBFGS" else rng.randint(1, 3)
    first_sum = rng.choice([0.0, 0.5])
    for _ in range(count):
        options = random_options(rng, kind)
        if kind == "Adagrad":  # in C++ one value for all groups
            options["initial_accumulator_value"] = first_sum
        shapes = [rng.choice([[], [3], [2, 3], [2, 1, 2]]) for _ in range(rng.randint(1, 3))]
        params = []
        for shape in shapes:
            size = int(torch.Size(shape).numel())
            # float32 numbers, so that both sides start with the same values.
            values = torch.tensor([rng.uniform(-2, 2) for _ in range(size)], dtype=torch.float32).tolist()
            params.append({"shape": shape, "values": values})
        groups.append({"options": options, "params": params})
    number = sum(len(group["params"]) for group in groups)
    idle = [rng.random() < 0.2 for _ in range(number)]
    if all(idle):
        idle[0] = False
    fixed = [rng.choice([0.5, 1.0, 2.0]) for _ in range(number)]  # a line search needs one function
    steps = []
    # At the minimum a line search compares losses that differ only by rounding, so LBFGS must not
    # come near it.
    for _ in range(rng.randint(2, 3 if kind == "LBFGS" else 10)):
        factors = fixed if kind == "LBFGS" else [rng.uniform(0.1, 2) for _ in range(number)]
        steps.append([None if idle[i] else factors[i] for i in range(number)])
    dtype = "float64" if kind == "LBFGS" else rng.choice(list(TOLERANCE))
    return {"kind": kind, "dtype": dtype, "groups": groups, "steps": steps}


# --- The original ---------------------------------------------------------------------------------


class Original:
    """The document's optimizer in Python."""

    def __init__(self, document, values=None):
        dtype = getattr(torch, document["dtype"])
        self.params, groups = [], []
        for group in document["groups"]:
            params = []
            for param in group["params"]:
                numbers = param["values"] if values is None else values[len(self.params)]
                params.append(torch.tensor(numbers, dtype=dtype).view(param["shape"]).requires_grad_())
                self.params.append(params[-1])
            groups.append({"params": params, **group["options"]})
        self.optimizer = getattr(torch.optim, document["kind"])(groups, lr=0.1)

    def run(self, steps):
        for factors in steps:

            def closure():
                self.optimizer.zero_grad()
                loss = torch.zeros((), dtype=self.params[0].dtype)
                for factor, param in zip(factors, self.params):
                    if factor is not None:
                        loss = loss + (factor * (param - 1).pow(2) + param.sin()).sum()
                loss.backward()
                return loss

            self.optimizer.step(closure)
        return [tensor_to_json(param.detach()) for param in self.params]


# --- Python's structure as two parts, values and tensors by path ---------------------------------


def split(tree):
    tensors = {}

    def visit(value, path):
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            tensors[path] = {"dtype": dtype, "shape": list(value.shape), "values": tensor_to_json(value)}
            return None
        if isinstance(value, dict):
            items = {str(key): visit(part, f"{path}{'.' if path else ''}{key}") for key, part in value.items()}
            return {key: part for key, part in items.items() if f"{path}.{key}" not in tensors}
        if isinstance(value, (list, tuple)):
            return [visit(part, f"{path}.{i}") for i, part in enumerate(value)]
        return value

    values = visit(tree, "")
    return {"values": values, "tensors": tensors}


def joined(parts):
    tree = copy.deepcopy(parts["values"])
    tree["state"] = {int(key): entry for key, entry in tree["state"].items()}
    for path, tensor in parts["tensors"].items():
        _, index, field, *place = path.split(".")
        value = torch.tensor(tensor["values"], dtype=getattr(torch, tensor["dtype"])).view(tensor["shape"])
        if place:
            tree["state"][int(index)][field][int(place[0])] = value
        else:
            tree["state"][int(index)][field] = value
    return tree


# --- The tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_python_goes_on_from_our_state(replay, rng, kind):
    for _ in range(DOCUMENTS // len(KINDS)):
        document = random_document(rng, kind)
        text = json.dumps(document)
        cut = rng.randrange(len(document["steps"]))
        begun = replay({**document, "steps": document["steps"][:cut]})
        assert "error" not in begun, f"{begun}\n{text}"
        original = Original(document, begun["params"])
        state = joined(begun["state"])
        mine = original.optimizer.state_dict()
        for ours, theirs in zip(state["param_groups"], mine["param_groups"]):
            assert ours.keys() == theirs.keys(), text
        original.optimizer.load_state_dict(state)
        whole = replay(document)
        tolerance = TOLERANCE[document["dtype"]]
        expected = original.run(document["steps"][cut:])
        assert close_enough(whole["params"], expected, tolerance, tolerance), f"cut {cut}\n{text}"


@pytest.mark.parametrize("kind", KINDS)
def test_we_go_on_from_a_python_state(replay, rng, kind):
    for _ in range(DOCUMENTS // len(KINDS)):
        document = random_document(rng, kind)
        cut = rng.randrange(len(document["steps"]))
        original = Original(document)
        begun = original.run(document["steps"][:cut])
        rest = copy.deepcopy(document)
        rest["steps"] = document["steps"][cut:]
        rest["state"] = split(original.optimizer.state_dict())
        places = iter(begun)
        for group in rest["groups"]:
            for param in group["params"]:
                param["values"] = next(places)
            group["options"]["lr"] = 0.123  # the value in the state counts
        result = replay(rest)
        text = json.dumps(rest)
        assert "error" not in result, f"{result}\n{text}"
        tolerance = TOLERANCE[document["dtype"]]
        expected = original.run(rest["steps"])
        assert close_enough(result["params"], expected, tolerance, tolerance), text


@pytest.mark.parametrize("kind", KINDS)
def test_through_files(replay, rng, tmp_path, kind):
    """C++ loads Python's file, Python loads ours with torch.load(weights_only=True), and both
    continue."""
    for number in range(20):
        document = random_document(rng, kind)
        cut = rng.randrange(len(document["steps"]))
        original = Original(document)
        begun = original.run(document["steps"][:cut])
        theirs, ours = str(tmp_path / f"theirs{number}.bin"), str(tmp_path / f"ours{number}.bin")
        torch.save(original.optimizer.state_dict(), theirs)
        start = copy.deepcopy(document)
        places = iter(begun)
        for group in start["groups"]:
            for param in group["params"]:
                param["values"] = next(places)
        text = json.dumps(start)
        result = replay({**start, "steps": [], "load_file": theirs, "save_file": ours})
        assert "error" not in result, f"{result}\n{text}"
        again = Original(start, begun)
        state = torch.load(ours, weights_only=True)
        assert [type(key) for key in state["state"]] == [int] * len(state["state"])
        for group in state["param_groups"]:
            assert type(group.get("betas", ())) is tuple
        again.optimizer.load_state_dict(state)
        rest = document["steps"][cut:]
        expected = original.run(rest)
        assert again.run(rest) == expected, text
        result = replay({**start, "steps": rest, "load_file": ours})
        tolerance = TOLERANCE[document["dtype"]]
        assert close_enough(result["params"], expected, tolerance, tolerance), text


@pytest.mark.parametrize("kind", KINDS)
def test_our_state_has_the_fields_of_python(replay, rng, kind):
    """The same keys, types and shapes. What LBFGS keeps depends on numbers that may differ in the
    last bit."""
    for _ in range(20):
        document = random_document(rng, kind)
        original = Original(document)
        original.run(document["steps"])
        ours, theirs = replay(document)["state"], split(original.optimizer.state_dict())
        if kind == "LBFGS":
            assert ours["values"]["state"]["0"]["n_iter"] == theirs["values"]["state"]["0"]["n_iter"]
            continue
        assert ours["values"]["state"] == theirs["values"]["state"], json.dumps(document)
        assert ours["tensors"].keys() == theirs["tensors"].keys()
        for path, tensor in ours["tensors"].items():
            assert tensor["dtype"] == theirs["tensors"][path]["dtype"], path
            assert tensor["shape"] == theirs["tensors"][path]["shape"], path


def test_what_libtorch_lacks_is_refused(replay):
    document = {"kind": "Adam", "dtype": "float32", "steps": []}
    document["groups"] = [{"options": {"lr": 0.1}, "params": [{"shape": [1], "values": [1.0]}]}]
    for option in ("maximize", "decoupled_weight_decay"):
        optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], **{option: True})
        result = replay({**document, "state": split(optimizer.state_dict())})
        assert "torch::optim::Adam" in result["error"]
