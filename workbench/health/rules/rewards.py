"""What can go wrong with the rewards: a function that cannot pay, one that decides everything, a
total that does not rise.
"""

from __future__ import annotations

import statistics

from workbench.health.summary import FunctionSummary
from workbench.health.trends import percent, share, steps_to_tell
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
from workbench.kinds import Fields
from workbench.rewards.groups import ALL_RIGHT
from workbench.run.metrics import LEARNING_RATE

# Nothing in n completions: at 95 % it happens in fewer than 3 in n. 128 say "in fewer than one in
# 43", with which most groups of 8 would be dead; 1,024 say "one in 341", and then it does not
# matter that other rewards still rise.
PAYS_NOTHING, PAYS_NOTHING_FOR_LONG = 128, 1024
_CLOSE = 1e-9
ENOUGH_TO_TELL, LONG = 16, 60  # batches
# Nats per token: a policy that is nearer to its base than that has hardly moved. It grows with the
# square of the learning rate: a usual rate is at some 1e-4 after 20 steps, and a fifth of it at
# 1e-5.
STILL = 1e-5


@rule()
def reward_cannot_pay(view: ExaminedRun) -> Verdict | list[Verdict]:
    """A weighted function that has given every completion the same score, although it could pay
    more.
    """
    constant = [
        verdict for function in view.functions if (verdict := _constant(view, function)) is not None
    ]
    count = view.total("completions", view.batches)
    line = f"each function has paid differently among {count} completions"
    return constant or view.verdict(OK, line, {"completions": count}, over=())


def _constant(view: ExaminedRun, function: FunctionSummary) -> Verdict | None:
    name, best = function.name, view.config.best.get(function.name)
    batches, history = zip(*view.history(name), strict=True)
    seen = view.total("completions", batches)
    count = seen - sum(own.unscored for own in history)
    about: Fields = {"over": list(batches), "function": name}
    if not count:
        if seen < PAYS_NOTHING:
            return None
        evidence = {"completions": seen, "scored": 0, "weight": function.weight}
        cause = "it returns None for every prompt of this run, or it fails each time (events.jsonl)"
        remedy = "look at a completion in the lab of notebook 02, or take the function out"
        return view.verdict(
            WARNING,
            f"{name} gave none of {seen} completions a score",
            evidence,
            cause,
            remedy,
            **about,
        )
    low = min(own.low for own in history if own.low is not None)
    high = max(own.high for own in history if own.high is not None)
    at_its_best = best is not None and low >= best - _CLOSE
    # the latter: a penalty that never had to strike
    if high - low > _CLOSE or (at_its_best and best <= 0):
        return None
    evidence = {
        "completions": count,
        "score": low,
        "best_score": best,
        "weight": function.weight,
        "at_most_one_in": count // 3,
    }
    if formatted := [batch.formatted for batch in batches if batch.formatted is not None]:
        evidence["in_format"] = sum(formatted) / seen
    if at_its_best:
        line = (
            f"{name} pays its best, {best:g}, for each of {count} completions: nothing left to"
            " learn"
        )
        return view.verdict(
            NOTE, line, evidence, "", "its weight can go to 0, or to another function", **about
        )
    if count < PAYS_NOTHING:
        line = (
            f"too early to say of {name}: {low:g} for all of {count} completions, of {PAYS_NOTHING}"
        )
        return view.verdict(
            SKIPPED, line, {"needs": PAYS_NOTHING, "has": count, "of": "completions"}, **about
        )
    line = f"{name} has paid {low:g} for each of {count} completions"
    if best is None:
        line += "; what it could pay is not known"
        cause = (
            "it expects completions in another shape than it gets, or asks for something that none"
            " of them has"
        )
        remedy = (
            "run `workbench probe`; if it is a penalty that has not had to strike, declare it with"
            " @max_score(0)"
        )
        if view.config.warm_start and name == view.config.right_by:
            cause, remedy = (
                "too hard a task: it can pay, as it did in the warm start",
                view.helps_to_begin.removeprefix("; "),
            )
        return view.verdict(WARNING, line, evidence, cause, remedy, **about)
    evidence["cut"] = cut = view.total("clipped", batches) / seen
    cause = (
        "none has what it asks for: a pattern that stops at a line break, another form of answer,"
        " or too hard a task"
    )
    remedy = (
        "run `workbench probe` on the task: it scores a reference completion and reports what"
        " stands in the way"
    )
    if name == view.config.right_by:
        remedy += view.helps_to_begin
    if cut > 0.5:
        cause = (
            f"{percent(cut)} of the completions were cut at the limit, perhaps before what it"
            " looks for"
        )
        remedy = "raise max_completion_length first, then look again"
    # While the other functions still teach, a rare one may come yet.
    state = WARNING if view.reward_slope.low > 0 and count < PAYS_NOTHING_FOR_LONG else ALARM
    return view.verdict(
        state, f"{line}, and says that it pays up to {best:g}", evidence, cause, remedy, **about
    )


