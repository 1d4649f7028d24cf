"""What AcceleratorOptions::nonfinite costs in a step: the same training with gradients that are not looked at, and with
steps that are skipped or stop the training if gradients are inf or nan. Without clipping, the check is one more reading
of the gradients."""

import functools

from rounds import Case
from workloads import trainings

PROGRAMS = trainings.PROGRAMS
TASKS = {"cpu": [("fp32", "gpt-tiny-1"), ("bf16", "cnn-4"), ("fp32", "mlp")],
         "cuda": [("bf16", "gpt-tiny"), ("fp32", "mlp"), ("bf16", "gpt-nano"), ("bf16", "gpt-small")]}
HOW = {"cpu": ["accelerant"], "cuda": ["accelerant", "captured"]}
WORDS = {"ours": "", "skipping": "skipping-", "stopping": "stopping-"}
ROUNDS = 15  # the difference is small


def contenders(settings, task, precision, how):
    return {side: trainings.contender(settings, side, task, precision, "measure", settings.seconds, form=word + how)
            for side, word in WORDS.items()}


def cases(settings):
    for precision, task in TASKS[settings.device]:
        for how in HOW[settings.device]:
            for clips in (True, False):
                form = how if clips else "unclipped-" + how
                kind = ("" if how == "accelerant" else how + "/") + ("clipped" if clips else "unclipped")
                title = ("" if how == "accelerant" else how + " ") + ("clipped" if clips else "unclipped")
                yield Case(f"nonfinite/{kind}/{precision}/{task}",
                           f"{title} step that looks for inf and nan, {trainings.title_of(task)}, {precision}", "ms",
                           functools.partial(contenders, settings, task, precision, form), rounds=ROUNDS)
