"""Random loops with gradient accumulation: at which batches do gradients synchronise?"""

import random

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from replay import Replay, seed_from_environment
import torch

DOCUMENTS = 600


def random_document(rng: random.Random) -> dict:
    epochs = [rng.randint(1, 14) for _ in range(rng.randint(1, 4))]
    return {
        "steps": rng.choice([1, 2, 3, 4, 5, 8]),
        "sync_with_dataloader": rng.random() < 0.7,
        "sync_each_batch": rng.random() < 0.3,
        "epochs": epochs,
        "break_after": [rng.randint(1, n) if rng.random() < 0.4 else None for n in epochs],
    }


def original(document: dict) -> dict:
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=document["steps"],
            sync_with_dataloader=document["sync_with_dataloader"],
            sync_each_batch=document["sync_each_batch"],
        ),
    )
    # Accelerate keeps this in a global that outlives the Accelerator.
    accelerator.gradient_state.sync_gradients = True
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    epochs, place = [], 0
    for length, break_after in zip(document["epochs"], document["break_after"]):
        loader = accelerator.prepare(torch.utils.data.DataLoader(torch.zeros(length, 1)))
        batches = []
        for _ in loader:
            with accelerator.accumulate(model):
                place += 1
                batches.append({"sync": accelerator.sync_gradients, "window": place})
                if accelerator.sync_gradients:
                    place = 0
            if len(batches) == break_after:
                break
        # After a break Accelerate leaves the loader on its stack of active loaders, where it hides
        # the outer loop. Ours removes it; do the same here.
        while accelerator.gradient_state.active_dataloader is not None:
            accelerator.gradient_state._remove_dataloader(accelerator.gradient_state.active_dataloader)
        epochs.append(batches)
    return {"epochs": epochs}


def test_synchronisation_matches_accelerate():
    rng = random.Random(seed_from_environment())
    replay = Replay("accumulate")
    synchronised = 0
    for _ in range(DOCUMENTS):
        document = random_document(rng)
        expected = original(document)
        got = replay(document)
        assert got == expected, document
        synchronised += sum(batch["sync"] for epoch in expected["epochs"] for batch in epoch)
    replay.close()
    assert synchronised > DOCUMENTS
