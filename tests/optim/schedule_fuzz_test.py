"""Random learning-rate schedules: compares the library with transformers and
torch.optim.lr_scheduler.

Each document is a schedule, the rates of one or more param groups and a number of steps; some also
save and load in mid-run. Rates and momentum of every step must agree. ACCELERANT_FUZZ_DOCUMENTS
sets the number of documents.

Where the library differs on purpose, the original is adapted here, and nowhere else:

* OneCycle stays at its last rate after total_steps;
* PolynomialWithWarmup ends each group at end_lr, not only those with the optimizer's default rate
  (`groups_apart`);
* chains of schedules multiply, even where torch's ChainedScheduler lets one overwrite the other
  (`chained`).
"""

import json
import math
import os

import pytest
import torch
import transformers
from replay import close_enough, from_json
from schedule_documents import IN_SEQUENCE, PLAIN, SPECIAL, Maker, random_document
from torch.optim import lr_scheduler

TOPIC = "schedule"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "1500"))
RELATIVE = 1e-10

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}


# --- The originals --------------------------------------------------------------------------------


def make_optimizer(kind, rates):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    return OPTIMIZERS[kind](groups, lr=rates[0])


def warmup_and_total(o):
    return {"num_warmup_steps": o.get("warmup_steps", 0), "num_training_steps": o["total_steps"]}


def cosine_with_warmup(optimizer, o):
    return transformers.get_cosine_with_min_lr_schedule_with_warmup(
        optimizer,
        **warmup_and_total(o),
        num_cycles=o.get("cycles", 0.5),
        min_lr_rate=o.get("min_lr_ratio", 0.0),
    )

def one_cycle(optimizer, o):
    rates = [group["lr"] for group in optimizer.param_groups]
    given = {key: value for key, value in o.items() if key not in ("max_lr", "anneal")}
    return lr_scheduler.OneCycleLR(
        optimizer, max_lr=o.get("max_lr", rates), anneal_strategy=o.get("anneal", "cos"), **given
    )


def table(values):
    return lambda step: values[min(step, len(values) - 1)]


def user_function(optimizer, o):
    factors = o["factors"]
    functions = [table(f) for f in factors] if isinstance(factors[0], list) else table(factors)
    return lr_scheduler.LambdaLR(optimizer, functions)


def sequential(optimizer, o):
    parts = [ORIGINALS[part["kind"]](optimizer, part["options"]) for part in o["schedules"]]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=o["milestones"])


ORIGINALS = {
    "constant": lambda opt, o: transformers.get_constant_schedule(opt),
    "constant_with_warmup": lambda opt, o: transformers.get_constant_schedule_with_warmup(
        opt, o.get("warmup_steps", 0)
    ),
    "linear_with_warmup": lambda opt, o: transformers.get_linear_schedule_with_warmup(
        opt, **warmup_and_total(o)
    ),
    "cosine_with_warmup": cosine_with_warmup,
    "cosine_with_hard_restarts": lambda opt, o: (
        transformers.get_cosine_with_hard_restarts_schedule_with_warmup(
            opt, **warmup_and_total(o), num_cycles=o.get("cycles", 1)
        )
    ),
    "polynomial_with_warmup": lambda opt, o: transformers.get_polynomial_decay_schedule_with_warmup(
        opt, **warmup_and_total(o), lr_end=o.get("end_lr", 1e-7), power=o.get("power", 1.0)
    ),
    "inverse_sqrt": lambda opt, o: transformers.get_inverse_sqrt_schedule(
        opt, o.get("warmup_steps", 0), timescale=o.get("timescale")
    ),
    "wsd": lambda opt, o: transformers.get_wsd_schedule(
        opt,
        num_warmup_steps=o.get("warmup_steps", 0),
        num_stable_steps=o.get("stable_steps", 0),
        num_decay_steps=o.get("decay_steps", 0),
        warmup_type=o.get("warmup_type", "linear"),
        decay_type=o.get("decay_type", "cosine"),
        min_lr_ratio=o.get("min_lr_ratio", 0.0),
        num_cycles=o.get("cycles", 0.5),
    ),
    "step": lambda opt, o: lr_scheduler.StepLR(opt, **o),
    "multi_step": lambda opt, o: lr_scheduler.MultiStepLR(opt, **o),
    "exponential": lambda opt, o: lr_scheduler.ExponentialLR(opt, **o),
    "cosine_annealing": lambda opt, o: lr_scheduler.CosineAnnealingLR(
        opt, T_max=o["t_max"], eta_min=o.get("eta_min", 0.0)
    ),
    "one_cycle": one_cycle,
    "lambda": user_function,
    "sequential": sequential,
    "reduce_on_plateau": lambda opt, o: lr_scheduler.ReduceLROnPlateau(opt, **o),
}


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group.get("momentum")


