"""Whether a run gets anywhere, as far as its noise lets that be told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from workbench.health.trends import share, steps_to_tell
from workbench.health.verdicts import (
    NOTE,
    OK,
    WARNING,
    Case,
    Verdict,
    counts,
    dead_kinds,
    percent,
    steps_of,
)
from workbench.rewards.groups import ALL_RIGHT
from workbench.run.metrics import LEARNING_RATE

ENOUGH_TO_TELL, LONG = 16, 60  # batches
# Nats per token: a policy that is nearer to its base than that has hardly moved. It grows with the square of the learning
# rate: a usual rate is at some 1e-4 after 20 steps, and a fifth of it at 1e-5.
STILL = 1e-5


def slow_learning(case: Case) -> Verdict:
    """A reward that does not rise beyond its noise, and whether that will change."""
    name = "slow_learning"
    if early := case.too_few(name, batches=ENOUGH_TO_TELL):
        return early
    values, found = case.rewards, case.reward_slope
    count = len(values)
    batches = case.batches[-count:]
    right = share(*counts(batches[-10:], "right"))
    spread = statistics.fmean(batch.group_std or 0.0 for batch in batches)
    kl = [value for _, value in case.kl[-5:]]
    moved = statistics.median(kl) if kl else None
    rest = steps_of(batches)
    left = _left_to_gain(case, values)
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
        "learning_rate": case.facts.learning_rate,
    }
    words = f"the reward changes by {found.low:+.2g} to {found.high:+.2g} a batch over {count} batches"
    if found.low > 0:
        return Verdict(name, OK, f"the reward rises: {words.removeprefix('the reward ')}", evidence, **rest)
    # Learnt is learnt, also when the last stretch is flat.
    done = share(dead_kinds(case.recent)[ALL_RIGHT], sum(batch.group_count for batch in case.recent))
    # Unless the rewards still have much to give: a task that names no right_by may count anything as right.
    paid = left is None or values[-1] > 4 * left
    if (right.low > 0.8 or done.low > 0.5) and paid:
        return Verdict(name, OK, f"nothing left to learn: {percent(right.value)} are right", evidence, **rest)
    if found.high < 0 and -found.value * count > 0.5 * spread:
        return Verdict(
            name,
            WARNING,
            f"the reward falls: {words.removeprefix('the reward ')}",
            evidence,
            cause="the policy is driven away from what paid: a learning rate that is too high, or functions against each other",
            remedy="go back to a checkpoint from before, with a lower learning rate",
            **rest,
        )
    enough = steps_to_tell(values, 0.1 * left) if left else None
    tell = ""
    if enough is not None:
        when = "would have shown by now" if enough <= count else f"shows after about {enough} batches"
        if case.facts.total_steps is not None and enough > max(count, case.facts.total_steps):
            when += f", more than this run's {case.facts.total_steps} steps"
        tell = f"; a rise of {0.1 * left:.2g} in all {when}"
    if moved is not None and moved < STILL:
        rates = [value for _, value in case.numbers(LEARNING_RATE)]
        if rates and rates[-1] < 0.5 * max(rates[-1], case.facts.learning_rate or 0.0) and rates[-1] >= rates[0]:
            return Verdict(name, NOTE, f"the learning rate is still rising; {words}", evidence, **rest)
        rate = "" if case.facts.learning_rate is None else f" (learning_rate = {case.facts.learning_rate:g})"
        return Verdict(
            name,
            WARNING,
            f"{words}, and KL is {moved:.1g} nats per token: the policy has hardly moved{tell}",
            evidence,
            cause=f"steps that are too small{rate}, or groups that teach nothing",
            remedy="raise the learning rate tenfold (5e-6 to 5e-5 is usual with LoRA), unless groups are dead",
            **rest,
        )
    # Over a long stretch the bound itself is small: even at its best this run gets nowhere.
    if count >= LONG and left and found.high * count < 0.1 * left:
        return Verdict(
            name,
            WARNING,
            f"{words}: at best {found.high * count:.2g} of {left:.2g} that is left to gain",
            evidence,
            cause="steps that are too small, prompts that are too hard, or groups that teach nothing",
            remedy="look at the groups first; then a higher learning rate or easier prompts",
            **rest,
        )
    return Verdict(
        name, NOTE, f"cannot be told from noise yet: {words.removeprefix('the reward ')}{tell}", evidence, **rest
    )


def _left_to_gain(case: Case, rewards: Sequence[float]) -> float | None:
    # What an honest completion could still earn: by what the functions say of themselves, else by the best that was seen.
    best = 0.0
    for function in case.functions:
        seen = max((own.high for _, own in case.by_function[function.name] if own.high is not None), default=None)
        most = case.facts.best.get(function.name)
        most = seen if most is None else most
        if most is None:
            return None
        best += function.weight * most
    return max(0.0, best - statistics.fmean(rewards[-10:]))
