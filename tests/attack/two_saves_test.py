"""Several processes that save one model folder: at once, and one that was suspended while another took its place.
../store/model_save_test.cpp stops a save at each of its places; here moments are random.

ACCELERANT_ATTACK_RACES=25 for the long form.
"""

import concurrent.futures
import json
import os
import random
import re
import signal
import struct
import subprocess
import time

import launching
import pytest
from attack import COMMAND, DEADLINE, SCALE, SEED, extent, wait_until

RACES = extent("RACES", 1)
ROUNDS = 6
IN_USE = re.compile(r"The model folder \S+ is in use: expected one run at a time, got process (\d+) on (\S+), since 20\S+Z")
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SLOWLY = "checkpoint.write:sleep=4,model.rename:sleep=4"  # about 100 ms for a save
TENSORS, BYTES = 12, 50_000


@pytest.fixture
def models(tmp_path):
    """Files of which every byte of data is their number."""
    header = {f"layer{i}": {"dtype": "U8", "shape": [BYTES], "data_offsets": [i * BYTES, (i + 1) * BYTES]}
              for i in range(TENSORS)}
    text = json.dumps(header).encode()
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes([number]) * (TENSORS * BYTES))
    return files


class Save:
    """A process that saves a model to FOLDER/model. Each model has another number of shards."""

    def __init__(self, model, failpoint="", wrapper=()):
        self.number = int(model.stem)
        size = f"{60 + 100 * self.number}KB"
        environment = launching.clean_environment(ACCELERANT_LOG_LEVEL="info", ACCELERANT_FAILPOINT=failpoint)
        self.process = subprocess.Popen(
            [*wrapper, COMMAND, "convert", model, model.parent / "model", "--max-shard-size", size], env=environment,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def has_ended(self):
        return self.process.poll() is not None

    def send(self, number):
        """Also to its child, if it is a container."""
        if not self.has_ended():
            os.killpg(self.process.pid, number)

    def finish(self):
        """Its exit code and what it has said."""
        try:
            _, errors = self.process.communicate(timeout=DEADLINE)
            return self.process.returncode, errors
        finally:
            self.send(signal.SIGKILL)


def id_in(lock):
    """None if there is no lock."""
    try:
        return json.loads(lock.read_text())["id"]
    except FileNotFoundError:
        return None


def number_in(folder):
    """Of the one model that is there, whose checksums fit."""
    merged = folder.parent / "merged.safetensors"
    done = subprocess.run([COMMAND, "merge-weights", folder, merged], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    found = set(merged.read_bytes()[-TENSORS * BYTES:])
    assert len(found) == 1, f"parts of several models: {found}"
    return found.pop()


def expect_nothing_left(folder):
    left = [name for name in os.listdir(folder) if "saving" in name]
    assert not left, left


@pytest.mark.parametrize("race", range(RACES))
def test_several_saves_of_one_model_at_once(tmp_path, models, race):
    """Each one saves all of its model or gets an error that names another one, and a reader always finds one model."""
    assert Save(models[0]).finish()[0] == 0

    def save_again_and_again(model):
        return [Save(model).finish() for _ in range(4 * ROUNDS)]

    reads = 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        savers = [pool.submit(save_again_and_again, model) for model in models]
        while not all(saver.done() for saver in savers):
            number_in(tmp_path / "model")
            reads += 1
    results = [result for saver in savers for result in saver.result()]
    refused = [errors for code, errors in results if code != 0]
    assert len(refused) < len(results)
    for errors in refused:
        found = IN_USE.search(errors)
        assert found and found[2] == os.uname().nodename, errors
    number_in(tmp_path / "model")
    expect_nothing_left(tmp_path / "model")
    print(f"{len(results) - len(refused)} saves, {len(refused)} were refused, {reads} reads")


def suspended_save(model, lock, chooser):
    """A save that was suspended at a random moment while it held the lock."""
    while True:
        save = Save(model, SLOWLY)
        wait_until(lambda: save.has_ended() or lock.exists(), "a lock", pause=0.0005)
        time.sleep(chooser.uniform(0, 0.08))
        save.send(signal.SIGSTOP)
        if not save.has_ended():
            os.waitid(os.P_PID, save.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not save.has_ended() and lock.exists():
            return save
        save.send(signal.SIGCONT)
        assert save.finish()[0] == 0


@pytest.mark.parametrize("race", range(RACES))
def test_a_suspended_save_keeps_its_folder(tmp_path, models, race):
    """On the same machine."""
    chooser = random.Random(f"{SEED}-{race}")
    folder = tmp_path / "model"
    assert Save(models[0]).finish()[0] == 0
    for _ in range(ROUNDS):
        first = suspended_save(models[1], folder / "model.saving.lock", chooser)
        try:
            code, errors = Save(models[2]).finish()
            assert code == 1 and IN_USE.search(errors)[1] == str(first.process.pid), errors
            assert "which is stopped but may continue" in errors, errors
            assert number_in(folder) in (0, 1)
        finally:
            first.send(signal.SIGCONT)
            code, errors = first.finish()
        assert code == 0, errors
        assert number_in(folder) == 1
        expect_nothing_left(folder)


@pytest.mark.parametrize("race", range(RACES))
def test_a_suspended_save_that_was_taken_over(tmp_path, models, race):
    """By one in a container, which cannot see the first one and has waited for 90 seconds. When that one continues, it can no
    longer change anything."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces cannot be made here")
    chooser = random.Random(f"{SEED}-{race}")
    folder = tmp_path / "model"
    lock = folder / "model.saving.lock"
    assert Save(models[0]).finish()[0] == 0
    for _ in range(ROUNDS):
        first = suspended_save(models[1], lock, chooser)
        second = None
        try:
            held = id_in(lock)
            long_ago = time.time() - 100
            os.utime(lock, (long_ago, long_ago))  # instead of waiting
            second = Save(models[2], SLOWLY, CONTAINER)
            wait_until(lambda: second.has_ended() or id_in(lock) != held, "another holder", pause=0.0005)
            time.sleep(chooser.uniform(0, 0.08))
            second.send(signal.SIGSTOP)  # still holds the lock when the first one looks
            time.sleep(0.01 * SCALE)
            has_ended = id_in(lock) is None
            assert number_in(folder) in (0, 1, 2)
            first.send(signal.SIGCONT)
            code, errors = first.finish()
            # It may have been suspended after its last step; or, if nobody held the lock, have taken that again.
            assert code == 0 or has_ended or "belongs to another run now" in errors or "No such file" in errors, errors
            assert number_in(folder) in (0, 1, 2)
            second.send(signal.SIGCONT)
            code, errors = second.finish()
            assert code == 0, errors
            assert "which has given no sign of life for 90 seconds" in errors, errors
            assert number_in(folder) == 2 or has_ended
            expect_nothing_left(folder)
        finally:
            for save in filter(None, [first, second]):
                save.send(signal.SIGKILL)
        assert Save(models[0]).finish()[0] == 0
