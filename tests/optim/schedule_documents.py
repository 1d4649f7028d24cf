"""Random schedules for schedule_fuzz_test.py."""

import math

from replay import to_json


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def some(self, **fields):
        """Leaves out fields at random, so that defaults are compared too."""
        return {key: value for key, value in fields.items() if self.rng.random() < 0.7}

    def warmup(self, total):
        return self.rng.choice([0, 1, total - 1, total, self.rng.randrange(total)])

    def with_total(self, **fields):
        total = self.rng.choice([1, 2, self.rng.randint(3, 120)])
        return {"total_steps": total, **self.some(warmup_steps=self.warmup(total), **fields)}

    def gamma(self):
        return self.rng.choice([0.1, 0.5, 1.0, self.rng.uniform(0.2, 1.2)])

    def constant(self):
        return {}

    def constant_with_warmup(self):
        return self.some(warmup_steps=self.rng.choice([0, 1, self.rng.randint(2, 80)]))

    def linear_with_warmup(self):
        return self.with_total()

    def cosine_with_warmup(self):
        return self.with_total(
            cycles=self.rng.choice([0.5, 0.25, 1.0, self.rng.uniform(0, 4)]),
            min_lr_ratio=self.rng.choice([0.0, 1.0, self.rng.random()]),
        )

    def cosine_with_hard_restarts(self):
        return self.with_total(cycles=self.rng.randint(1, 6))

    def polynomial_with_warmup(self):
        options = self.with_total(
            end_lr=self.rng.choice([0.0, 1e-6]), power=self.rng.choice([1.0, 2.0, 0.5, 3.3])
        )
        # A schedule that is all warm-up is a division by zero in transformers.
        if options.get("warmup_steps") == options["total_steps"]:
            del options["warmup_steps"]
        return options

    def inverse_sqrt(self):
        return self.some(warmup_steps=self.rng.choice([0, 1, 20]), timescale=self.rng.randint(1, 500))

    def wsd(self):
        shapes = ["linear", "cosine", "1-sqrt"]
        return {
            "decay_steps": self.rng.randint(1, 50),
            **self.some(
                warmup_steps=self.rng.choice([0, 1, self.rng.randint(2, 50)]),
                stable_steps=self.rng.choice([0, 1, self.rng.randint(2, 50)]),
                warmup_type=self.rng.choice(shapes),
                decay_type=self.rng.choice(shapes),
                min_lr_ratio=self.rng.choice([0.0, 0.1, self.rng.random()]),
                cycles=self.rng.choice([0.5, self.rng.uniform(0, 3)]),
            ),
        }

    def step(self):
        return {"step_size": self.rng.randint(1, 40), **self.some(gamma=self.gamma())}

    def multi_step(self):
        milestones = [self.rng.randrange(150) for _ in range(self.rng.randrange(6))]
        return {"milestones": milestones, **self.some(gamma=self.gamma())}

    def exponential(self):
        return {"gamma": self.gamma()}

    def cosine_annealing(self):
        return {
            "t_max": self.rng.choice([1, 2, self.rng.randint(3, 100)]),
            # Small: torch computes each rate from the previous one, and a large value would lose
            # digits there.
            **self.some(eta_min=self.rng.choice([0.0, 1e-6, 1e-4])),
        }

    def one_cycle(self, groups):
        def numbers(low, high):
            number = lambda: self.rng.uniform(low, high)
            return [number() for _ in range(groups)] if self.rng.random() < 0.3 else number()

        total = self.rng.choice([1, 2, self.rng.randint(3, 120)])
        fields = self.some(
            max_lr=numbers(1e-4, 1.0),
            pct_start=self.rng.choice([0.0, 0.25, 0.5, 1.0, self.rng.random()]),
            anneal=self.rng.choice(["cos", "linear"]),
            div_factor=self.rng.uniform(1, 50),
            final_div_factor=self.rng.choice([1.0, 1e4, self.rng.uniform(1, 1e5)]),
            three_phase=self.rng.random() < 0.5,
            cycle_momentum=self.rng.random() < 0.7,
            base_momentum=numbers(0.5, 0.9),
            max_momentum=numbers(0.9, 0.99),
        )
        # A rise of exactly one step is a division by zero in torch.
        if fields.get("pct_start", 0.3) * total == 1.0:
            fields["pct_start"] = 0.77
        return {"total_steps": total, **fields}

    def user_function(self, groups):
        values = lambda: [self.rng.uniform(0, 2) for _ in range(self.rng.randint(1, 60))]
        return {"factors": [values() for _ in range(groups)] if self.rng.random() < 0.5 else values()}

    def part(self, kinds):
        kind = self.rng.choice(kinds)
        return {"kind": kind, "options": getattr(self, kind)()}

    def reduce_on_plateau(self, groups):
        rate = lambda: self.rng.choice([0.0, 1e-3, 1e-2])
        return self.some(
            mode=self.rng.choice(["min", "max"]),
            factor=self.rng.choice([0.0, 0.1, 0.5, 0.9]),
            patience=self.rng.randrange(5),
            threshold=self.rng.choice([0.0, 1e-4, 0.1]),
            threshold_mode=self.rng.choice(["rel", "abs"]),
            cooldown=self.rng.randrange(4),
            min_lr=[rate() for _ in range(groups)] if self.rng.random() < 0.4 else rate(),
            eps=self.rng.choice([0.0, 1e-8, 1e-3]),
        )

    def metric(self):
        if self.rng.random() < 0.1:
            return to_json(self.rng.choice([math.nan, math.inf, -math.inf, 0.0, -1.0]))
        return self.rng.choice([1.0, 0.5, self.rng.uniform(-1, 3)])


