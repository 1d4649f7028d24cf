"""Compares small functions with accelerate.utils: nested data, the search for a batch size,
seeds."""


import accelerate.utils
import pytest
import torch
from accelerate.utils import operations

TOPIC = "utilities"


def random_batch(rng, shape=None):
    """An object of lists of tensors; `shape` says how many tensors each list has."""
    shape = shape or {key: rng.randint(1, 3) for key in rng.sample(["x", "y", "mask"], rng.randint(1, 3))}
    # Sorted keys, like those of a std::map.
    return {
        key: [[rng.uniform(-1, 1) for _ in range(rng.randrange(6))] for _ in range(shape[key])]
        for key in sorted(shape)
    }


def tensors(batch):
    return {key: [torch.tensor(values, dtype=torch.float64) for values in batch[key]] for key in batch}


def numbers(batch):
    return {key: [tensor.tolist() for tensor in batch[key]] for key in batch}


def test_slice_tensors(replay, rng):
    for _ in range(200):
        batch = random_batch(rng)
        begin, end = rng.randint(-7, 7), rng.randint(-7, 7)
        ours = replay({"op": "slice", "data": batch, "begin": begin, "end": end})["data"]
        assert ours == numbers(operations.slice_tensors(tensors(batch), slice(begin, end)))


def test_concatenate(replay, rng):
    for _ in range(200):
        first = random_batch(rng)
        shape = {key: len(first[key]) for key in first}
        batches = [first] + [random_batch(rng, shape) for _ in range(rng.randrange(4))]
        ours = replay({"op": "concatenate", "batches": batches})["data"]
        assert ours == numbers(operations.concatenate([tensors(batch) for batch in batches]))


def test_find_batch_size(replay, rng):
    for _ in range(50):
        batch = random_batch(rng)
        ours = replay({"op": "find_batch_size", "data": batch})["rows"]
        assert ours == operations.find_batch_size(tensors(batch))
    assert "error" in replay({"op": "find_batch_size", "data": {}})


# The cases of Accelerate's own tests.
ACCELERATE_CASES = [(1, 2), (3, 2), (4, 3), (3, 4), (4, 6), (1, 6), (2, 6), (61, 6)]


def test_pad_input_tensors(replay):
    agreed = set()
    for rows in range(1, 70):
        for multiple in range(1, 9):
            ours = replay({"op": "pad", "rows": rows, "multiple": multiple, "fill": "zeros"})["values"]
            repeated = replay({"op": "pad", "rows": rows, "multiple": multiple, "fill": "first_rows"})["values"]
            wanted = -(-rows // multiple) * multiple
            values = [float(i + 1) for i in range(rows)]
            assert ours == values + [0.0] * (wanted - rows)
            assert repeated == [values[i % rows] for i in range(wanted)]
            theirs = operations.pad_input_tensors(torch.tensor(values), rows, multiple).tolist()
            if theirs == ours:
                agreed.add((rows, multiple))
    assert set(ACCELERATE_CASES) <= agreed
    # Here Accelerate is known to be wrong. If it no longer is, docs/parity.md should not say so.
    assert (7, 4) not in agreed and (9, 4) not in agreed and (4, 4) not in agreed


@pytest.mark.parametrize("start, fits", [(128, 8), (128, 128), (128, 0), (1, 0), (77, 3), (4096, 1)])
def test_batch_sizes(replay, start, fits):
    tried = []

    @accelerate.utils.find_executable_batch_size(starting_batch_size=start)
    def function(batch_size):
        tried.append(batch_size)
        if batch_size > fits:
            raise RuntimeError("CUDA out of memory.")
        return batch_size

    ours = replay({"op": "batch_sizes", "starting_batch_size": start, "fits": fits})
    if fits == 0:
        with pytest.raises(RuntimeError, match="No executable batch size found"):
            function()
        assert "No executable batch size found" in ours["found"]["error"]
        assert "CUDA out of memory." in ours["found"]["error"]
    else:
        assert function() == ours["found"]
    assert tried == ours["tried"]


def test_seeds(replay, rng):
    for _ in range(20):
        seed, process = rng.randrange(2**32 - 9), rng.randrange(8)
        specific = rng.random() < 0.5
        document = {"op": "seed", "seed": seed, "device_specific": specific, "process_index": process}
        accelerate.utils.set_seed(seed + (process if specific else 0))
        assert replay(document)["values"] == torch.randn(8, dtype=torch.float64).tolist()
