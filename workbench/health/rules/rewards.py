"""What can go wrong with the rewards: a function that cannot pay, one that decides everything, a
total that does not rise.
"""

from __future__ import annotations

import functools
import math
import statistics

from workbench.base.kinds import Fields
from workbench.health.summary import FunctionSummary
from workbench.health.trends import of_groups, percent, share
from workbench.health.verdicts import (
    ALARM,
    NOTE,
    OK,
    SKIPPED,
    WARNING,
    ExaminedRun,
    Verdict,
    counts,
    early,
    rule,
)
from workbench.rewards.groups import ALL_RIGHT
from workbench.run.metrics import LEARNING_RATE

# Nothing in n completions: at 95 % it happens in fewer than 3 in n. 128 say "in fewer than one in
# 43", with which most groups of 8 would be dead; 1,024 say "one in 341", and then it does not
# matter that other rewards still rise.
PAYS_NOTHING, PAYS_NOTHING_FOR_LONG = 128, 1024
_CLOSE = 1e-9
# Groups without a difference inside. A function of two scores needs more: a policy that is sure of
# each prompt, right or wrong, gives it as much.
ALIKE, ALIKE_IN_TWO = 8, 48
RARELY = 0.1  # of the groups: a function that differs within fewer adds next to nothing
ENOUGH_TO_TELL, LONG = 16, 60  # batches
# Nats per token: a policy that is nearer to its base than that has hardly moved. It grows with the
# square of the learning rate: a usual rate is at some 1e-4 after 20 steps, and a fifth of it at
# 1e-5.
STILL = 1e-5


@rule(groups=8)
def reward_cannot_pay(view: ExaminedRun) -> Verdict | list[Verdict]:
    """A weighted function that has given every completion the same score, although it could pay
    more, or all completions of each group. The evidence has `view.differs()`.
    """
    count = view.total("completions", view.batches)
    line = f"each function has paid differently among {count} completions"
    fine = view.verdict(OK, line, {"completions": count}, over=())
    verdicts = [*filter(None, (_constant(view, function) for function in view.functions))] or [fine]
    for verdict in verdicts:
        verdict.evidence["differs_within"] = view.differs()
    return verdicts


def _constant(view: ExaminedRun, function: FunctionSummary) -> Verdict | None:
    name, weight, best = function.name, function.weight, view.config.best.get(function.name)
    history = view.history(name)
    batches = [batch for batch, _ in history]
    seen = view.total("completions", batches)
    count = seen - sum(own.unscored for _, own in history)
    verdict = functools.partial(view.verdict, over=batches, function=name)

    def early(has: int, paid: str = "no score for any of") -> Verdict:
        needs: Fields = {"needs": PAYS_NOTHING, "has": has, "of": "completions"}
        line = f"too early to judge {name}: {paid} {has} completions; it takes {PAYS_NOTHING}"
        return verdict(SKIPPED, line, needs)

    if not count:
        evidence: Fields = {"completions": seen, "scored": 0, "weight": weight}
        line = f"{name} gave none of {seen} completions a score"
        return verdict(WARNING, line, evidence, "silent") if seen >= PAYS_NOTHING else early(seen)
    # No bound is known where every batch has an infinite score: then they are not all the same.
    low = min((own.low for _, own in history if own.low is not None), default=-math.inf)
    high = max((own.high for _, own in history if own.high is not None), default=math.inf)
    at_its_best = best is not None and low >= best - _CLOSE
    unpaid = f", and {seen - count} got no score" if seen > count else ""
    if high - low > _CLOSE:
        return _equal_in_groups(view, function, low, high)
    if at_its_best and best <= 0:  # a penalty that never had to strike
        return None
    evidence = {
        "completions": count,
        "score": low,
        "best_score": best,
        "weight": weight,
    }
    if at_its_best:
        line = f"{name} pays its best, {best:g}, for each of {count} completions{unpaid}"
        return verdict(NOTE, f"{line}: nothing left to learn", evidence, "at its best")
    if count < PAYS_NOTHING:
        return early(count, f"{low:g} for all of")
    line = f"{name} has paid {low:g} for each of {count} completions{unpaid}"
    decides = name == view.config.right_by
    if best is None:
        line += "; what it could pay is not known"
        case = "too hard" if view.config.warm_start and decides else "unknown best"
        begin = view.helps_to_begin.removeprefix("; ")
        return verdict(WARNING, line, evidence, case, begin=begin)
    evidence["cut"] = cut = view.total("clipped", batches) / seen
    case = "cut before it pays" if cut > 0.5 else "never right" if decides else "never pays"
    # While the other functions still teach, a rare one may come yet.
    state = WARNING if view.reward_slope.low > 0 and count < PAYS_NOTHING_FOR_LONG else ALARM
    line += f", and says that it pays up to {best:g}"
    return verdict(state, line, evidence, case, share=percent(cut))


