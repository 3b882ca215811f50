"""Whether a run gets anywhere, as far as its noise shows it."""

from __future__ import annotations

import statistics

from workbench.health.trends import share, steps_to_tell
from workbench.health.verdicts import NOTE, OK, WARNING, RunView, Verdict, counts, percent, rule
from workbench.rewards.groups import ALL_RIGHT
from workbench.run.metrics import LEARNING_RATE

ENOUGH_TO_TELL, LONG = 16, 60  # batches
# Nats per token: a policy that is nearer to its base than that has hardly moved. It grows with the square of the learning
# rate: a usual rate is at some 1e-4 after 20 steps, and a fifth of it at 1e-5.
STILL = 1e-5

WHY = {  # (cause, remedy)
    "falls": (
        "the policy is driven away from what paid: a learning rate that is too high, or functions against each other",
        "go back to a checkpoint from before, with a lower learning rate",
    ),
    "still": (
        "steps that are too small{}, or groups that teach nothing",
        "raise the learning rate tenfold (5e-6 to 5e-5 is usual with LoRA), unless groups are dead",
    ),
    "flat": (
        "steps that are too small, prompts that are too hard, or groups that teach nothing",
        "look at the groups first; then a higher learning rate or easier prompts",
    ),
}


@rule(batches=ENOUGH_TO_TELL)
def slow_learning(view: RunView) -> Verdict:
    """A reward that does not rise beyond its noise, and whether that will change."""
    values, found, asked_rate = view.rewards, view.reward_slope, view.config.learning_rate
    count = len(values)
    batches = view.batches[-count:]
    right = share(*counts(batches[-10:], "right"))
    spread = statistics.fmean(batch.group_std or 0.0 for batch in batches)
    moved = statistics.median(value for _, value in view.kl[-5:]) if view.kl else None
    left = _left_to_gain(view)
    evidence = {
        "slope": found.value,
        "slope_low": found.low,
        "slope_high": found.high,
        "batches": count,
        "reward": values[-1],
        "right": right.value,
        "within_group_std": spread,
        "kl": moved,
        "left_to_gain": left,
        "learning_rate": asked_rate,
    }

    def verdict(state: str, line: str, why: tuple[str, str] = ("", "")) -> Verdict:
        return view.verdict(state, line, evidence, why, batches)

    changes = f"changes by {found.low:+.2g} to {found.high:+.2g} per batch over {count} batches"
    if found.low > 0:
        return verdict(OK, f"the reward rises: {changes}")
    # Learnt is learnt, also when the last stretch is flat.
    done = share(view.dead_kinds()[ALL_RIGHT], view.total("group_count"))
    # Unless the rewards still have much to give: a task that names no right_by may count anything as right.
    paid = left is None or values[-1] > 4 * left
    if (right.low > 0.8 or done.low > 0.5) and paid:
        return verdict(OK, f"nothing left to learn: {percent(right.value)} are right")
    if found.high < 0 and -found.value * count > 0.5 * spread:
        return verdict(WARNING, f"the reward falls: {changes}", WHY["falls"])
    tell = _when_it_tells(view, 0.1 * left) if left else ""
    if moved is not None and moved < STILL:
        rates = [value for _, value in view.numbers(LEARNING_RATE)]
        if rates and rates[-1] < 0.5 * max(rates[-1], asked_rate or 0.0) and rates[-1] >= rates[0]:
            return verdict(NOTE, f"the learning rate is still rising; the reward {changes}")
        rate = "" if asked_rate is None else f" (learning_rate = {asked_rate:g})"
        line = f"the reward {changes}, and KL is {moved:.1g} nats per token: the policy has hardly moved{tell}"
        return verdict(WARNING, line, (WHY["still"][0].format(rate), WHY["still"][1]))
    # Over a long stretch the bound itself is small: even at its best this run gets nowhere.
    if count >= LONG and left and found.high * count < 0.1 * left:
        line = f"the reward {changes}: at best {found.high * count:.2g} of {left:.2g} that is left to gain"
        return verdict(WARNING, line, WHY["flat"])
    return verdict(NOTE, f"cannot be told from noise yet: {changes}{tell}")


def _when_it_tells(view: RunView, rise: float) -> str:
    enough, count, steps = steps_to_tell(view.rewards, rise), len(view.rewards), view.config.total_steps
    if enough is None:
        return ""
    when = "would have shown by now" if enough <= count else f"shows after about {enough} batches"
    if steps is not None and enough > max(count, steps):
        when += f", more than this run's {steps} steps"
    return f"; a rise of {rise:.2g} in all {when}"


def _left_to_gain(view: RunView) -> float | None:
    # What a good completion could still earn: by what the functions declare, else by the best that was seen.
    best = 0.0
    for function in view.functions:
        seen = max((own.high for _, own in view.by_function[function.name] if own.high is not None), default=None)
        most = view.config.best.get(function.name)
        most = seen if most is None else most
        if most is None:
            return None
        best += function.weight * most
    return max(0.0, best - statistics.fmean(view.rewards[-10:]))
