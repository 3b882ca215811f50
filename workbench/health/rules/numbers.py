"""What can go wrong with the arithmetic: KL, entropy, NaN, gradients of zero. And which settings
had an effect: read off the record's ratios, clip shares, norms and cut completions.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from workbench.base.kinds import Fields
from workbench.health.trends import change_of_share, percent, share, two_digits
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
from workbench.run.inert import MeasuredRun, judge
from workbench.run.metrics import DEAD, ENTROPY, GRAD_NORM, KL, LEARNING_RATE, MEAN_LENGTH, REWARD

# Nats per token. 0.5 is far outside what a run at its usual settings reaches; the old advice of 10
# to 20 nats per completion is 0.03 to 0.1 per token at 200 to 300 tokens.
KL_ALARM, KL_WARNING, KL_EARLY = 0.5, 0.2, 0.1
# Nats per completion that are not far, however few tokens they are spread over: a policy that has
# learnt to answer in one word, which its base did once in fifty times, is 4 nats away.
KL_NEAR = 5
# times that entropy fell; flat is where a larger rise of the share of right completions is ruled
# out
FELL, FLAT = 7, 0.15
_Value = TypeVar("_Value")


def _at_the_end(values: Sequence[_Value], holds: Callable[[_Value], object]) -> int:
    # For how many of the last values, in a row, something holds.
    for count, value in enumerate(reversed(values)):
        if not holds(value):
            return count
    return len(values)


@rule(batches=0)
def kl_not_measured(view: ExaminedRun) -> Verdict:
    """Whether the policy's distance from the base is measured."""
    rows, count = view.rows, len(view.kl)
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    if count:
        line = f"kl is measured in {count} of {len(rows)} rows"
        return view.verdict(OK, line, {"rows": count}, over=())
    if view.config.beta != 0:
        return not_examined(KL, "the metrics have no kl, though beta is not 0")
    line = "KL is not measured: beta = 0, so there is no reference model"
    steps = rows[0].get("step"), rows[-1].get("step")
    return view.verdict(NOTE, line, {"beta": 0, "missing": KL}, "no beta", steps=steps)


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
        "beta": beta,
        "learning_rate": rate,
    }
    line = f"KL is {now:.2g} nats per token (median of the latest {len(kl[-5:])} rows)"
    if speeds_up:
        line += f", and speeds up: {first:.2g}, {middle:.2g}, {late:.2g} by thirds"
    bad, worth = (KL_WARNING, KL_EARLY) if speeds_up else (KL_ALARM, KL_WARNING)
    state = ALARM if now > bad else WARNING if now > worth else OK
    lengths = [length for _, length in view.numbers(MEAN_LENGTH)[-5:]]
    if lengths and state != OK:
        whole = evidence["kl_per_completion"] = now * statistics.median(lengths)
        line += f", {two_digits(whole)} per completion"
        if whole <= KL_NEAR:
            state = WARNING if speeds_up else OK
    if state != OK and since:
        line += f"; above {KL_EARLY:g} since step {since}"
    return view.verdict(
        state,
        line,
        evidence,
        "far from base",
        steps=(since or values[0][0], values[-1][0]),
        rate="the learning rate" if rate is None else f"learning_rate = {rate:g}",
        or_beta="" if beta is None else f" or beta = {beta:g} too low",
    )


