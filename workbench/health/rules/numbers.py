"""What can go wrong with the arithmetic: KL, entropy, NaN, gradients of zero."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from workbench.health.trends import change_of_share, percent
from workbench.health.verdicts import (
    ALARM,
    NOTE,
    OK,
    WARNING,
    ExaminedRun,
    Verdict,
    counts,
    early,
    is_finite,
    not_examined,
    rule,
)
from workbench.kinds import Fields
from workbench.run.metrics import ENTROPY, GRAD_NORM, KL, LEARNING_RATE, REWARD

# Nats per token. 0.5 is far outside what a run at its usual settings reaches; the old advice of 10
# to 20 nats per completion is 0.03 to 0.1 per token at 200 to 300 tokens.
KL_ALARM, KL_WARNING, KL_EARLY = 0.5, 0.2, 0.1
# times that entropy fell; flat is where a larger rise of the share of right completions is ruled
# out
FELL, FLAT = 7, 0.15


def _at_the_end(values: Sequence[object], holds: Callable[[Any], Any]) -> int:
    # For how many of the last values, in a row, something holds.
    return sum(1 for _ in itertools.takewhile(holds, reversed(values)))


@rule(batches=0)
def kl_not_measured(view: ExaminedRun) -> Verdict:
    """Whether the policy's distance from the base is measured."""
    rows, count = view.rows, len(view.kl)
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    if count:
        return view.verdict(
            OK, f"kl is measured in {count} of {len(rows)} rows", {"rows": count}, over=()
        )
    if view.config.beta != 0:
        return not_examined(KL, "the metrics have no kl, though beta is not 0")
    line, evidence = (
        "KL is not measured: beta = 0, so there is no reference model",
        {
            "beta": 0,
            "missing": KL,
        },
    )
    cause, remedy = (
        "beta = 0 is TRL's default",
        "beta = 0.001 (in a recipe grpo.beta) measures it, for a forward pass per step",
    )
    return view.verdict(
        NOTE, line, evidence, cause, remedy, over=(rows[0].get("step"), rows[-1].get("step"))
    )


@rule(batches=0)
def kl_runaway(view: ExaminedRun) -> Verdict:
    """The policy moves away from the reference model, faster and faster."""
    values, beta = view.kl, view.config.beta
    if not values:
        return not_examined(KL, "the metrics have no kl" + (", as beta = 0" if beta == 0 else ""))
    if len(values) < 3:
        return early(3, len(values), "rows")
    kl = [value for _, value in values[-100:]]
    # Single steps jump: the estimator has a heavy tail.
    now = statistics.median(kl[-5:])
    third = len(kl) // 3
    first, middle, late = (
        statistics.median(kl[start : start + third]) for start in (0, third, len(kl) - third)
    )
    # Faster and faster: the last third added more than three times what the middle one did, and
    # that on top of no small sum.
    speeds_up = len(kl) >= 9 and late - middle > 3 * max(middle - first, 0.2 * middle)
    above = _at_the_end(values, lambda pair: pair[1] > KL_EARLY)
    since = values[-above][0] if above else None
    rates = view.numbers(LEARNING_RATE)
    rate = rates[-1][1] if rates else view.config.learning_rate
    evidence = {
        "kl": now,
        "by_thirds": [first, middle, late],
        "speeds_up": speeds_up,
        "above_early_since": since,
    }
    evidence |= {"beta": beta, "learning_rate": rate}
    words = f"KL is {now:.2g} nats per token (median of the latest {len(kl[-5:])} rows)"
    if speeds_up:
        words += f", and speeds up: {first:.2g}, {middle:.2g}, {late:.2g} by thirds"
    bad = now > (KL_WARNING if speeds_up else KL_ALARM)
    state = ALARM if bad else WARNING if now > (KL_EARLY if speeds_up else KL_WARNING) else OK
    if state != OK and since:
        words += f"; above {KL_EARLY:g} since step {since}"
    known = "the learning rate" if rate is None else f"learning_rate = {rate:g}"
    or_beta = "" if beta is None else f" or beta = {beta:g} too low"
    cause = (
        f"{known} is too high{or_beta}, or a reward pays for text that the base model would never"
        " write"
    )
    remedy = (
        "read the latest completions; go back to an earlier checkpoint, with a lower learning rate"
        " or a higher beta"
    )
    return view.verdict(
        state, words, evidence, cause, remedy, over=(since or values[0][0], values[-1][0])
    )


