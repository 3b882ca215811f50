"""What can go wrong with the arithmetic: KL, NaN, gradients of zero."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from workbench.health.verdicts import (
    ALARM,
    NOTE,
    OK,
    SKIPPED,
    WARNING,
    Case,
    Verdict,
    is_number,
    latest_prompts,
    missing,
)
from workbench.run.metrics import GRAD_NORM, KL, LEARNING_RATE, REWARD

_LOSS = "loss"

# Nats per token. 0.5 is far outside what a run at its usual settings reaches; the old advice of 10 to 20 nats a completion
# is 0.03 to 0.1 a token at 200 to 300 tokens.
KL_ALARM, KL_WARNING, KL_EARLY = 0.5, 0.2, 0.1


def kl_not_measured(case: Case) -> Verdict:
    """Whether anybody measures how far the policy has gone."""
    name = "kl_not_measured"
    if not case.rows:
        return missing(name, "metrics.jsonl", "no step was logged")
    values = case.kl
    if values:
        return Verdict(name, OK, f"kl is measured in {len(values)} of {len(case.rows)} rows", {"rows": len(values)})
    if case.facts.beta == 0:
        return Verdict(
            name,
            NOTE,
            "KL is not measured: beta = 0, so there is no reference model",
            {"beta": 0, "missing": KL},
            first_step=case.rows[0].get("step"),
            last_step=case.rows[-1].get("step"),
            cause="beta = 0 is TRL's default",
            remedy="set grpo.beta = 0.001 to measure it; it costs a forward pass a step",
        )
    return missing(name, KL, "the metrics have no kl, though beta is not 0")


def kl_runaway(case: Case) -> Verdict:
    """The policy leaves the reference model, faster and faster."""
    name = "kl_runaway"
    values = case.kl
    if not values:
        return missing(name, KL, "the metrics have no kl" + (", as beta = 0" if case.facts.beta == 0 else ""))
    if len(values) < 3:
        return Verdict(
            name, SKIPPED, f"too early to say: {len(values)} of 3 rows", {"needs": 3, "has": len(values), "of": "rows"}
        )
    kl = [value for _, value in values[-100:]]
    # Single steps jump: the estimator has a heavy tail.
    now = statistics.median(kl[-5:])
    third = len(kl) // 3
    early, middle, late = (statistics.median(kl[start : start + third]) for start in (0, third, len(kl) - third))
    # Faster and faster: the last third added more than three times what the middle one did, and that on top of no small sum.
    speeds_up = len(kl) >= 9 and late - middle > 3 * max(middle - early, 0.2 * middle)
    above = list(itertools.takewhile(lambda pair: pair[1] > KL_EARLY, reversed(values)))
    over = above[-1][0] if above else None
    rates = case.numbers(LEARNING_RATE)
    rate = rates[-1][1] if rates else case.facts.learning_rate
    evidence = {
        "kl": now,
        "by_thirds": [early, middle, late],
        "speeds_up": speeds_up,
        "above_early_since": over,
        "beta": case.facts.beta,
        "learning_rate": rate,
    }
    rest = {"first_step": over or values[0][0], "last_step": values[-1][0]}
    words = f"KL is {now:.2g} nats per token (median of the latest {len(kl[-5:])} rows)"
    if speeds_up:
        words += f", and speeds up: {early:.2g}, {middle:.2g}, {late:.2g} by thirds"
    if now > KL_ALARM or (now > KL_WARNING and speeds_up):
        state = ALARM
    elif now > KL_WARNING or (now > KL_EARLY and speeds_up):
        state = WARNING
    else:
        return Verdict(name, OK, words, evidence, **rest)
    known = f"learning_rate = {rate:g}" if rate is not None else "the learning rate"
    beta = "" if case.facts.beta is None else f" or beta = {case.facts.beta:g} too low"
    return Verdict(
        name,
        state,
        words + (f"; above {KL_EARLY:g} since step {over}" if over else ""),
        evidence,
        cause=f"{known} is too high{beta}, or a reward pays for text that the base model would never write",
        remedy="read the latest completions; go back to a checkpoint from before, with a lower learning rate or a higher beta",
        **rest,
    )


def non_finite(case: Case) -> Verdict:
    """NaN or infinite numbers where the run's arithmetic shows: loss, gradient, KL, reward."""
    name = "non_finite"
    if not case.all_rows:
        return missing(name, "metrics.jsonl", "no step was logged")
    bad = [(row.get("step") or 0, wrong) for row in case.all_rows if (wrong := _broken(row))]
    strange = [batch for batch in case.everything if batch.nonfinite]
    if not bad and not strange:
        return Verdict(name, OK, f"every number in {len(case.all_rows)} rows is finite", {"rows": len(case.all_rows)})
    after = 0
    for row in reversed(case.all_rows):
        if _broken(row):
            break
        after += 1
    streak = 0
    for row in reversed(case.all_rows[: len(case.all_rows) - after]):
        if not _broken(row):
            break
        streak += 1
    keys = sorted({key for _, wrong in bad for key in wrong} | ({REWARD} if strange else set()))
    steps = [step for step, _ in bad] or [batch.step for batch in strange]
    first = min(steps)
    good = [row.get("step") for row in case.all_rows if (row.get("step") or 0) < first and not _broken(row)]
    # The scaler of 16-bit floats tries a scale, sees an infinite gradient, leaves that step out and takes a smaller one.
    scaled = case.facts.fp16 and keys == [GRAD_NORM] and streak < 3
    state = NOTE if scaled else WARNING if after >= 3 else ALARM
    shown = {key: value for _, wrong in bad[:1] for key, value in wrong.items()}
    words = f"{' and '.join(keys)} not finite at step {first}" + (
        f" and {len(set(steps)) - 1} more" if len(set(steps)) > 1 else ""
    )
    if after:
        words += f"; finite again for {after} rows"
    words += f"; the last step before is {good[-1]}" if good else "; from the first step on"
    return Verdict(
        name,
        state,
        words,
        {
            "keys": keys,
            "rows": len(bad),
            "values": shown,
            "last_good_step": good[-1] if good else None,
            "rows_since": after,
        },
        first_step=first,
        last_step=steps[-1],
        prompts=latest_prompts([batch for batch in case.everything if batch.step == first], lambda group: True),
        cause="the scaler of 16-bit floats is looking for its scale"
        if scaled
        else "a gradient or a weight has overflowed: a learning rate that is too high, 16-bit floats, or a broken kernel",
        remedy=""
        if scaled
        else f"stop; go on from a checkpoint of step {good[-1]} or before, with a lower learning rate or in bfloat16"
        if good
        else "stop; load the policy in another precision (bfloat16 or float32), and lower the learning rate",
    )


