"""What can go wrong with the reward functions: one that cannot pay, one that decides everything."""

from __future__ import annotations

from typing import Any

from workbench.health.summary import FunctionSummary
from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, WARNING, RunView, Verdict, early, percent, rule

# Nothing in n completions: at 95 % it happens in fewer than 3 in n. 128 say "in fewer than one in 43", with which most
# groups of 8 would be dead; 1,024 say "one in 341", and then it does not matter that other rewards still rise.
PAYS_NOTHING, PAYS_NOTHING_FOR_LONG = 128, 1024
_CLOSE = 1e-9

WHY = {  # (cause, remedy)
    "silent": (
        "it returns None for every prompt of this run, or it fails each time (events.jsonl)",
        "look at a completion in the lab of notebook 02, or take the function out",
    ),
    "at its best": ("", "its weight can go to 0, or to another function"),
    "maximum unknown": (
        "it reads the completion in another shape than it gets it, or asks for something that none of them has",
        "run `workbench probe`; if it is a penalty that has not had to strike, declare it with @max_score(0)",
    ),
    "cut": (
        "{} of the completions were cut at the limit, perhaps before what it looks for",
        "raise max_completion_length first, then look again",
    ),
    "never met": (
        "no completion has what it asks for: a pattern that stops at a line break, an answer of another form, or a task "
        "that this policy cannot do at all",
        "run `workbench probe` on the task: it scores a reference completion and reports what stands in the way",
    ),
    "dominates": (
        "its weight times its spread is far above the others' (weights: {})",
        "lower its weight, or raise the others': `workbench replay` shows what other weights would decide",
    ),
}


@rule()
def reward_cannot_pay(view: RunView) -> Verdict | list[Verdict]:
    """A function with a weight that has given every completion the same, although it has better to give."""
    found = [verdict for function in view.functions if (verdict := _constant(view, function)) is not None]
    count = view.total("completions", view.batches)
    line = f"each function has paid differently among {count} completions"
    return found or view.verdict(OK, line, {"completions": count}, over=())


def _constant(view: RunView, function: FunctionSummary) -> Verdict | None:
    name, history = function.name, view.by_function[function.name]
    batches = [batch for batch, _ in history]
    seen = view.total("completions", batches)
    count = seen - sum(own.unscored for _, own in history)
    more: dict[str, Any] = {"over": batches, "function": name}
    if not count:
        if seen < PAYS_NOTHING:
            return None
        evidence = {"completions": seen, "scored": 0, "weight": function.weight}
        return view.verdict(WARNING, f"{name} gave none of {seen} completions a score", evidence, WHY["silent"], **more)
    low = min(own.low for _, own in history if own.low is not None)
    high = max(own.high for _, own in history if own.high is not None)
    if high - low > _CLOSE:
        return None
    best = view.config.best.get(name)
    evidence = {
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
        line = f"{name} pays its best, {best:g}, for each of {count} completions: nothing left to learn"
        return view.verdict(NOTE, line, evidence, WHY["at its best"], **more)
    if count < PAYS_NOTHING:
        line = f"too early to say of {name}: {low:g} for all of {count} completions, of {PAYS_NOTHING}"
        return view.verdict(SKIPPED, line, {"needs": PAYS_NOTHING, "has": count, "of": "completions"}, **more)
    line = f"{name} has paid {low:g} for each of {count} completions"
    if best is None:
        line += "; what it could pay is not known"
        return view.verdict(WARNING, line, evidence, WHY["maximum unknown"], **more)
    # While the other functions still teach, a rare one may come yet.
    patient = view.rises and count < PAYS_NOTHING_FOR_LONG
    evidence["cut"] = view.total("clipped", batches) / seen
    cause, remedy = WHY["cut" if evidence["cut"] > 0.5 else "never met"]
    why = (cause.format(percent(evidence["cut"])), remedy)
    return view.verdict(WARNING if patient else ALARM, f"{line}, and says that it pays up to {best:g}", evidence, why, **more)


@rule()
def one_function(view: RunView) -> Verdict:
    """One function that makes nearly all of the advantages, while others that have a weight differ too."""
    if len(view.functions) < 2:
        return view.verdict(OK, "one reward function has a weight, and decides", over=())
    weights = {function.name: function.weight for function in view.functions}
    batches = [
        batch
        for batch in view.recent
        if {own.name: own.weight for own in batch.functions if own.weight} == weights and batch.dead_count < batch.group_count
    ]
    groups = view.total("group_count", batches)
    alive = groups - view.total("dead_count", batches)
    if alive < 16:
        return early(16, alive, "groups", "groups that are not dead")
    shares, varies = {}, {}
    for each in weights:
        own = [(batch, function) for batch in batches if (function := batch.function(each)) is not None]
        shares[each] = sum((b.group_count - b.dead_count) * (function.share or 0.0) for b, function in own) / alive
        varies[each] = sum(function.varies for _, function in own) / groups
    decider = max(shares, key=lambda each: shares[each])
    others = max(share for each, share in varies.items() if each != decider)
    evidence = {"share": shares, "groups_within_which_it_differs": varies, "weights": weights, "groups": alive}
    line = f"{decider} makes {percent(shares[decider])} of the advantages"
    # When the others differ in few groups there is little that they could decide: they are learnt, or not reached yet.
    if shares[decider] <= 0.95 or others < 0.25:
        return view.verdict(OK, line, evidence, over=batches, function=decider)
    cause, remedy = WHY["dominates"]
    return view.verdict(
        NOTE if decider == view.config.right_by else ALARM,
        f"{line} in {alive} groups, though others differ within {percent(others)} of the groups",
        evidence,
        (cause.format(", ".join(f"{name} {weight:g}" for name, weight in weights.items())), remedy),
        batches,
        function=decider,
    )