@rule(batches=12)
def entropy_collapse(view: ExaminedRun) -> Verdict:
    """Entropy fell without better accuracy."""
    batches = view.batches[-len(view.rewards) :]
    values = [value for step, value in view.numbers(ENTROPY) if step >= batches[0].step]
    if not values:
        why = "the metrics have no entropy: Unsloth's trainer on a GPU logs none"
        return not_examined(ENTROPY, why)
    if len(values) < 8:
        return early(8, len(values), "rows")
    rows, size = min(10, len(values) // 4), min(10, len(batches) // 4)
    first, last = statistics.median(values[:rows]), statistics.median(values[-rows:])
    right = [counts(end, "right") for end in (batches[:size], batches[-size:])]
    rose, (before, now) = change_of_share(*right), (share(*end).value for end in right)
    evidence = {
        "before": first,
        "after": last,
        "right_before": before,
        "right_after": now,
    }
    line = (
        f"entropy {first:.2g} -> {last:.2g} nats per token, right {percent(before)} ->"
        f" {percent(now)}"
    )
    # Learning makes a policy sure, too. Only where a rise can be ruled out was it bought with
    # nothing.
    flat = rose.low <= 0 and rose.high < FLAT and view.reward_slope.low <= 0 and now < 0.9
    if first < FELL * last or not flat:
        return view.verdict(OK, line, evidence, over=batches)
    line += ": more certain, but no better"
    return view.verdict(WARNING, line, evidence, "too sure", over=batches)


@rule(batches=0)
def non_finite(view: ExaminedRun) -> Verdict:
    """NaN or infinite numbers where the run's arithmetic shows: loss, gradient, KL, reward."""
    rows = view.all_rows
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    broken = [_broken(row) for row in rows]
    steps = [row.get("step") or 0 for row in rows]
    bad = {step: wrong for step, wrong in zip(steps, broken, strict=True) if wrong}
    strange = [batch.step for batch in view.everything if batch.nonfinite]
    if not bad and not strange:
        line = f"every number in {len(rows)} rows is finite"
        return view.verdict(OK, line, {"rows": len(rows)}, over=())
    after = _at_the_end(broken, lambda wrong: not wrong)
    streak = _at_the_end(broken[: len(broken) - after], bool)
    keys = sorted({*itertools.chain(*bad.values()), *([REWARD] if strange else [])})
    hit = [*bad] or strange
    first, more = min(hit), len({*hit}) - 1
    good = max((step for step in steps if step < first), default=None)
    line = f"{' and '.join(keys)} not finite at step {first}"
    if more:
        line += f" and {more} more"
    if after:
        line += f"; finite again for {after} rows"
    line += "; from the first step on" if good is None else f"; the last step before is {good}"
    evidence = {
        "keys": keys,
        "rows": sum(map(bool, broken)),
        "values": next(iter(bad.values()), {}),
        "last_good_step": good,
    }
    state = WARNING if after >= 3 else ALARM
    case = "broken reward" if strange else "overflow" if good is None else "overflow later"
    # The scaler of 16-bit floats tries a scale, sees an infinite gradient, leaves that step out and
    # takes a smaller one.
    if view.config.fp16 and keys == [GRAD_NORM] and streak < 3:
        state, case = NOTE, "scaler"
    at_first = [batch for batch in view.everything if batch.step == first]
    prompts = view.prompts(lambda group: True, at_first)
    return view.verdict(state, line, evidence, case, steps=(first, hit[-1]), prompts=prompts)


def _broken(row: Fields) -> dict[str, str]:
    # Key -> what stands there. NaN is written as null, infinities as words. A reward that is null
    # may be no error: no function applied to that batch.
    wrong = {
        key: row[key]
        for key in ("loss", GRAD_NORM, KL, REWARD)
        if key in row and not is_finite(row[key])
    }
    if wrong.get(REWARD, 0) is None:
        del wrong[REWARD]
    return {key: "nan" if value is None else str(value) for key, value in wrong.items()}


@rule(batches=0)
def zero_gradient(view: ExaminedRun) -> Verdict:
    """A gradient of exactly zero, step after step, although there are groups to learn from."""
    norms = view.numbers(GRAD_NORM)
    if not norms:
        return not_examined(GRAD_NORM, "the metrics have no grad_norm")
    last_step, last = norms[-1]
    zeros = _at_the_end(norms, lambda pair: not pair[1])
    if zeros < 3:
        line = f"the latest gradient has the norm {last:.2g}"
        return view.verdict(OK, line, {"grad_norm": last}, over=())
    over = norms[-zeros][0], last_step
    alive = sum(
        batch.group_count - batch.dead_count for batch in view.batches if batch.step >= over[0]
    )
    evidence = {"rows": zeros}
    line = f"grad_norm is 0 in the latest {zeros} rows"
    if not alive:
        return view.verdict(NOTE, f"{line}: all groups are dead", evidence, steps=over)
    line += f", with {alive} groups to learn from"
    return view.verdict(ALARM, line, evidence, "not in the graph", steps=over)


@rule(batches=0)
def inert_settings(view: ExaminedRun) -> Verdict:
    """Every setting, defaults included, that changed nothing in this run, and those that did."""
    settings, rows, requested = view.config.settings, view.rows, view.config.asked
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    dead = [share for _, share in view.numbers(DEAD)]
    if dead and min(dead) == 1:
        why = "every group was dead in every step, so no setting could do anything"
        return not_examined("live groups", why)
    try:
        inert, live = judge(MeasuredRun(settings, view.numbers), requested)
    except KeyError as error:  # a record that was made elsewhere, or with another TRL
        return not_examined(error.args[0], "the record does not say which settings were effective")
    inert.sort(key=lambda each: not {*requested} & {*each.names})
    lines = [f"{', '.join(each.names)}: inert ({each.why})" for each in inert]
    if live:
        lines.append("live: " + ", ".join(f"{name} ({how})" for name, how in live.items()))
    names = [name for each in inert for name in each.names]
    evidence = {
        "inert": names,
        "inert_requested": [name for name in names if name in requested],
        "live": [*live],
        "rows": len(rows),
    }
    remedies = [f"{', '.join(each.names)}: {each.remedy}" for each in inert if each.remedy]
    return view.verdict(
        # what nobody asked for is no news: the plan says it once
        NOTE if evidence["inert_requested"] else OK,
        "; ".join(lines) or "no setting can be judged",
        evidence,
        "inert" if remedies else "",
        steps=(rows[0].get("step"), rows[-1].get("step")),
        remedies="; ".join(remedies),
    )