def _equal_in_groups(
    view: ExaminedRun, function: FunctionSummary, low: float, high: float
) -> Verdict | None:
    # Completions of one text score alike, whatever is read; where most groups are all right,
    # there is nothing left that could differ.
    name, differs = function.name, view.differs()
    history, own = view.history(name), differs[name]
    groups = sum(each.groups for batch, each in history if batch.distinct_in_groups > 0.5)
    ends = {end for _, each in history for end in (each.low, each.high)}
    levels = max(len(ends), *(each.levels for _, each in history))
    done = 2 * view.dead_kinds()[ALL_RIGHT] > view.total("group_count")
    early = levels <= 2 and groups < ALIKE_IN_TWO
    if done or groups < ALIKE or (early and own[0]):
        return None
    if early:
        line = f"too early to judge {name}: it differs within {of_groups(*own)}"
        needs: Fields = {"needs": ALIKE_IN_TWO, "has": groups, "of": "groups"}
        takes = f"of its two scores it takes {ALIKE_IN_TWO}"
        return view.verdict(SKIPPED, f"{line}; {takes}", needs, over=view.batches, function=name)
    line = f"{name} differs within {of_groups(*own)}"
    if own[0]:
        # One that mostly pays its best, as a penalty does that seldom strikes, is learnt.
        means = [each.mean for _, each in history if each.mean is not None] or [high]
        learns = high - statistics.fmean(means) > 0.1 * (high - low)
        most = max(share(*each).low for each in differs.values())
        if not learns or most <= 0.5 or share(*own).high >= RARELY:
            return None
        case = "rarely differs"
        line += ", others within most: it adds next to nothing"
    else:
        between = all(each.low == each.high for _, each in history)
        case = "between batches" if between else "between prompts"
        line += f": it adds 0 % to the advantages, as its score differs only {case}"
    state = NOTE if own[0] else WARNING
    return view.verdict(state, line, {}, case, over=view.batches, function=name)


@rule()
def one_function(view: ExaminedRun) -> Verdict:
    """One function that makes nearly all of the advantages, while other weighted functions also
    differ.
    """
    weights = {function.name: function.weight for function in view.functions}
    if len(weights) < 2:
        return view.verdict(OK, "only one reward function has a weight, so it decides", {}, over=())
    batches = [
        batch
        for batch in view.recent
        if batch.dead_count < batch.group_count
        and {own.name: own.weight for own in batch.functions if own.weight} == weights
    ]
    groups = view.total("group_count", batches)
    alive = groups - view.total("dead_count", batches)
    if alive < 16:
        return early(16, alive, "groups", "groups that are not dead")
    shares = {
        name: sum(
            (batch.group_count - batch.dead_count) * (own.share or 0.0)
            for batch, own in view.history(name, batches)
        )
        / alive
        for name in weights
    }
    decider = max(shares, key=shares.__getitem__)
    differs = view.differs(batches).items()
    others = max(count / groups for name, (count, _) in differs if name != decider)
    evidence = {"share": shares, "weights": weights, "groups": alive}
    state, line = OK, f"{decider} makes {percent(shares[decider])} of the advantages"
    # When the others differ in few groups there is little that they could decide: they are learnt,
    # or not reached yet.
    if shares[decider] > 0.95 and others >= 0.25:
        state = NOTE if decider == view.config.right_by else ALARM
        line += f" in {alive} groups, though others differ within {percent(others)} of the groups"
    known = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    return view.verdict(
        state, line, evidence, "one decides", over=batches, function=decider, known=known
    )


@rule(batches=ENOUGH_TO_TELL)
def slow_learning(view: ExaminedRun) -> Verdict:
    """A reward that does not rise beyond its noise, and whether that will change."""
    values, trend, asked_rate = view.rewards, view.reward_slope, view.config.learning_rate
    count, last = len(values), values[-1]
    batches = view.batches[-count:]
    right = share(*counts(batches[-10:], "right"))
    spread = statistics.fmean(batch.group_std or 0.0 for batch in batches)
    moved = statistics.median(value for _, value in view.kl[-5:]) if view.kl else None
    left = _left_to_gain(view)
    evidence: Fields = {
        "slope": trend.value,
        "slope_low": trend.low,
        "slope_high": trend.high,
        "batches": count,
        "reward": last,
        "right": right.value,
        "kl": moved,
        "learning_rate": asked_rate,
    }
    verdict = functools.partial(view.verdict, evidence=evidence, over=batches)
    changes = f"changes by {trend.low:+.2g} to {trend.high:+.2g} per batch over {count} batches"
    if trend.low > 0:
        return verdict(OK, f"the reward rises: {changes}")
    # Learnt is learnt, also when the last stretch is flat.
    done = share(view.dead_kinds()[ALL_RIGHT], view.total("group_count"))
    # Unless the rewards still have much to give: a task that names no right_by may count anything
    # as right.
    if (right.low > 0.8 or done.low > 0.5) and (left is None or last > 4 * left):
        return verdict(OK, f"nothing left to learn: {percent(right.value)} are right")
    if trend.high < 0 and -trend.value * count > 0.5 * spread:
        return verdict(WARNING, f"the reward falls: {changes}", case="driven away")
    if moved is not None and moved < STILL:
        rates = [value for _, value in view.numbers(LEARNING_RATE)]
        if rates and rates[-1] < 0.5 * (asked_rate or 0.0) and rates[-1] >= rates[0]:
            return verdict(NOTE, f"the learning rate is still rising; the reward {changes}")
        line = (
            f"the reward {changes}, and KL is {moved:.1g} nats per token: the policy has hardly"
            f" moved"
        )
        rate = "" if asked_rate is None else f" (learning_rate = {asked_rate:g})"
        return verdict(WARNING, line, case="hardly moved", rate=rate)
    # Over a long stretch the bound itself is small: even at its best this run gets nowhere.
    if count >= LONG and left and trend.high * count < 0.1 * left:
        line = (
            f"the reward {changes}: at best {trend.high * count:.2g} of {left:.2g} that is left to"
            " gain"
        )
        return verdict(WARNING, line, case="nowhere")
    return verdict(NOTE, f"cannot be told from noise yet: {changes}")


def _left_to_gain(view: ExaminedRun) -> float | None:
    # What a good completion could still earn: by what the functions declare, else by the best that
    # was seen.
    best = 0.0
    for function in view.functions:
        most = view.config.best.get(function.name)
        if most is None:
            seen = (own.high for _, own in view.history(function.name) if own.high is not None)
            if (most := max(seen, default=None)) is None:
                return None
        best += function.weight * most
    return max(0.0, best - statistics.fmean(view.rewards[-10:]))
