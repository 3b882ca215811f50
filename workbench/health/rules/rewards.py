"""What can go wrong with the reward functions: one that cannot pay, one that decides everything."""

from __future__ import annotations

from typing import Any

from workbench.health.summary import FunctionSummary
from workbench.health.verdicts import (
    ALARM,
    NOTE,
    OK,
    SKIPPED,
    WARNING,
    Case,
    Verdict,
    percent,
    steps_of,
)

# Nothing in n completions: at 95 % it happens in fewer than 3 in n. 128 say "in fewer than one in 43", with which most
# groups of 8 would be dead; 1,024 say "one in 341", and then it does not matter that other rewards still rise.
PAYS_NOTHING, PAYS_NOTHING_FOR_LONG = 128, 1024
_CLOSE = 1e-9


def reward_cannot_pay(case: Case) -> Verdict | list[Verdict]:
    """A function with a weight that has given every completion the same, although it has better to give."""
    name = "reward_cannot_pay"
    if early := case.too_few(name):
        return early
    found = [verdict for function in case.functions if (verdict := _constant(name, case, function)) is not None]
    if found:
        return found
    count = sum(batch.completions for batch in case.batches)
    return Verdict(name, OK, f"each function has paid differently among {count} completions", {"completions": count})


def _constant(name: str, case: Case, function: FunctionSummary) -> Verdict | None:
    history = case.by_function[function.name]
    batches = [batch for batch, _ in history]
    count = sum(batch.completions - own.unscored for batch, own in history)
    seen = sum(batch.completions for batch in batches)
    rest = {"function": function.name, **steps_of(batches)}
    if not count:
        if seen < PAYS_NOTHING:
            return None
        return Verdict(
            name,
            WARNING,
            f"{function.name} gave none of {seen} completions a score",
            {"completions": seen, "scored": 0, "weight": function.weight},
            cause="it returns None for every prompt of this run, or it fails each time (events.jsonl)",
            remedy="look at a completion in the lab of notebook 02, or take the function out",
            **rest,
        )
    low = min(own.low for _, own in history if own.low is not None)
    high = max(own.high for _, own in history if own.high is not None)
    if high - low > _CLOSE:
        return None
    best = case.facts.best.get(function.name)
    evidence: dict[str, Any] = {
        "completions": count,
        "score": low,
        "best_score": best,
        "weight": function.weight,
        "at_most_one_in": count // 3,
    }
    if formatted := [batch.formatted for batch in batches if batch.formatted is not None]:
        evidence["in_format"] = sum(formatted) / seen
    if best is not None and low >= best - _CLOSE:
        if best <= 0:
            return None  # a penalty that never had to strike
        return Verdict(
            name,
            NOTE,
            f"{function.name} pays its best, {best:g}, for each of {count} completions: nothing left to learn",
            evidence,
            remedy="its weight can go to 0, or to another function",
            **rest,
        )
    if count < PAYS_NOTHING:
        return Verdict(
            name,
            SKIPPED,
            f"too early to say of {function.name}: {low:g} for all of {count} completions, of {PAYS_NOTHING}",
            {"needs": PAYS_NOTHING, "has": count, "of": "completions"},
            **rest,
        )
    words = f"{function.name} has paid {low:g} for each of {count} completions"
    if best is None:
        return Verdict(
            name,
            WARNING,
            f"{words}; what it could pay is not known",
            evidence,
            cause="it reads the completion in another shape than it gets it, or asks for something that none of them has",
            remedy="run `workbench probe`; if it is a penalty that has not had to strike, say so with @max_score(0)",
            **rest,
        )
    # While the other functions still teach, a rare one may come yet.
    patient = case.rises and count < PAYS_NOTHING_FOR_LONG
    cut = sum(batch.clipped for batch in batches) / seen
    evidence["cut"] = cut
    if cut > 0.5:
        cause = f"{percent(cut)} of the completions were cut at the limit, perhaps before what it looks for"
        remedy = "raise max_completion_length first, then look again"
    else:
        cause = (
            "no completion has what it asks for: a pattern that stops at a line break, an answer of another form, or a task "
            "that this policy cannot do at all"
        )
        remedy = "run `workbench probe` on the task: it scores an honest completion and says what stands in the way"
    return Verdict(
        name,
        WARNING if patient else ALARM,
        f"{words}, and says that it pays up to {best:g}",
        evidence,
        cause=cause,
        remedy=remedy,
        **rest,
    )


def one_function(case: Case) -> Verdict:
    """One function that makes nearly all of the advantages, while others that have a weight differ too."""
    name = "one_function"
    if early := case.too_few(name):
        return early
    if len(case.functions) < 2:
        return Verdict(name, OK, "one reward function has a weight, and decides")
    weights = {function.name: function.weight for function in case.functions}
    batches = [
        batch
        for batch in case.recent
        if {own.name: own.weight for own in batch.functions if own.weight} == weights
        and batch.dead_count < batch.group_count
    ]
    alive = sum(batch.group_count - batch.dead_count for batch in batches)
    if alive < 16:
        return Verdict(
            name,
            SKIPPED,
            f"too early to say: {alive} of 16 groups that are not dead",
            {"needs": 16, "has": alive, "of": "groups"},
        )
    groups = sum(batch.group_count for batch in batches)
    shares, varies = {}, {}
    for each in weights:
        own = [(batch, function) for batch in batches if (function := batch.function(each)) is not None]
        parts = [(batch.group_count - batch.dead_count) * (function.share or 0.0) for batch, function in own]
        shares[each] = sum(parts) / alive
        varies[each] = sum(function.varies for _, function in own) / groups
    decider = max(shares, key=lambda each: shares[each])
    others = max(share for each, share in varies.items() if each != decider)
    evidence = {"share": shares, "groups_within_which_it_differs": varies, "weights": weights, "groups": alive}
    # When the others differ in few groups there is little that they could decide: they are learnt, or not reached yet.
    if shares[decider] <= 0.95 or others < 0.25:
        return Verdict(
            name,
            OK,
            f"{decider} makes {percent(shares[decider])} of the advantages",
            evidence,
            function=decider,
            **steps_of(batches),
        )
    wanted = decider == case.facts.right_by
    return Verdict(
        name,
        NOTE if wanted else ALARM,
        f"{decider} makes {percent(shares[decider])} of the advantages in {alive} groups, though others differ within "
        f"{percent(others)} of the groups",
        evidence,
        function=decider,
        cause=f"its weight times its spread is far above the others' (weights: {_listed(weights)})",
        remedy="lower its weight, or raise the others': `workbench replay` shows what other weights would decide",
        **steps_of(batches),
    )


def _listed(weights: dict[str, float]) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