@rule(batches=12)
def entropy_collapse(view: ExaminedRun) -> Verdict:
    """Entropy fell without better accuracy."""
    batches = view.batches[-len(view.rewards) :]
    values = [value for step, value in view.numbers(ENTROPY) if step >= batches[0].step]
    if not values:
        return not_examined(
            ENTROPY, "the metrics have no entropy: Unsloth's trainer on a GPU logs none"
        )
    if len(values) < 8:
        return early(8, len(values), "rows")
    rows, size = min(10, len(values) // 4), min(10, len(batches) // 4)
    first, last = statistics.median(values[:rows]), statistics.median(values[-rows:])
    right = [counts(end, "right") for end in (batches[:size], batches[-size:])]
    rose, (before, now) = change_of_share(*right), (count / of for count, of in right)
    evidence = {
        "before": first,
        "after": last,
        "right_before": before,
        "right_after": now,
        "right_rose_at_most": rose.high,
    }
    words = (
        f"entropy {first:.2g} -> {last:.2g} nats per token, right {percent(before)} ->"
        f" {percent(now)}"
    )
    # Learning makes a policy sure, too. Only where a rise can be ruled out was it bought with
    # nothing.
    flat = rose.low <= 0 and rose.high < FLAT and view.reward_slope.low <= 0 and now < 0.9
    if first < FELL * last or not flat:
        return view.verdict(OK, words, evidence, over=batches)
    cause = "each update makes likely text likelier, until alternatives are no longer sampled"
    remedy = (
        "go back to a checkpoint from before; then a lower learning rate, entropy_coef = 0.001 to"
        " 0.01, or "
    )
    remedy += (
        "top_entropy_quantile = 0.2; with several updates per generation also epsilon_high = 0.28"
    )
    return view.verdict(
        WARNING, f"{words}: more certain, but no better", evidence, cause, remedy, over=batches
    )


@rule(batches=0)
def non_finite(view: ExaminedRun) -> Verdict:
    """NaN or infinite numbers where the run's arithmetic shows: loss, gradient, KL, reward."""
    rows = view.all_rows
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    broken = [_broken(row) for row in rows]
    steps = [row.get("step") or 0 for row in rows]
    bad = [(step, wrong) for step, wrong in zip(steps, broken, strict=True) if wrong]
    strange = [batch for batch in view.everything if batch.nonfinite]
    if not bad and not strange:
        return view.verdict(
            OK, f"every number in {len(rows)} rows is finite", {"rows": len(rows)}, over=()
        )
    after = _at_the_end(broken, lambda wrong: not wrong)
    streak = _at_the_end(broken[: len(broken) - after], bool)
    keys = sorted({key for _, wrong in bad for key in wrong} | ({REWARD} if strange else set()))
    hit = [step for step, _ in bad] or [batch.step for batch in strange]
    first, more = min(hit), len(set(hit)) - 1
    good = [
        row.get("step")
        for row, step, wrong in zip(rows, steps, broken, strict=True)
        if step < first and not wrong
    ]
    words = f"{' and '.join(keys)} not finite at step {first}" + (
        f" and {more} more" if more else ""
    )
    words += f"; finite again for {after} rows" if after else ""
    words += f"; the last step before is {good[-1]}" if good else "; from the first step on"
    evidence: Fields = {"keys": keys, "rows": len(bad), "values": dict(bad[0][1]) if bad else {}}
    evidence |= {"last_good_step": good[-1] if good else None, "rows_since": after}
    cause = (
        "a gradient or a weight has overflowed: a learning rate that is too high, 16-bit floats, or"
        " a broken kernel"
    )
    remedy = (
        "stop; load the policy in another precision (bfloat16 or float32), and lower the learning"
        " rate"
    )
    if strange:
        cause = "a reward is NaN or infinite: a function's score, or its weight"
        remedy = "stop; fix the function, or bound its score; a weight is a number such as 1.0"
    elif good:
        remedy = (
            f"stop; resume from a checkpoint of step {good[-1]} or before, with a lower learning"
            " rate or in bfloat16"
        )
    state = WARNING if after >= 3 else ALARM
    # The scaler of 16-bit floats tries a scale, sees an infinite gradient, leaves that step out and
    # takes a smaller one.
    if view.config.fp16 and keys == [GRAD_NORM] and streak < 3:
        state, cause, remedy = NOTE, "the scaler of 16-bit floats is looking for its scale", ""
    prompts = view.prompts(
        lambda group: True, [batch for batch in view.everything if batch.step == first]
    )
    return view.verdict(
        state, words, evidence, cause, remedy, over=(first, hit[-1]), prompts=prompts
    )


def _broken(row: Fields) -> dict[str, str]:
    # Key -> what stands there. NaN is written as null, infinities as words. A reward that is null
    # may be no error: no function applied to that batch.
    wrong = {
        key: row[key]
        for key in ("loss", GRAD_NORM, KL, REWARD)
        if key in row and not is_finite(row[key])
    }
    return {
        key: "nan" if value is None else str(value)
        for key, value in wrong.items()
        if key != REWARD or value is not None
    }


@rule(batches=0)
def zero_gradient(view: ExaminedRun) -> Verdict:
    """A gradient of exactly zero, step after step, although there are groups to learn from."""
    norms = view.numbers(GRAD_NORM)
    if not norms:
        return not_examined(GRAD_NORM, "the metrics have no grad_norm")
    zeros = _at_the_end(norms, lambda pair: not pair[1])
    if zeros < 3:
        last = norms[-1][1]
        return view.verdict(
            OK, f"the latest gradient has the norm {last:.2g}", {"grad_norm": last}, over=()
        )
    over = (norms[-zeros][0], norms[-1][0])
    alive = sum(
        batch.group_count - batch.dead_count for batch in view.batches if batch.step >= over[0]
    )
    evidence, words = (
        {
            "rows": zeros,
            "groups_alive": alive,
        },
        f"grad_norm is 0 in the latest {zeros} rows",
    )
    if not alive:
        return view.verdict(NOTE, f"{words}: all groups are dead", evidence, over=over)
    cause = (
        "nothing that is trained takes part in the forward pass, or every completion is masked"
        " as cut"
    )
    remedy = (
        "check that the adapter is trainable and active; with mask_truncated_completions, how many"
        " are cut"
    )
    return view.verdict(
        ALARM, f"{words}, with {alive} groups to learn from", evidence, cause, remedy, over=over
    )
