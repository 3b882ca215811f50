"""What can go wrong with the arithmetic: KL, NaN, gradients of zero."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from workbench.health.verdicts import ALARM, NOTE, OK, WARNING, RunView, Verdict, early, is_number, missing, rule
from workbench.run.metrics import GRAD_NORM, KL, LEARNING_RATE, REWARD

_LOSS = "loss"

# Nats per token. 0.5 is far outside what a run at its usual settings reaches; the old advice of 10 to 20 nats per completion
# is 0.03 to 0.1 per token at 200 to 300 tokens.
KL_ALARM, KL_WARNING, KL_EARLY = 0.5, 0.2, 0.1

_OVERFLOW = "a gradient or a weight has overflowed: a learning rate that is too high, 16-bit floats, or a broken kernel"
WHY = {  # (cause, remedy)
    "kl not measured": (
        "beta = 0 is TRL's default",
        "set grpo.beta = 0.001 to measure it; it costs a forward pass per step",
    ),
    "kl runaway": (
        "{} is too high{}, or a reward pays for text that the base model would never write",
        "read the latest completions; go back to a checkpoint from before, with a lower learning rate or a higher beta",
    ),
    "scaler": ("the scaler of 16-bit floats is looking for its scale", ""),
    "overflow": (
        _OVERFLOW,
        "stop; go on from a checkpoint of step {} or before, with a lower learning rate or in bfloat16",
    ),
    "overflow at once": (
        _OVERFLOW,
        "stop; load the policy in another precision (bfloat16 or float32), and lower the learning rate",
    ),
    "no gradient": (
        "nothing that is trained takes part in the forward pass, or every completion is masked as cut",
        "check that the adapter is trainable and active; with mask_truncated_completions, how many are cut",
    ),
}


@rule(batches=0)
def kl_not_measured(view: RunView) -> Verdict:
    """Whether anybody measures how far the policy has gone."""
    if not view.rows:
        return missing("metrics.jsonl", "no step was logged")
    if view.kl:
        line = f"kl is measured in {len(view.kl)} of {len(view.rows)} rows"
        return view.verdict(OK, line, {"rows": len(view.kl)}, over=())
    if view.config.beta == 0:
        return view.verdict(
            NOTE,
            "KL is not measured: beta = 0, so there is no reference model",
            {"beta": 0, "missing": KL},
            WHY["kl not measured"],
            (view.rows[0].get("step"), view.rows[-1].get("step")),
        )
    return missing(KL, "the metrics have no kl, though beta is not 0")


@rule(batches=0)
def kl_runaway(view: RunView) -> Verdict:
    """The policy leaves the reference model, faster and faster."""
    values, beta = view.kl, view.config.beta
    if not values:
        return missing(KL, "the metrics have no kl" + (", as beta = 0" if beta == 0 else ""))
    if len(values) < 3:
        return early(3, len(values), "rows")
    kl = [value for _, value in values[-100:]]
    # Single steps jump: the estimator has a heavy tail.
    now = statistics.median(kl[-5:])
    third = len(kl) // 3
    first, middle, late = (statistics.median(kl[start : start + third]) for start in (0, third, len(kl) - third))
    # Faster and faster: the last third added more than three times what the middle one did, and that on top of no small sum.
    speeds_up = len(kl) >= 9 and late - middle > 3 * max(middle - first, 0.2 * middle)
    above = list(itertools.takewhile(lambda pair: pair[1] > KL_EARLY, reversed(values)))
    since = above[-1][0] if above else None
    rates = view.numbers(LEARNING_RATE)
    rate = rates[-1][1] if rates else view.config.learning_rate
    evidence = {
        "kl": now,
        "by_thirds": [first, middle, late],
        "speeds_up": speeds_up,
        "above_early_since": since,
        "beta": beta,
        "learning_rate": rate,
    }
    over = (since or values[0][0], values[-1][0])
    words = f"KL is {now:.2g} nats per token (median of the latest {len(kl[-5:])} rows)"
    if speeds_up:
        words += f", and speeds up: {first:.2g}, {middle:.2g}, {late:.2g} by thirds"
    bad = now > KL_ALARM or (now > KL_WARNING and speeds_up)
    if not bad and not now > KL_WARNING and not (now > KL_EARLY and speeds_up):
        return view.verdict(OK, words, evidence, over=over)
    words += f"; above {KL_EARLY:g} since step {since}" if since else ""
    cause, remedy = WHY["kl runaway"]
    known = f"learning_rate = {rate:g}" if rate is not None else "the learning rate"
    cause = cause.format(known, "" if beta is None else f" or beta = {beta:g} too low")
    return view.verdict(ALARM if bad else WARNING, words, evidence, (cause, remedy), over)


@rule(batches=0)
def non_finite(view: RunView) -> Verdict:
    """NaN or infinite numbers where the run's arithmetic shows: loss, gradient, KL, reward."""
    rows = view.all_rows
    if not rows:
        return missing("metrics.jsonl", "no step was logged")
    broken = [_broken(row) for row in rows]
    bad = [(row.get("step") or 0, wrong) for row, wrong in zip(rows, broken, strict=True) if wrong]
    strange = [batch for batch in view.everything if batch.nonfinite]
    if not bad and not strange:
        return view.verdict(OK, f"every number in {len(rows)} rows is finite", {"rows": len(rows)}, over=())
    after = sum(1 for _ in itertools.takewhile(lambda wrong: not wrong, reversed(broken)))
    streak = sum(1 for _ in itertools.takewhile(bool, reversed(broken[: len(broken) - after])))
    keys = sorted({key for _, wrong in bad for key in wrong} | ({REWARD} if strange else set()))
    steps = [step for step, _ in bad] or [batch.step for batch in strange]
    first, count = min(steps), len(set(steps))
    good = [row.get("step") for row, wrong in zip(rows, broken, strict=True) if (row.get("step") or 0) < first and not wrong]
    # The scaler of 16-bit floats tries a scale, sees an infinite gradient, leaves that step out and takes a smaller one.
    scaled = view.config.fp16 and keys == [GRAD_NORM] and streak < 3
    words = f"{' and '.join(keys)} not finite at step {first}" + (f" and {count - 1} more" if count > 1 else "")
    words += f"; finite again for {after} rows" if after else ""
    words += f"; the last step before is {good[-1]}" if good else "; from the first step on"
    evidence = {
        "keys": keys,
        "rows": len(bad),
        "values": dict(bad[0][1]) if bad else {},
        "last_good_step": good[-1] if good else None,
        "rows_since": after,
    }
    cause, remedy = WHY["scaler" if scaled else "overflow" if good else "overflow at once"]
    return view.verdict(
        NOTE if scaled else WARNING if after >= 3 else ALARM,
        words,
        evidence,
        (cause, remedy.format(good[-1] if good else "")),
        (first, steps[-1]),
        prompts=view.prompts(lambda group: True, [batch for batch in view.everything if batch.step == first]),
    )


