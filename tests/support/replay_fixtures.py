"""Fixtures for the tests that compare with the originals. A pytest plugin, so tests need not import it."""

import random

import pytest
from replay import Replay, seed_from_environment


@pytest.fixture(scope="module")
def replay(request):
    """accelerant-replay for the module's TOPIC."""
    process = Replay(request.module.TOPIC)
    yield process
    process.close()


@pytest.fixture(scope="module")
def rng():
    return random.Random(seed_from_environment())
