"""Random loaders on 1 to 8 processes: compares the library with Accelerate's BatchSamplerShard.

Accelerate's own len is wrong in some configurations, so lengths are compared with what is
delivered. The order of a shuffled data set is the library's own; here Python computes it a second
time. ACCELERANT_FUZZ_DOCUMENTS sets the number of documents.
"""

import json
import os
import random

import pytest
from accelerate.data_loader import BatchSamplerShard
from replay import Replay, seed_from_environment
from torch.utils.data import BatchSampler

DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "4000"))
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


# --- The order of a shuffled epoch, from its description ------------------------------------------


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Stream:
    def __init__(self, seed, epoch):
        purpose, index = 1, 0
        state = mix((seed + GOLDEN) & MASK)
        state = mix(state ^ (purpose * GOLDEN & MASK))
        state = mix((state + epoch * GOLDEN) & MASK)
        self.counter = mix((state + index * GOLDEN) & MASK)

    def below(self, n):
        while True:
            self.counter = (self.counter + GOLDEN) & MASK
            product = mix(self.counter) * n
            if (product & MASK) >= (2**64 - n) % n:
                return product >> 64


def shuffled(length, seed, epoch):
    order, stream = list(range(length)), Stream(seed, epoch)
    for left in range(length, 1, -1):
        chosen = stream.below(left)
        order[left - 1], order[chosen] = order[chosen], order[left - 1]
    return order


# --- The original ---------------------------------------------------------------------------------


class Lists:
    """A batch sampler with given batches."""

    def __init__(self, batches, drop_last):
        self.batches, self.drop_last = batches, drop_last

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter([list(batch) for batch in self.batches])


def original(document):
    """The batches of every rank; raises ValueError if Accelerate refuses."""
    if "batches" in document:
        sampler = Lists(document["batches"], document["drop_last"])
    else:
        order = list(range(document["length"]))
        if document["shuffle"]:
            order = shuffled(document["length"], document["seed"], document["epoch"])
        sampler = BatchSampler(order, document["batch_size"], document["drop_last"])
    ranks = []
    for rank in range(document["num_processes"]):
        shard = BatchSamplerShard(sampler, document["num_processes"], rank, document["split_batches"],
                                  document["even_batches"])
        ranks.append([list(batch) for batch in shard])
    return ranks


def real_rows_at_the_end(document):
    """The remainder, counted in another way: what full rounds leave over."""
    processes = document["num_processes"]
    if document["drop_last"]:
        return 0
    if "batches" in document:
        tail = len(document["batches"]) % processes
        return sum(len(batch) for batch in document["batches"][len(document["batches"]) - tail:])
    together = document["batch_size"] * (1 if document["split_batches"] else processes)
    return document["length"] % together


# --- Random documents -----------------------------------------------------------------------------


def random_document(rng):
    processes = rng.randint(1, 8)
    document = {
        "drop_last": rng.random() < 0.3,
        "num_processes": processes,
        "split_batches": rng.random() < 0.4,
        "even_batches": rng.random() < 0.6,
        "shuffle": rng.random() < 0.3,
        "seed": rng.randrange(2**64),
        "epoch": rng.randrange(1000),
        "skip_batches": rng.choice([0, 0, 0, 1, 2, 5, 100]),
    }
    if rng.random() < 0.2:
        sizes = [rng.randint(1, 5) for _ in range(rng.randint(0, 20))]
        indices = iter(rng.sample(range(sum(sizes)), sum(sizes)))
        document["batches"] = [[next(indices) for _ in range(size)] for size in sizes]
        document["shuffle"] = False
    else:
        document["length"] = rng.choice([rng.randint(0, 10), rng.randint(0, 80), rng.randint(0, 500)])
        document["batch_size"] = rng.choice([rng.randint(1, 4), rng.randint(1, 20)])
        if document["split_batches"] and rng.random() < 0.9:
            document["batch_size"] *= processes
    return document


def check(document, result):
    try:
        expected = original(document)
    except ValueError:
        assert "error" in result, "Accelerate refuses, we do not"
        return
    assert "error" not in result, result
    skip = document["skip_batches"]
    ranks = result["ranks"]
    assert [rank["batches"] for rank in ranks] == [batches[skip:] for batches in expected]
    assert [rank["length"] for rank in ranks] == [len(rank["batches"]) for rank in ranks]
    assert [rank["remainder"] for rank in ranks] == [real_rows_at_the_end(document)] * len(ranks)
    check_epoch(document, expected)


def check_epoch(document, ranks):
    """Step by step, the parts of all ranks in turn give the order of the epoch, followed by
    padding."""
    if "batches" in document:
        order = [index for batch in document["batches"] for index in batch]
    elif document["shuffle"]:
        order = shuffled(document["length"], document["seed"], document["epoch"])
        assert sorted(order) == list(range(document["length"]))
    else:
        order = list(range(document["length"]))
    steps = max(len(batches) for batches in ranks)
    together = [index for step in range(steps) for batches in ranks if step < len(batches)
                for index in batches[step]]
    if document["drop_last"]:
        assert together == order[: len(together)]
    else:
        assert together[: len(order)] == order
        assert document["even_batches"] or len(together) == len(order)


def test_sharding():
    rng, replay, refused = random.Random(seed_from_environment()), Replay("sharding"), 0
    for number in range(DOCUMENTS):
        document = random_document(rng)
        result = replay(document)
        refused += "error" in result
        try:
            check(document, result)
        except AssertionError as error:
            pytest.fail(f"document {number}: {json.dumps(document)}\nresult: {json.dumps(result)}\n{error}")
    replay.close()
    print(f"{DOCUMENTS} documents, {refused} of them refused by both")


def test_epochs_and_seeds_give_other_orders():
    replay = Replay("sharding")

    def order(seed, epoch):
        document = {"length": 100, "batch_size": 100, "shuffle": True, "seed": seed, "epoch": epoch}
        return replay(document)["ranks"][0]["batches"][0]

    orders = [order(seed, epoch) for seed in range(10) for epoch in range(10)]
    assert all(sorted(one) == list(range(100)) for one in orders)
    assert len({tuple(one) for one in orders}) == 100
    assert order(3, 4) == orders[34]
    replay.close()