@rule()
def one_function(view: ExaminedRun) -> Verdict:
    """One function that makes nearly all of the advantages, while other weighted functions also
    differ.
    """
    if len(view.functions) < 2:
        return view.verdict(OK, "only one reward function has a weight, so it decides", {}, over=())
    weights = {function.name: function.weight for function in view.functions}
    living = [batch for batch in view.recent if batch.dead_count < batch.group_count]
    batches = [
        batch
        for batch in living
        if {own.name: own.weight for own in batch.functions if own.weight} == weights
    ]
    groups = view.total("group_count", batches)
    alive = groups - view.total("dead_count", batches)
    if alive < 16:
        return early(16, alive, "groups", "groups that are not dead")
    shares, varies = {}, {}
    for name in weights:
        own = [
            (batch, function)
            for batch in batches
            for function in batch.functions
            if function.name == name
        ]
        shares[name] = (
            sum(
                (batch.group_count - batch.dead_count) * (function.share or 0.0)
                for batch, function in own
            )
            / alive
        )
        varies[name] = sum(function.varies for _, function in own) / groups
    decider = max(shares, key=shares.__getitem__)
    others = max(share for name, share in varies.items() if name != decider)
    evidence = {
        "share": shares,
        "groups_within_which_it_differs": varies,
        "weights": weights,
        "groups": alive,
    }
    state, line = OK, f"{decider} makes {percent(shares[decider])} of the advantages"
    # When the others differ in few groups there is little that they could decide: they are learnt,
    # or not reached yet.
    if shares[decider] > 0.95 and others >= 0.25:
        state = NOTE if decider == view.config.right_by else ALARM
        line += f" in {alive} groups, though others differ within {percent(others)} of the groups"
    known = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    cause = f"its weight times its spread is far above the others' (weights: {known})"
    remedy = (
        "lower its weight, or raise the others': `workbench replay` shows what other weights would"
        " decide"
    )
    return view.verdict(state, line, evidence, cause, remedy, over=batches, function=decider)


@rule(batches=ENOUGH_TO_TELL)
def slow_learning(view: ExaminedRun) -> Verdict:
    """A reward that does not rise beyond its noise, and whether that will change."""
    values, trend, asked_rate = view.rewards, view.reward_slope, view.config.learning_rate
    count = len(values)
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
        "reward": values[-1],
    }
    evidence |= {
        "right": right.value,
        "within_group_std": spread,
        "kl": moved,
        "left_to_gain": left,
        "learning_rate": asked_rate,
    }

    def verdict(state: str, line: str, cause: str = "", remedy: str = "") -> Verdict:
        return view.verdict(state, line, evidence, cause, remedy, over=batches)

    changes = f"changes by {trend.low:+.2g} to {trend.high:+.2g} per batch over {count} batches"
    if trend.low > 0:
        return verdict(OK, f"the reward rises: {changes}")
    # Learnt is learnt, also when the last stretch is flat.
    done = share(view.dead_kinds()[ALL_RIGHT], view.total("group_count"))
    # Unless the rewards still have much to give: a task that names no right_by may count anything
    # as right.
    if (right.low > 0.8 or done.low > 0.5) and (left is None or values[-1] > 4 * left):
        return verdict(OK, f"nothing left to learn: {percent(right.value)} are right")
    if trend.high < 0 and -trend.value * count > 0.5 * spread:
        cause = (
            "the policy is driven away from what paid: a learning rate that is too high, or"
            " functions against each other"
        )
        remedy = "go back to a checkpoint from before, with a lower learning rate"
        return verdict(WARNING, f"the reward falls: {changes}", cause, remedy)
    tell = _when_it_tells(view, 0.1 * left) if left else ""
    if moved is not None and moved < STILL:
        rates = [value for _, value in view.numbers(LEARNING_RATE)]
        if rates and rates[-1] < 0.5 * max(rates[-1], asked_rate or 0.0) and rates[-1] >= rates[0]:
            return verdict(NOTE, f"the learning rate is still rising; the reward {changes}")
        rate = "" if asked_rate is None else f" (learning_rate = {asked_rate:g})"
        line = (
            f"the reward {changes}, and KL is {moved:.1g} nats per token: the policy has hardly"
            f" moved{tell}"
        )
        remedy = (
            "raise the learning rate tenfold (5e-6 to 5e-5 is usual with LoRA), unless groups are"
            " dead"
        )
        return verdict(
            WARNING, line, f"steps that are too small{rate}, or groups that teach nothing", remedy
        )
    # Over a long stretch the bound itself is small: even at its best this run gets nowhere.
    if count >= LONG and left and trend.high * count < 0.1 * left:
        line = (
            f"the reward {changes}: at best {trend.high * count:.2g} of {left:.2g} that is left to"
            " gain"
        )
        cause = "steps that are too small, prompts that are too hard, or groups that teach nothing"
        return verdict(
            WARNING,
            line,
            cause,
            "look at the groups first; then a higher learning rate or easier prompts",
        )
    return verdict(NOTE, f"cannot be told from noise yet: {changes}{tell}")


def _when_it_tells(view: ExaminedRun, rise: float) -> str:
    enough, count, steps = (
        steps_to_tell(view.rewards, rise),
        len(view.rewards),
        view.config.total_steps,
    )
    if enough is None:
        return ""
    when = "would have shown by now" if enough <= count else f"shows after about {enough} batches"
    if steps is not None and enough > max(count, steps):
        when += f", more than this run's {steps} steps"
    return f"; a rise of {rise:.2g} in all {when}"


def _left_to_gain(view: ExaminedRun) -> float | None:
    # What a good completion could still earn: by what the functions declare, else by the best that
    # was seen.
    best = 0.0
    for function in view.functions:
        most = view.config.best.get(function.name)
        if most is None:
            most = max(
                (own.high for _, own in view.history(function.name) if own.high is not None),
                default=None,
            )
        if most is None:
            return None
        best += function.weight * most
    return max(0.0, best - statistics.fmean(view.rewards[-10:]))
