"""SHA-256 and HMAC against Python's, on random keys and messages of all lengths around the size of a block."""

import hashlib
import hmac
import os
import random
import subprocess


def test_digests_are_those_of_python():
    seed = int(os.environ.get("ACCELERANT_SEED", random.SystemRandom().getrandbits(32)))
    print(f"ACCELERANT_SEED={seed}")
    generator = random.Random(seed)
    lengths = [*range(0, 131), 1000, 4096, 100_000]
    cases = [(generator.randbytes(generator.randrange(0, 200)), generator.randbytes(length)) for length in lengths]
    cases += [(generator.randbytes(length), generator.randbytes(generator.randrange(0, 200))) for length in lengths]
    lines = [f"{key.hex() or '-'} {message.hex() or '-'}" for key, message in cases]
    run = subprocess.run([os.environ["ACCELERANT_HMAC_LINES"]], input="\n".join(lines) + "\n", check=True, text=True,
                         capture_output=True, timeout=120)
    answers = run.stdout.splitlines()
    assert len(answers) == len(cases)
    for (key, message), answer in zip(cases, answers):
        expected = [hashlib.sha256(message).hexdigest(), hmac.new(key, message, "sha256").hexdigest()]
        assert answer.split() == expected, (key, message)