def run_once(document, rates):
    """Returns the rates and momentum of all groups at every step."""
    optimizer = make_optimizer(document["optimizer"], rates)
    scheduler = ORIGINALS[document["kind"]](optimizer, document["options"])
    last = document["steps"]
    if document["kind"] == "one_cycle":
        last = document["options"]["total_steps"] - 1
    lrs, momenta = [], []
    for step in range(document["steps"]):
        if 0 < step <= last:
            if document["kind"] == "reduce_on_plateau":
                scheduler.step(from_json(document["metrics"][step - 1]))
            else:
                scheduler.step()
        lrs.append([group["lr"] for group in optimizer.param_groups])
        momenta.append([momentum_of(group) for group in optimizer.param_groups])
    return lrs, momenta


def groups_apart(document):
    """Runs every group in a separate optimizer."""
    runs = [run_once(document, [rate]) for rate in document["base_lrs"]]
    return tuple([sum(step, []) for step in zip(*part)] for part in zip(*runs))


def chained(document):
    """Runs every schedule separately, for a rate of 1: factors that multiply."""
    parts = document["options"]["schedules"]
    runs = [run_once({**document, **part}, [1.0])[0] for part in parts]
    factors = [math.prod(rates[0] for rates in step) for step in zip(*runs)]
    momenta = run_once({**document, "kind": "constant", "options": {}}, document["base_lrs"])[1]
    return [[rate * factor for rate in document["base_lrs"]] for factor in factors], momenta


def torch_chained(document):
    optimizer = make_optimizer(document["optimizer"], document["base_lrs"])
    parts = [ORIGINALS[p["kind"]](optimizer, p["options"]) for p in document["options"]["schedules"]]
    scheduler = lr_scheduler.ChainedScheduler(parts)
    lrs = []
    for step in range(document["steps"]):
        if step > 0:
            scheduler.step()
        lrs.append([group["lr"] for group in optimizer.param_groups])
    return lrs


def original(document):
    if document["kind"] == "chained":
        return chained(document)
    if document["kind"] == "polynomial_with_warmup":
        return groups_apart(document)
    return run_once(document, document["base_lrs"])


# --- Random documents -----------------------------------------------------------------------------


# --- The tests ------------------------------------------------------------------------------------


# The warnings say that no optimizer steps, which is true here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def largest_error(left, right):
    pairs = [(a, b) for x, y in zip(left, right) for a, b in zip(x, y)]
    return max((abs(a - b) / abs(b) for a, b in pairs if a != b and b != 0), default=0.0)


def test_random_schedules_agree(replay, rng):
    worst, saved = 0.0, 0
    kinds = set()
    for _ in range(DOCUMENTS):
        document = random_document(rng, list(OPTIMIZERS))
        result = replay(document)
        text = json.dumps(document)
        assert "error" not in result, f"{result}\n{text}"
        lrs, momenta = original(document)
        # Products of many small factors end up as denormal numbers, which have few digits.
        assert close_enough(result["lrs"], lrs, RELATIVE, 1e-300), f"{text}\n{result['lrs']}\n{lrs}"
        assert close_enough(result["momentum"], momenta, RELATIVE), f"{text}\n{result['momentum']}\n{momenta}"
        assert result["lr"] == [rates[0] for rates in result["lrs"]]
        worst = max(worst, largest_error(result["lrs"], lrs))
        kinds.add(document["kind"])
        saved += "save_at" in document
    print(f"{DOCUMENTS} documents, {saved} saved and loaded, largest relative error {worst:.1e}")
    assert kinds == set(PLAIN + SPECIAL)


