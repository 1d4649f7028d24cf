"""Random models and limits: compares device maps with Accelerate's.

Each document is a tree of modules (tied parameters, buffers, shared modules, names that are parts of
each other, classes that are not to be split), limits for some devices, and a map to be cleaned and
checked. Accelerate gets the same model on the meta device. ACCELERANT_FUZZ_DOCUMENTS sets the number
of documents.

Where the library differs on purpose:

* Accelerate ends with an IndexError, a KeyError or another error of Python in some cases of tied
  parameters, of GPUs whose numbers have gaps, of the type bool, and of a limit for the disk, and
  never ends in some others. Then only the invariants of a device map are checked;
* Accelerate visits tied groups in the order of a hash table. Here they come in the order of the model;
* names of tensors in a map are no reason for a warning.
"""

import copy
import math
import os
import signal
import warnings

import pytest
import torch
from accelerate.utils import modeling
from torch import nn

TOPIC = "device_map"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "800"))

CLASSES = ["Module", "Block", "Attention", "Embedding"]
NAMES = ["0", "1", "2", "10", "11", "a", "ab", "layer", "layer1", "head"]
TENSORS = ["weight", "bias", "scale"]
BUFFERS = ["mask", "mean", "steps"]
ERRORS_OF_THE_ORIGINAL = (IndexError, KeyError, AttributeError, TypeError, RuntimeError)


# --- Documents ------------------------------------------------------------------------------------


def random_tensor(rng, types):
    return [[rng.randint(0, 12) for _ in range(rng.randint(0, 2))], rng.choice(types)]


def random_tensors(rng, names, most, types):
    return {name: random_tensor(rng, types) for name in rng.sample(names, rng.randint(0, most))}


def random_module(rng, name, depth, style):
    module = {
        "name": name,
        "parameters": random_tensors(rng, TENSORS if name else style["own"], 2, style["types"]),
        "buffers": random_tensors(rng, BUFFERS, 2, style["buffer_types"]) if style["buffers"] else {},
        "children": [],
    }
    # Modules without children always hold something in half of the models.
    if depth > 0:
        for child in rng.sample(NAMES, rng.randint(0, style["most_children"])):
            child = f"{style['mark'] * depth}{child}"
            module["children"].append(random_module(rng, child, depth - 1, style))
    if style["full"] and not module["children"] and not module["parameters"]:
        module["parameters"]["weight"] = [[rng.randint(1, 30), rng.randint(1, 4)], style["types"][0]]
    return module


def visit(module, name=""):
    """All modules with their full names."""
    yield name, module
    for child in module["children"]:
        if "same_as" not in child:
            yield from visit(child, f"{name}.{child['name']}" if name else child["name"])


def full_name(module, tensor):
    return f"{module}.{tensor}" if module else tensor


def share_modules(rng, root):
    """Registers some module a second time."""
    modules = [(name, module) for name, module in visit(root) if name]
    if not modules:
        return
    source, _ = rng.choice(modules)
    holders = [
        module
        for name, module in visit(root)
        if not (source + ".").startswith(name + ".") or name == source.rpartition(".")[0]
    ]
    holder = rng.choice(holders + [root])
    if holder is not root and any(module is holder for _, module in visit(dict(modules)[source])):
        return
    holder["children"].append({"name": "again", "same_as": source})


def tie_parameters(rng, root):
    # The original fails for most ties of parameters that have modules beside them.
    names = [
        full_name(name, tensor)
        for name, module in visit(root)
        for tensor in module["parameters"]
        if not module["children"] or rng.random() < 0.05
    ]
    if len(names) < 2:
        return []
    rng.shuffle(names)
    groups = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        size = rng.randint(2, 3)
        if len(names) >= size:
            groups.append([names.pop() for _ in range(size)])
    return groups


def random_limits(rng, total, largest):
    def limit():
        if rng.random() < 0.05:
            return 0
        return int(total * rng.uniform(0.05, 0.7)) + rng.choice([0, largest, largest])

    limits = {}
    for device in ["0", "1", "2", "3"][: rng.randint(0, 4)]:
        if rng.random() < 0.95:
            limits[device] = limit()
    if rng.random() < 0.6 or not limits:
        limits["cpu"] = limit()
    if rng.random() < 0.1:
        limits["disk"] = 10 * total
    if rng.random() < 0.1:
        limits[rng.choice(list(limits))] = rng.choice(["0.5KB", "1KiB", "2kb", "0.001MB"])
    return limits


def random_map(rng, root):
    names = [name for name, _ in visit(root)]
    names += [full_name(m, t) for m, module in visit(root) for t in [*module["parameters"], *module["buffers"]]]
    chosen = rng.sample(names, rng.randint(1, len(names)))
    places = rng.choice([[0], [0, "cpu"], [0, 1, "cpu", "disk"]])
    return {name: rng.choice(places) for name in chosen}


