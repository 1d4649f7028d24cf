"""The cast policies of autocast, operator by operator: AutocastGuard against torch.autocast.

The operators and their arguments are those of PyTorch's own autocast tests.
"""

import functools

import pytest
import torch
from replay import close_enough, tensor_to_json

pytest.importorskip("expecttest", reason="torch's own tests import it")
from torch.testing._internal import autocast_test_lists  # noqa: E402

TOPIC = "autocast"
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
LOWER = [torch.float16, torch.bfloat16]


def as_operator_arguments(name, entry):
    """The arguments of an entry as the operator takes them, if Python's function repacks them."""
    arguments = entry[1]
    keywords = next((extra for extra in entry[2:] if isinstance(extra, dict)), {})
    if name == "einsum":  # the entry holds matrices for an equation of four dimensions
        arguments = ("ij,jk->ik", list(entry[2]))
    elif name == "chain_matmul":
        arguments = (list(arguments),)
    elif name == "tensordot":  # the default: over two dimensions
        arguments = (*arguments, [-2, -1], [0, 1])
    elif name == "norm" and "dim" in keywords:
        keywords = {"p": 2, **keywords, "dim": [keywords["dim"]]}
    return arguments, keywords


@functools.cache
def operators(device):
    """(list name, operator, arguments, keyword arguments) of every entry that is a plain operator."""
    kind = (autocast_test_lists.AutocastCPUTestLists if device == "cpu"
            else autocast_test_lists.AutocastTestLists)
    lists = kind(torch.device(device))
    entries = []
    for list_name, entry_list in vars(lists).items():
        if not isinstance(entry_list, list):
            continue
        for entry in entry_list:
            name = entry[0]
            arguments, keywords = as_operator_arguments(name, entry)
            if not name.startswith("__") and callable(getattr(torch.ops.aten, name, None)):
                entries.append((list_name, name, arguments, keywords))
    return entries


def encode(value):
    if isinstance(value, torch.Tensor):
        return {"tensor": {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."),
                           "values": tensor_to_json(value)}}
    if isinstance(value, (list, tuple)):
        return [encode(element) for element in value]
    return value


def encodable(value):
    if isinstance(value, torch.Tensor):
        return not value.is_complex()
    if isinstance(value, (list, tuple)):
        return all(encodable(element) for element in value)
    return value is None or isinstance(value, (bool, int, float, str))


def flat_tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for element in value for tensor in flat_tensors(element)]
    return []


def original(device, dtype, name, arguments, keywords):
    with torch.autocast(device, dtype=dtype):
        try:
            outputs = flat_tensors(getattr(torch.ops.aten, name)(*arguments, **keywords))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return {"error": str(error)}
    return {"outputs": [{"dtype": str(output.dtype).removeprefix("torch."),
                         "values": None if output.is_complex() else tensor_to_json(output)}
                        for output in outputs]}


@pytest.mark.parametrize("dtype", LOWER, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("device", DEVICES)
def test_policies_agree(replay, device, dtype):
    torch.manual_seed(0)
    compared, both_refused, not_encodable = 0, [], []
    for list_name, name, arguments, keywords in operators(device):
        if not encodable(arguments) or not encodable(list(keywords.values())):
            not_encodable.append(name)
            continue
        theirs = original(device, dtype, name, arguments, keywords)
        ours = replay({"device": device, "dtype": str(dtype).removeprefix("torch."), "op": name,
                       "args": encode(arguments), "kwargs": {k: encode(v) for k, v in keywords.items()}})
        where = f"{list_name}: {name}"
        if "error" in theirs:
            # For the same reason, and not because the arguments match no overload.
            reason = theirs["error"].splitlines()[0]
            assert "match any schema" not in reason, f"{where}: {reason}"
            assert ours.get("error", "").startswith(reason), f"{where}: {ours} instead of {reason}"
            both_refused.append(name)
            continue
        assert "outputs" in ours, f"{where}: {ours}"
        types = [output["dtype"] for output in ours["outputs"]]
        assert types == [output["dtype"] for output in theirs["outputs"]], where
        # Both sides run the same kernels; only the order of sums may vary with threads.
        for mine, other in zip(ours["outputs"], theirs["outputs"]):
            assert close_enough(mine["values"], other["values"], 2e-2, 2e-2), where
        compared += 1
    print(f"{device} {dtype}: {compared} operators agree, refused by both: {both_refused}, "
          f"not encodable: {not_encodable}")
    assert compared >= (25 if device == "cpu" else 60)