PLAIN = [
    "constant",
    "constant_with_warmup",
    "linear_with_warmup",
    "cosine_with_warmup",
    "cosine_with_hard_restarts",
    "polynomial_with_warmup",
    "inverse_sqrt",
    "wsd",
    "step",
    "multi_step",
    "exponential",
    "cosine_annealing",
]
SPECIAL = ["one_cycle", "lambda", "sequential", "chained", "reduce_on_plateau"]
# In transformers the rates of a polynomial depend on the optimizer's default rate, so it is
# compared separately, group by group.
IN_SEQUENCE = [kind for kind in PLAIN if kind != "polynomial_with_warmup"]
# Schedules that are a factor for any rate.
FACTORS = [kind for kind in IN_SEQUENCE if kind != "cosine_annealing"]


def random_document(rng, optimizers):
    maker = Maker(rng)
    kind = rng.choice(PLAIN + SPECIAL)
    groups = rng.choice([1, 1, 2, 3])
    document = {
        "kind": kind,
        "optimizer": rng.choice(optimizers),
        "base_lrs": [rng.choice([1.0, 0.1, 3e-4, 10 ** rng.uniform(-5, 1)]) for _ in range(groups)],
        "steps": rng.randint(1, 200),
    }
    if kind == "one_cycle":
        options = maker.one_cycle(groups)
        if document["optimizer"] == "adagrad":
            options["cycle_momentum"] = False
    elif kind == "lambda":
        options = maker.user_function(groups)
    elif kind == "reduce_on_plateau":
        options = maker.reduce_on_plateau(groups)
        document["metrics"] = [maker.metric() for _ in range(document["steps"])]
    elif kind == "sequential":
        count = rng.randint(1, 4)
        options = {
            "schedules": [maker.part(IN_SEQUENCE) for _ in range(count)],
            "milestones": sorted(rng.sample(range(1, 150), count - 1)),
        }
    elif kind == "chained":
        options = {"schedules": [maker.part(FACTORS) for _ in range(rng.randint(1, 4))]}
    else:
        options = getattr(maker, kind)()
    document["options"] = options
    if rng.random() < 0.4:
        document["save_at"] = rng.randrange(document["steps"])
    return document