def random_document(rng):
    style = {
        "types": rng.choice([["float32"], ["float32", "float16", "bfloat16"], ["float32", "int64", "int8", "bool"]]),
        "buffer_types": rng.choice([["float32", "int64"], ["float32", "bool", "float16"]]),
        "buffers": rng.random() < 0.5,
        "full": rng.random() < 0.8,
        "most_children": rng.choice([2, 3, 5]),
        "mark": "",
        "own": TENSORS,
    }
    if rng.random() < 0.75:
        # The original takes "1" for a part of "a.1", and then often fails.
        style |= {"mark": "m", "own": ["gain", "shift"]}
    root = random_module(rng, "", rng.randint(1, 4), style)
    for name in ["a", "b"]:
        if not any(child["name"] == name for child in root["children"]):
            root["children"].append(random_module(rng, name, 1, {**style, "full": True}))
    tied = tie_parameters(rng, root) if rng.random() < 0.3 else []
    if rng.random() < 0.1:
        share_modules(rng, root)
    document = {
        "modules": root,
        "types": {name: rng.choice(CLASSES) for name, _ in visit(root)},
        "tied": tied,
        "no_split": rng.sample(CLASSES[1:], rng.randint(0, 2)),
        "dtype": rng.choice([None, None, "float16", "float64", "int8"]),
        "special_dtypes": {},
        "offload_buffers": rng.random() < 0.3,
        "fallback_allocation": rng.random() < 0.3,
        "clean_result": rng.random() < 0.5,
        "clean": random_map(rng, root),
        "check": random_map(rng, root),
    }
    if rng.random() < 0.2:
        for module, data in visit(root):
            for tensor in data["parameters"]:
                if rng.random() < 0.3:
                    document["special_dtypes"][full_name(module, tensor)] = rng.choice(["float16", "float64", "int8"])
    model = model_of(document)
    total = modeling.compute_module_sizes(model, **types_of(document)).get("", 0)
    largest = original_largest(model, document)["bytes"]
    document["max_memory"] = random_limits(rng, int(total) + 1, largest)
    return document


# --- The original ---------------------------------------------------------------------------------


def tensor_of(data):
    return torch.empty(data[0], dtype=getattr(torch, data[1]), device="meta")


def build(data, name, types, built):
    module = type(types.get(name, "Module"), (nn.Module,), {})()
    built[name] = module
    for key, tensor in data["parameters"].items():
        module.register_parameter(key, nn.Parameter(tensor_of(tensor), requires_grad=False))
    for key, tensor in data["buffers"].items():
        module.register_buffer(key, tensor_of(tensor))
    for child in data["children"]:
        if "same_as" not in child:
            full = full_name(name, child["name"])
            module.add_module(child["name"], build(child, full, types, built))
    return module


def add_shared_modules(data, name, built):
    for child in data["children"]:
        if "same_as" in child:
            built[name].add_module(child["name"], built[child["same_as"]])
        else:
            add_shared_modules(child, full_name(name, child["name"]), built)


def model_of(document):
    built = {}
    model = build(document["modules"], "", document["types"], built)
    add_shared_modules(document["modules"], "", built)
    for names in document["tied"]:
        first, key = names[0].rpartition(".")[::2]
        shared = getattr(built[first], key)
        for name in names[1:]:
            module, key = name.rpartition(".")[::2]
            setattr(built[module], key, shared)
    return model


def limits_of(document):
    return {int(k) if k.isdigit() else k: v for k, v in document["max_memory"].items()}


@pytest.fixture(autouse=True)
def tied_groups_in_order(monkeypatch):
    """Accelerate finds tied groups in the order of a hash table, and that order changes its results."""
    find = modeling.find_tied_parameters

    def in_order(model, **kwargs):
        order = {name: i for i, (name, _) in enumerate(model.named_parameters(remove_duplicate=False))}
        return sorted(find(model, **kwargs), key=lambda group: min(order[name] for name in group))

    monkeypatch.setattr(modeling, "find_tied_parameters", in_order)
    monkeypatch.setattr(modeling.logger, "disabled", True)  # it misses the GPUs


class NeverEnds(Exception):
    pass


def result_of(function, seconds=2):
    """The function's result; None if it fails or does not end."""

    def give_up(*_):
        raise NeverEnds

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function()
    except (*ERRORS_OF_THE_ORIGINAL, NeverEnds):
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def types_of(document):
    dtype = document["dtype"]
    return {
        "dtype": getattr(torch, dtype) if dtype else None,
        "special_dtypes": {k: getattr(torch, v) for k, v in document["special_dtypes"].items()},
    }


def original_map(model, document):
    """The map, and whether the buffers found no room."""

    def infer():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            device_map = modeling.infer_auto_device_map(
                model,
                max_memory=limits_of(document),
                no_split_module_classes=document["no_split"],
                clean_result=document["clean_result"],
                offload_buffers=document["offload_buffers"],
                fallback_allocation=document["fallback_allocation"],
                **types_of(document),
            )
        return dict(device_map), any("of buffer" in str(w.message) for w in caught)

    return result_of(infer)