def test_torch_chains_agree_where_they_multiply(replay, rng):
    maker = Maker(rng)
    for _ in range(100):
        kinds = ["step", "multi_step", "exponential"]
        document = {
            "kind": "chained",
            "optimizer": "sgd",
            "base_lrs": [0.1, 1.0],
            "steps": 60,
            "options": {"schedules": [maker.part(kinds) for _ in range(rng.randint(1, 4))]},
        }
        assert close_enough(replay(document)["lrs"], torch_chained(document), RELATIVE), json.dumps(document)


def test_python_goes_on_from_our_state(replay, rng):
    maker = Maker(rng)
    for _ in range(200):
        kind = rng.choice(IN_SEQUENCE)
        document = {
            "kind": kind,
            "optimizer": "adamw",
            "base_lrs": [0.1, 2.0],
            "steps": 100,
            "options": getattr(maker, kind)(),
            "save_at": rng.randrange(100),
        }
        result = replay(document)
        state = result["state"]
        assert state["last_epoch"] == document["save_at"]
        assert state["base_lrs"] == document["base_lrs"]
        optimizer = make_optimizer("adamw", document["base_lrs"])
        scheduler = ORIGINALS[kind](optimizer, document["options"])
        scheduler.load_state_dict({**scheduler.state_dict(), **state})
        for group, rate in zip(optimizer.param_groups, state["_last_lr"]):
            group["lr"] = rate  # in Python the rates are part of the optimizer's state
        lrs = [[group["lr"] for group in optimizer.param_groups]]
        for _ in range(document["save_at"] + 1, 100):
            scheduler.step()
            lrs.append([group["lr"] for group in optimizer.param_groups])
        expected = result["lrs"][document["save_at"] :]
        assert close_enough(lrs, expected, RELATIVE, 1e-300), f"{json.dumps(document)}\n{lrs}\n{expected}"


# What both refuse.
REFUSED = [
    ("polynomial_with_warmup", {"total_steps": 10, "end_lr": 0.5}, "sgd"),
    ("one_cycle", {"max_lr": 1.0, "total_steps": 0}, "sgd"),
    ("one_cycle", {"max_lr": 1.0, "total_steps": 9, "pct_start": 1.5}, "sgd"),
    ("one_cycle", {"max_lr": [1.0, 2.0, 3.0], "total_steps": 9}, "sgd"),
    ("one_cycle", {"max_lr": 1.0, "total_steps": 9}, "adagrad"),
    ("lambda", {"factors": [[1.0], [1.0], [1.0]]}, "sgd"),
    ("sequential", {"schedules": [{"kind": "constant", "options": {}}], "milestones": [3]}, "sgd"),
    ("sequential", {"schedules": [], "milestones": []}, "sgd"),
    ("reduce_on_plateau", {"factor": 1.0}, "sgd"),
    ("reduce_on_plateau", {"min_lr": [0.1, 0.1, 0.1]}, "sgd"),
]


@pytest.mark.parametrize("kind, options, optimizer", REFUSED)
def test_both_refuse(replay, kind, options, optimizer):
    document = {"kind": kind, "optimizer": optimizer, "base_lrs": [0.1, 0.2], "steps": 3, "options": options}
    document["metrics"] = [1.0] * 3
    assert "error" in replay(document)
    with pytest.raises(ValueError):
        ORIGINALS[kind](make_optimizer(optimizer, [0.1, 0.2]), options)


def test_the_documented_differences_are_real(replay):
    """If the originals change, remove the adaptations above."""
    cycle = lr_scheduler.OneCycleLR(make_optimizer("sgd", [1.0]), max_lr=1.0, total_steps=3)
    with pytest.raises(ValueError):
        for _ in range(4):
            cycle.step()
    optimizer = make_optimizer("sgd", [1.0, 0.1])
    polynomial = transformers.get_polynomial_decay_schedule_with_warmup(optimizer, 0, 5, lr_end=1e-2)
    for _ in range(5):
        polynomial.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(1e-3)
    document = {"kind": "chained", "optimizer": "sgd", "base_lrs": [1.0], "steps": 4}
    parts = [{"kind": "constant", "options": {}}, {"kind": "exponential", "options": {"gamma": 0.5}}]
    document["options"] = {"schedules": parts}
    assert torch_chained(document)[3] == [0.5]
    assert replay(document)["lr"][3] == 0.125
