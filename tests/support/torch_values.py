"""States as Python programs save them, real and random, and descriptions to compare them."""

import collections
import json
import struct
import warnings

import torch

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex128: "C128", torch.complex64: "C64", torch.complex32: "C32",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
}


# --- Descriptions ---------------------------------------------------------------------------------


def storage_bytes(storage):
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).tolist())


class Describer:
    """The description that accelerant-replay gives of a value."""

    def __init__(self):
        self.storages = {}

    def __call__(self, value):
        kind = type(value)
        if value is None or kind in (bool, int):
            return value
        if kind is float:
            return {"float": struct.unpack("<Q", struct.pack("<d", value))[0]}
        if kind is str:
            return {"str": value.encode("utf-8", "surrogatepass").hex()}
        if kind in (bytes, bytearray):
            return {kind.__name__: value.hex()}
        if kind in (list, tuple):
            return {kind.__name__: [self(item) for item in value]}
        if kind is torch.Size:
            return {"size": list(value)}
        if kind is set:
            return {"set": sorted(json.dumps(self(item), separators=(",", ":")) for item in value)}
        if kind in (dict, collections.OrderedDict, collections.Counter):
            name = {dict: "dict", collections.Counter: "counter"}.get(kind, "ordered")
            attributes = value.__dict__ if kind is collections.OrderedDict else {}
            return {name: self.items(value), "attributes": self.items(attributes)}
        if kind is torch.dtype:
            return {"dtype": DTYPES[value]}
        if kind is torch.device:
            return {"device": str(value)}
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {"tensor": self.tensor(value)}
        raise TypeError(f"not plain data: {kind}")

    def items(self, values):
        return [[self(key), self(item)] for key, item in values.items()]

    def tensor(self, value):
        storage = value.untyped_storage()
        number, is_new = None, False
        if storage.nbytes() > 0:  # torch.load does not keep empty storages shared
            is_new = storage._cdata not in self.storages
            number, _ = self.storages.setdefault(storage._cdata, (len(self.storages), storage))
        result = {
            "dtype": DTYPES[value.dtype], "shape": list(value.shape), "strides": list(value.stride()),
            "offset": value.storage_offset(), "requires_grad": value.requires_grad,
            "parameter": type(value) is torch.nn.Parameter, "storage": number,
            "location": str(storage.device),
        }
        if is_new:
            result["bytes"] = storage_bytes(storage).hex()
        if value.numel() < 10_000:
            flat = value.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
            result["elements"] = bytes(flat.view(torch.uint8).tolist()).hex() if flat.numel() else ""
        return result


def describe(value):
    return Describer()(value)


def difference(left, right, place="value"):
    """Where two descriptions first differ; None if nowhere."""
    if type(left) is not type(right):
        return f"{place}: {left!r:.200} and {right!r:.200}"
    if isinstance(left, dict) and left.keys() == right.keys():
        parts = [(key, left[key], right[key]) for key in left]
    elif isinstance(left, list) and len(left) == len(right):
        parts = [(number, *pair) for number, pair in enumerate(zip(left, right))]
    else:
        return None if left == right else f"{place}: {left!r:.200} and {right!r:.200}"
    found = (difference(a, b, f"{place}.{key}") for key, a, b in parts)
    return next((text for text in found if text), None)


def python_load(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, weights_only=True, **options)


# --- Random states --------------------------------------------------------------------------------


def random_text(rng):
    letters = ["a", "weight", ".", "0", "\n", "\0", "ä", "€", "𝄞", "\ud800", "'", " "]
    return "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 3, 10, 40, 200])))


def random_number(rng):
    return rng.choice([
        rng.randrange(-5, 300), rng.randrange(-2**16, 2**17), rng.randrange(-2**63, 2**63), 2**63 - 1, -2**63,
        2**31, -2**31 - 1, rng.gauss(0, 1), rng.uniform(-1e300, 1e300), float("inf"), float("-inf"),
        float("nan"), -0.0, 0.0, 5e-324,
    ])