def original_balance(model, document, low_zero):
    return result_of(
        lambda: {
            str(device): math.ceil(size)
            for device, size in modeling.get_balanced_memory(
                model,
                max_memory=limits_of(document),
                no_split_module_classes=document["no_split"],
                low_zero=low_zero,
                **types_of(document),
            ).items()
        }
    )


def original_largest(model, document):
    sizes = modeling.compute_module_sizes(model, **types_of(document))
    parts = [
        *model.named_parameters(recurse=False),
        *model.named_children(),
        *model.named_buffers(recurse=False),
    ]
    size, names = modeling.get_max_layer_size(parts, sizes, document["no_split"])
    return {"bytes": math.ceil(size), "names": names}


def original_check(model, device_map):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            modeling.check_device_map(model, dict(device_map))
        except ValueError as error:
            return str(error)
    return None


# --- Comparison -----------------------------------------------------------------------------------


def place_of(name, device_map):
    parents = [name[:i] for i, c in enumerate(name + ".") if c == "."]
    return next(device_map[parent] for parent in [*reversed(parents), ""] if parent in device_map)


def check_invariants(model, document, device_map, sizes):
    """Every parameter has a place. All of them fit there; tied ones are sometimes counted too small."""
    limits = {str(k): v for k, v in modeling.get_max_memory(limits_of(document)).items()}
    used = dict.fromkeys(limits, 0) | {"disk": 0}
    limits["disk"] = math.inf
    for name, _ in model.named_parameters():
        used[str(place_of(name, device_map))] += sizes[name]
    if not modeling.find_tied_parameters(model):
        assert all(used[device] <= limits[device] for device in used), (used, limits)


def compare(replay, document):
    """Returns how much of the original could be compared."""
    model = model_of(document)
    ours = replay(document)
    assert isinstance(ours.get("device_map"), dict) and "error" not in ours, ours
    compared = {"map": 0, "balanced": 0}

    sizes = modeling.compute_module_sizes(model, **types_of(document))
    assert ours["sizes"] == {"": 0} | {name: math.ceil(size) for name, size in sizes.items()}
    buffers = modeling.compute_module_total_buffer_size(model, **types_of(document))
    assert ours["buffer_bytes"] == math.ceil(buffers)
    assert ours["largest"] == original_largest(model, document)
    assert ours["tied"] == modeling.find_tied_parameters(model)
    assert ours["cleaned"] == modeling.clean_device_map(dict(document["clean"]))

    check = original_check(model, document["check"])
    if check is None or check.count(", ") < 20:
        found = ours["check"]["error"] if isinstance(ours["check"], dict) else None
        assert found == check

    for key, low_zero in [("balanced", False), ("balanced_low_0", True)]:
        expected = original_balance(model, document, low_zero)
        if expected is not None:
            assert ours[key] == expected
            compared["balanced"] += 1

    check_invariants(model, document, ours["device_map"], sizes)
    expected = original_map(model, document)
    if expected is not None:
        assert ours["device_map"] == expected[0]
        assert any("of buffer" in text for text in ours["messages"]) == expected[1]
        compared["map"] += 1
    return compared


def is_failing(replay, document):
    try:
        compare(replay, document)
    except AssertionError:
        return True
    return False


def smaller(document):
    """The document without one of its parts, in all ways."""
    for key in ["tied", "no_split", "special_dtypes"]:
        for i in range(len(document[key])):
            less = copy.deepcopy(document)
            if isinstance(less[key], dict):
                less[key].pop(list(less[key])[i])
            else:
                less[key].pop(i)
            yield less
    if any("same_as" in child for _, m in visit(document["modules"]) for child in m["children"]):
        return
    tied = {name for group in document["tied"] for name in group}
    for i, (name, module) in enumerate(visit(document["modules"])):
        for kind in ["parameters", "buffers"]:
            for tensor in module[kind]:
                if full_name(name, tensor) not in tied:
                    less = copy.deepcopy(document)
                    list(visit(less["modules"]))[i][1][kind].pop(tensor)
                    yield less
        for j, child in enumerate(module["children"]):
            if not any(t.startswith(full_name(name, child["name"]) + ".") for t in tied):
                less = copy.deepcopy(document)
                list(visit(less["modules"]))[i][1]["children"].pop(j)
                yield less


def shrink(replay, document):
    while True:
        less = next((d for d in smaller(document) if is_failing(replay, d)), None)
        if less is None:
            return document
        document = less


def test_random_models(replay, rng):
    compared = {"map": 0, "balanced": 0}
    for _ in range(DOCUMENTS):
        document = random_document(rng)
        try:
            for key, count in compare(replay, document).items():
                compared[key] += count
        except AssertionError:
            small = shrink(replay, document)
            print(f"\nsmallest failing document: {small}")
            compare(replay, small)
            raise
    print(f"\n{DOCUMENTS} documents, compared with the original: {compared}")
    assert compared["map"] > 0.7 * DOCUMENTS
    assert compared["balanced"] > DOCUMENTS