def _broken(row: dict[str, Any]) -> dict[str, str]:
    # Key -> what stands there. NaN is written as null, infinities as words. A reward that is null may be no error: no
    # function applied to that batch.
    found = {}
    for key in (_LOSS, GRAD_NORM, KL, REWARD):
        if key in row and not is_number(row[key]) and not (key == REWARD and row[key] is None):
            found[key] = "nan" if row[key] is None else str(row[key])
    return found


@rule(batches=0)
def zero_gradient(view: RunView) -> Verdict:
    """A gradient of exactly zero, step after step, though there are groups to learn from."""
    norms = view.numbers(GRAD_NORM)
    if not norms:
        return missing(GRAD_NORM, "the metrics have no grad_norm")
    zeros = sum(1 for _ in itertools.takewhile(lambda pair: not pair[1], reversed(norms)))
    if zeros < 3:
        last = norms[-1][1]
        return view.verdict(OK, f"the latest gradient has the norm {last:.2g}", {"grad_norm": last}, over=())
    over = (norms[-zeros][0], norms[-1][0])
    alive = sum(batch.group_count - batch.dead_count for batch in view.batches if batch.step >= over[0])
    evidence, words = {"rows": zeros, "groups_alive": alive}, f"grad_norm is 0 in the latest {zeros} rows"
    if not alive:
        return view.verdict(NOTE, f"{words}: all groups are dead", evidence, over=over)
    return view.verdict(ALARM, f"{words}, with {alive} groups to learn from", evidence, WHY["no gradient"], over)