def random_tensor(rng, pool):
    """A tensor of random type and layout, often sharing the storage of another one."""
    if pool and rng.random() < 0.4:
        whole = rng.choice(pool)
    else:
        dtype = rng.choice(list(DTYPES))
        size = rng.choice([0, 1, 2, 7, 64, 200])
        content = torch.tensor(list(rng.randbytes(size * dtype.itemsize)), dtype=torch.uint8)
        if dtype is torch.bool:
            content %= 2
        whole = torch.empty(0, dtype=dtype).set_(content.untyped_storage(), 0, (size,), (1,))
        pool.append(whole)
    tensor = whole
    kind = rng.randrange(6)
    if kind == 1 and whole.numel() > 2:
        begin = rng.randrange(whole.numel())
        tensor = whole[begin:rng.randrange(begin, whole.numel() + 1):rng.randint(1, 3)]
    elif kind == 2 and whole.numel() >= 6:
        tensor = whole.as_strided((2, 3), rng.choice([(3, 1), (1, 2), (0, 1), (0, 0)]))
    elif kind == 3 and whole.numel() >= 1:
        tensor = whole[0]
    elif kind == 4:
        tensor = whole.view(1, -1, 1).expand(2, -1, 3) if whole.numel() else whole.view(3, 0, 2)
    elif kind == 5 and whole.numel() >= 4:
        tensor = whole.as_strided((2, 2), (2, 1), 0).t()
    differentiable = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    choice = rng.randrange(4)
    if choice == 0:
        return torch.nn.Parameter(tensor, requires_grad=differentiable and rng.random() < 0.7)
    # Apart from parameters, torch.load itself cannot read tensors of the newer dtypes that require a gradient.
    if choice == 1 and tensor.dtype in torch.storage._dtype_to_storage_type_map() and differentiable:
        return tensor.detach().requires_grad_()
    return tensor.detach()


def random_key(rng):
    number = random_number(rng)
    return rng.choice([
        random_text(rng), random_text(rng), rng.randrange(100), number if number == number else 0, None, True,
        (1, random_text(rng)), rng.randbytes(3), torch.float32, torch.device("cuda", 3),
    ])


def random_value(rng, pool, depth=0):
    kind = rng.randrange(18 if depth < 4 else 12)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind in (1, 2):
        return random_number(rng)
    if kind == 3:
        return random_text(rng)
    if kind == 4:
        data = rng.randbytes(rng.randint(1, 9))  # not empty: torch.load cannot read empty ones from Python
        return rng.choice([data, bytearray(data), bytearray()])
    if kind == 5:
        return rng.choice([rng.choice(list(DTYPES)), torch.device("cpu"), torch.device("cuda", rng.randrange(9)),
                           torch.Size([rng.randrange(9) for _ in range(rng.randrange(4))])])
    if kind == 6:
        return {random_key(rng) for _ in range(rng.randrange(4))}
    if kind < 12:
        return random_tensor(rng, pool)
    size = rng.choice([0, 1, 2, 3, 4, 5])
    if kind in (12, 13):
        return [random_value(rng, pool, depth + 1) for _ in range(size)]
    if kind == 14:
        return tuple(random_value(rng, pool, depth + 1) for _ in range(size))
    result = rng.choice([dict, dict, collections.OrderedDict, collections.Counter])()
    for _ in range(size):
        result[random_key(rng)] = random_value(rng, pool, depth + 1)
    if type(result) is collections.OrderedDict and rng.random() < 0.3:
        result._metadata = random_value(rng, pool, depth + 1)
    return result


def optimizer_states():
    for kind, options in [(torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
                          (torch.optim.Adam, {"amsgrad": True}), (torch.optim.AdamW, {"lr": torch.tensor(0.1)}),
                          (torch.optim.AdamW, {"fused": True}), (torch.optim.RMSprop, {"centered": True}),
                          (torch.optim.Adagrad, {}), (torch.optim.LBFGS, {})]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        optimizer = kind(model.parameters(), **{"lr": 0.01, **options})

        def closure():
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        yield optimizer.state_dict()
        yield model.state_dict()
        yield {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        yield list(model.parameters())


def scheduler_states():
    module = torch.optim.lr_scheduler
    makers = [
        lambda o: module.StepLR(o, 3), lambda o: module.MultiStepLR(o, [2, 2, 5]),
        lambda o: module.LambdaLR(o, lambda step: 0.5**step), lambda o: module.ExponentialLR(o, 0.9),
        lambda o: module.CosineAnnealingLR(o, 10), lambda o: module.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: module.ReduceLROnPlateau(o), lambda o: module.CosineAnnealingWarmRestarts(o, 4),
        lambda o: module.SequentialLR(o, [module.ConstantLR(o), module.LinearLR(o)], [2]),
    ]
    for make in makers:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        scheduler = make(optimizer)
        for _ in range(3):
            optimizer.step()
            scheduler.step(*([1.0] if isinstance(scheduler, module.ReduceLROnPlateau) else []))
        yield scheduler.state_dict()


def real_states():
    yield from optimizer_states()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from scheduler_states()
    yield torch.amp.GradScaler("cpu").state_dict()
    yield {"step": 4, "torch_manual_seed": torch.get_rng_state(), "random_state": __import__("random").getstate()}
    embedding, head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    yield torch.nn.ModuleDict({"embedding": embedding, "head": head}).state_dict()
