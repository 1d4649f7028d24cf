"""Random streams on 1 to 6 processes: read by every process, compared with Accelerate's
IterableDatasetShard, and read by rank 0 for all, compared with its DataLoaderDispatcher.

Accelerate's two classes disagree about the end of the data. If the last round is not complete, the
dispatcher makes all parts shorter and pads to a multiple of the number of processes, while the
shard pads to whole batches. Ours does what the shard does in both modes. Neither of Accelerate's
classes supports even_batches=False; there the rule is that of BatchSamplerShard.
"""

import json
import os
from types import SimpleNamespace

import accelerate.data_loader as original
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, IterableDatasetShard
from torch.utils.data import BatchSampler, IterableDataset

TOPIC = "sharding"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "800"))


class Numbers(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def by_shard(document):
    """IterableDatasetShard, with its samples grouped as the data loader around it groups them."""
    processes, batch_size = document["num_processes"], document["batch_size"]
    part = batch_size // processes if document["split_batches"] else batch_size
    ranks = []
    for rank in range(processes):
        samples = list(IterableDatasetShard(Numbers(document["length"]), batch_size, document["drop_last"],
                                            processes, rank, document["split_batches"]))
        ranks.append([samples[i:i + part] for i in range(0, len(samples), part)])
    return ranks


def by_batch_sampler(document):
    """BatchSamplerShard without padding."""
    sampler = BatchSampler(range(document["length"]), document["batch_size"], document["drop_last"])
    return [[list(batch) for batch in BatchSamplerShard(sampler, document["num_processes"], rank,
                                                        document["split_batches"], even_batches=False)]
            for rank in range(document["num_processes"])]


def by_dispatcher(document, monkeypatch):
    """DataLoaderDispatcher on rank 0; records the slices of all ranks when it takes its own."""
    processes, seen = document["num_processes"], {}

    def slice_fn(batch, data_slice, process_index=None, num_processes=None):
        seen["last"] = (batch, data_slice)
        return batch[data_slice]

    with monkeypatch.context() as patch:
        patch.setattr(original, "broadcast", lambda batch, from_process=0: batch)
        patch.setattr(original, "broadcast_object_list", lambda objects: objects)
        loader = DataLoaderDispatcher(Numbers(document["length"]), split_batches=document["split_batches"],
                                      _drop_last=document["drop_last"], slice_fn=slice_fn,
                                      batch_size=document["batch_size"], drop_last=document["drop_last"])
        loader.state = SimpleNamespace(process_index=0, num_processes=processes, device=torch.device("cpu"))
        ranks = [[] for _ in range(processes)]
        for _ in loader:
            batch, data_slice = seen["last"]
            size = data_slice.stop - data_slice.start
            for rank in range(processes):
                ranks[rank].append(batch[rank * size:(rank + 1) * size].tolist())
    return ranks


def together(ranks):
    """All parts of all steps, one after another."""
    steps = max(len(batches) for batches in ranks)
    return [sample for step in range(steps) for batches in ranks if step < len(batches) for sample in batches[step]]


def random_document(rng, mode):
    processes = rng.randint(1, 6)
    split = rng.random() < 0.4
    return {
        "mode": mode,
        "sized": rng.random() < 0.5,
        "length": rng.choice([rng.randint(1, 10), rng.randint(1, 120)]),
        "batch_size": rng.randint(1, 6) * (processes if split else 1),
        "num_processes": processes,
        "split_batches": split,
        "drop_last": rng.random() < 0.3,
        "even_batches": rng.random() < 0.7,
        "skip_batches": rng.choice([0, 0, 0, 1, 3]),
    }


def check(document, result, monkeypatch):
    assert "error" not in result, result
    one_process = document["num_processes"] == 1  # it never completes its last batch
    as_samplers = one_process or not document["even_batches"]
    expected = by_batch_sampler(document) if as_samplers else by_shard(document)
    skip = document["skip_batches"]
    ranks = [rank["batches"] for rank in result["ranks"]]
    assert ranks == [batches[skip:] for batches in expected]
    round_size = document["batch_size"] * (1 if document["split_batches"] else document["num_processes"])
    real = 0 if document["drop_last"] else document["length"] % round_size
    for rank, batches in zip(result["ranks"], expected):
        assert rank.get("length", len(batches)) == len(batches)
        # Without a size, a process that has no part in the last round does not learn of it.
        heard = document["sized"] or len(batches) == len(expected[0])
        if heard and rank["batches"]:
            assert rank["remainder"] == real
    if document["mode"] == "dispatch" and not as_samplers and skip == 0 and round_size <= document["length"]:
        check_dispatcher(document, ranks, by_dispatcher(document, monkeypatch), real)


def check_dispatcher(document, ranks, dispatched, real):
    assert [len(batches) for batches in ranks] == [len(batches) for batches in dispatched]
    if real == 0:
        assert ranks == dispatched
        return
    assert [batches[:-1] for batches in ranks] == [batches[:-1] for batches in dispatched]
    ours, theirs = together([batches[-1:] for batches in ranks]), together([batches[-1:] for batches in dispatched])
    assert ours[:real] == theirs[:real]
    assert len(theirs) == -(-real // document["num_processes"]) * document["num_processes"]
    assert ours[real:len(theirs)] == theirs[real:]  # both pad from the start


@pytest.mark.parametrize("mode", ["stream", "dispatch"])
def test_streams(mode, replay, rng, monkeypatch):
    for number in range(DOCUMENTS // 2):
        document = random_document(rng, mode)
        result = replay(document)
        try:
            check(document, result, monkeypatch)
        except AssertionError as error:
            pytest.fail(f"document {number}: {json.dumps(document)}\nresult: {json.dumps(result)}\n{error}")
