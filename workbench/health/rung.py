"""Which rung now: demonstrations, a warm start, expert iteration, GRPO, or stop.

From how often a policy is right, prompt by prompt. GRPO learns from a group that holds right and
wrong completions; a warm start and expert iteration from right ones that sampling finds; written
demonstrations need none. The rung is the first, from GRPO down, that the rate pays for.
`benchmarks/rungs.py` tries all of them on made policies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.base.errors import DataError
from workbench.data.difficulty import Solved, expected_dead_share
from workbench.health.trends import Z_95, percent, share, two_digits

RIGHT = 32  # completions that a warm start trains on
# What `benchmarks/rungs.py` tried on made policies agrees with these, which were set in its view.
ALIVE = 0.10  # of the groups: with fewer, nearly all that GRPO samples teaches nothing
LEARNT = 0.95  # right: little is left to gain
_SETS = {
    "demonstrations": "warm_start: {samples: 256, epochs: 8, source: reference}",
    "warm start": f"warm_start: {RIGHT}",
    "expert iteration": f"warm_start: {{samples: {RIGHT}, rounds: 3}}",
}


class Rung(NamedTuple):
    """What a policy should be trained by next; prints as a line or two."""

    name: str
    words: str
    alive: float  # share of groups that hold right and wrong completions
    sets: str  # what goes into the recipe; empty: nothing

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


def which_rung(
    measured: Any,
    *,
    num_generations: int = 8,
    budget: int = 32_000,
    ideal: bool = False,
    warmed: bool = False,
    turns: bool = False,
) -> Rung:
    """What a policy with these pass rates should be trained by next, and why.

    >>> rows, file = wb.load_task("arithmetic").rows, "tasks/mine/difficulty.jsonl"
    >>> profile = wb.profile_difficulty("tiny", rows, file, prompts=4)
    >>> wb.inspection.which_rung(profile).name
    'GRPO'

    Groups are counted as dead by rightness alone: a reward in small steps keeps more of them alive.

    Args:
        measured: a profile of notebook 01; an evaluation, for its trained policy; or a `Solved` for
            each prompt.
        num_generations: completions of a group in GRPO.
        budget: completions that a warm start may sample, at most.
        ideal: the task writes reference completions (`Task.ideal`).
        warmed: the policy comes from a warm start, so the next one is a further round.
        turns: its rollouts have several turns, for which there is no warm start; a profile says so
            itself.

    Raises:
        DataError: if nothing was measured, or `measured` is something else.
    """
    solved = _solved(measured)
    if num_generations < 2:
        raise DataError(
            f"num_generations = {num_generations}",
            rule="a group compares two completions or more",
            remedy="give what GRPO will train with, such as 8",
        )
    right, of = sum(one.right for one in solved), sum(one.of for one in solved)
    rate = share(right, of, Z_95)
    alive = 1 - expected_dead_share(solved, num_generations)
    name, why = _chosen(solved, rate.value, alive, budget, warmed=warmed)
    sets = _SETS.get(name, "")
    if sets and (turns or "played" in getattr(measured, "settings", {})):
        name, sets = "stop", ""
        why += "; rollouts of several turns have no warm start: take easier ones"
    shares = (
        f"{100 * own:.1f}" if own >= 0.0005 or not own else f"{100 * own:.1g}" for own in rate
    )
    words = "next rung: {}; of {:,} completions {} % ({} to {}) are right: {}"
    words = words.format(name, of, *shares, why)
    if name == "demonstrations" and not ideal:
        sets += ", and in the task Task(..., ideal=lambda row: ...)"
    if sets:
        words += f"\nin the recipe: {sets}"
    return Rung(name, words, alive, sets)


def _solved(measured: Any) -> list[Solved]:
    solved = getattr(measured, "solved", measured)
    try:
        each = solved.values() if isinstance(solved, dict) else solved
        solved = [one for one in each if one.of]
    except (AttributeError, TypeError):
        solved = []
    if not solved:
        raise DataError(
            f"a {type(measured).__name__}: no completions",
            rule="the rung follows from a profile, an evaluation, or a `Solved` for each prompt",
            remedy="measure it: wb.profile_difficulty in notebook 01, or wb.evaluate",
        )
    return solved


def _chosen(
    solved: list[Solved], rate: float, alive: float, budget: int, *, warmed: bool
) -> tuple[str, str]:
    # (the rung, why)
    ever = [one for one in solved if one.right]
    few = f"only {percent(alive)} of GRPO's groups would hold right and wrong ones"
    if rate >= LEARNT:
        return "stop", "little is left to learn from these prompts; take harder ones, or export"
    if not ever:
        return "demonstrations", "sampling finds nothing to learn from"
    if len(ever) == 1 < len(solved):
        return "demonstrations", "all of them on one prompt, which is no skill to build on yet"
    if alive >= ALIVE:
        return "GRPO", f"{percent(alive)} of groups would hold right and wrong ones"
    of_learnt = sum(one.right for one in ever if one.right == one.of > 2)
    if 2 * of_learnt > sum(one.right for one in ever):
        never = len(solved) - len(ever)
        why = f"{few}: of {len(solved)} prompts {never} were never solved, most others always"
        return "stop", f"{why}; take prompts between, or write answers for the first"
    if RIGHT / rate > budget:
        tries = f"{RIGHT} right ones would take about {two_digits(RIGHT / rate)} tries"
        return "demonstrations", f"{tries}, and at most {budget:,} may be sampled"
    if warmed:
        return "expert iteration", f"{few}, after a warm start: the next round finds more, sooner"
    return "warm start", f"{few}, and it trains on the rare right ones"
