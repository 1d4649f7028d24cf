"""Adds a few faults to files, to test the code that reads them."""


def damage(rng, content, tokens):
    """Changes, removes, doubles, moves or adds some of the bytes. `tokens` are pieces that such files consist of."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        place = rng.randrange(len(content) + 1)
        size = rng.randint(1, 16)
        kind = rng.randrange(7)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(content):
            content[place] = rng.randrange(256)
        elif kind == 2:
            del content[place:place + rng.randint(1, 4)]
        elif kind == 3:
            content[place:place] = content[place:place + size]
        elif kind == 4 and len(content) > 8:
            other = rng.randrange(len(content))
            content[place:place + size] = content[other:other + size]
        elif kind == 5:
            content[place:place] = rng.randbytes(rng.randint(1, 3))
        else:
            content[place:place] = rng.choice(tokens)
    return bytes(content)