def _broken(row: dict[str, Any]) -> dict[str, str]:
    # Key -> what stands there. NaN is written as null, infinities as words. A reward that is null may be no error: no
    # function applied to that batch.
    found = {}
    for key in (_LOSS, GRAD_NORM, KL, REWARD):
        if key in row and not is_number(row[key]) and not (key == REWARD and row[key] is None):
            found[key] = "nan" if row[key] is None else str(row[key])
    return found


def zero_gradient(case: Case) -> Verdict:
    """A gradient of exactly zero, step after step, though there are groups to learn from."""
    name = "zero_gradient"
    norms = case.numbers(GRAD_NORM)
    if not norms:
        return missing(name, GRAD_NORM, "the metrics have no grad_norm")
    zeros = 0
    for _, norm in reversed(norms):
        if norm:
            break
        zeros += 1
    if zeros < 3:
        return Verdict(name, OK, f"the latest gradient has the norm {norms[-1][1]:.2g}", {"grad_norm": norms[-1][1]})
    since = norms[-zeros][0]
    alive = sum(batch.group_count - batch.dead_count for batch in case.batches if batch.step >= since)
    evidence = {"rows": zeros, "groups_alive": alive}
    words = f"grad_norm is 0 in the latest {zeros} rows"
    if not alive:
        return Verdict(name, NOTE, f"{words}: all groups are dead", evidence, since, norms[-1][0])
    return Verdict(
        name,
        ALARM,
        f"{words}, with {alive} groups to learn from",
        evidence,
        since,
        norms[-1][0],
        cause="nothing that is trained takes part in the forward pass, or every completion is masked as cut",
        remedy="check that the adapter is trainable and active; with mask_truncated_completions, how many are cut",
    )
