"""What can go wrong with the groups: dead ones, identical texts, and the compute that they cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from workbench.health.summary import StepSummary
from workbench.health.trends import share
from workbench.health.verdicts import ALARM, MOST_PROMPTS, NOTE, OK, WARNING, RunView, Verdict, is_number, percent, rule
from workbench.rewards.groups import ALL_RIGHT, ALL_WRONG, IDENTICAL, NOT_SCORED, SAME_SCORE
from workbench.run.metrics import STEP_S

WHY = {  # (cause, remedy)
    ALL_WRONG: (
        "the policy solves none of these prompts, or the reward pays for nothing that it writes",
        "see first whether the rewards can pay at all (`workbench probe`, notebook 02); then take easier prompts (notebook 01 "
        "measures difficulty) or more completions per prompt",
    ),
    SAME_SCORE: (
        "the functions pay the same for different completions",
        "look at one of these groups in notebook 04, and give the reward finer steps",
    ),
    IDENTICAL: (
        "the policy writes the same text each time",
        "raise the temperature; more completions do not help when all are the same",
    ),
    NOT_SCORED: (
        "no function gave any of their completions a score",
        "see events.jsonl for functions that fail, or score these prompts too",
    ),
    ALL_RIGHT: ("", "stop here, or go on with harder prompts"),
    "cold": ("temperature = {:g} leaves sampling no choice", "raise the temperature (1.0 is TRL's default)"),
    "sure": (
        "the policy has become sure of one text: a reward that it exploits, a learning rate that is too high, "
        "or a base that was sure from the start",
        "go back to a checkpoint from before; then a lower learning rate, a higher beta, or another reward",
    ),
    "wasted": (
        "the completions of those groups all score the same",
        "leave such prompts out (notebook 01 measures difficulty), or take fewer of them",
    ),
}


@rule()
def dead_groups(view: RunView) -> Verdict:
    """Groups that teach nothing, and not because they are all right."""
    groups, size = view.total("group_count"), view.recent[-1].group_size
    kinds = view.dead_kinds()
    done = kinds.pop(ALL_RIGHT)
    found, learnt = share(sum(kinds.values()), groups), share(done, groups)
    evidence = {"groups": groups, "share": found.value, "at_least": found.low, ALL_RIGHT: done, **kinds}
    if found.low > 0.25:
        worst = max(kinds, key=lambda kind: kinds[kind])
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if count)
        return view.verdict(
            ALARM if found.low > 0.5 else WARNING,
            f"{percent(found.value)} of the latest {groups} groups teach nothing: {words}",
            evidence,
            WHY[worst],
            prompts=view.prompts(lambda group: group.dead == worst and group.right < size),
        )
    if learnt.low > 0.5:
        line = f"{percent(learnt.value)} of the latest {groups} groups are all right: nothing left to learn there"
        prompts = view.prompts(lambda group: group.dead and group.right == size)
        return view.verdict(NOTE, line, evidence, WHY[ALL_RIGHT], prompts=prompts)
    return view.verdict(OK, f"{percent(found.value)} of the latest {groups} groups are dead without being all right", evidence)


@rule()
def collapse(view: RunView) -> Verdict:
    """The policy writes one text over and over, within groups or over different prompts, and it is not the answer."""
    recent, temperature = view.recent, view.config.temperature
    groups = view.total("group_count")
    same = share(sum(batch.dead[IDENTICAL] - batch.identical_right for batch in recent), groups)
    distinct = statistics.fmean(batch.distinct_in_groups for batch in recent)
    # One text for different prompts: only batches of several prompts can show it.
    several = [batch for batch in recent if batch.group_count > 1]
    written = view.total("commonest_count", several)
    one = share(written, view.total("completions", several))
    one_right = view.total("commonest_right", several) / max(written, 1)
    evidence = {
        "groups": groups,
        "identical_and_not_right": same.value,
        "at_least": same.low,
        "distinct_in_groups": distinct,
        "distinct_in_batch": view.total("distinct") / view.total("completions"),
        "commonest": recent[-1].commonest,
        "commonest_share": one.value,
        "commonest_right": one_right,
        "temperature": temperature,
    }
    everywhere = one.low > 0.8 and one_right < 0.5
    if same.low <= 0.2 and not everywhere:
        return view.verdict(OK, f"{percent(distinct)} of a group's texts are distinct", evidence)
    words = f"in {percent(same.value)} of the latest {groups} groups all texts are the same and not right"
    if everywhere:
        words = f"{percent(one.value)} of the latest completions are one text, whatever the prompt, and not right"
    cause, remedy = WHY["cold" if temperature is not None and temperature < 0.5 else "sure"]
    return view.verdict(
        ALARM if everywhere or same.low > 0.5 else WARNING,
        f"{words}; the commonest begins {recent[-1].commonest[:40]!r}",
        evidence,
        (cause.format(temperature), remedy),
        prompts=view.prompts(lambda group: group.dead == IDENTICAL and not group.right),
    )


@rule()
def wasted(view: RunView) -> Verdict:
    """The share of the compute that went into dead groups, in minutes, and the prompts that are dead each time."""
    batches = view.everything
    groups, kinds = view.total("group_count", batches), view.dead_kinds(batches)
    dead = sum(kinds.values())
    times = [float(row[STEP_S]) for row in view.all_rows if is_number(row.get(STEP_S))]
    steps = batches[-1].step - batches[0].step + 1
    minutes = statistics.fmean(times) * steps / 60 if times else None
    always, visits = _always_dead(batches)
    evidence: dict[str, Any] = {
        "groups": groups,
        "share": dead / groups,
        "by_kind": {kind: count for kind, count in kinds.items() if count},
        "always_dead_prompts": len(always),
        "prompts_seen_again": visits,
    }
    words = f"{percent(dead / groups)} of the completions were in dead groups"
    if minutes is None:
        evidence["missing"] = STEP_S
        words += f" (minutes unknown: the metrics have no {STEP_S})"
    else:
        evidence["minutes"] = minutes * dead / groups
        evidence["minutes_by_kind"] = {kind: minutes * count / groups for kind, count in kinds.items() if count}
        words += f": {evidence['minutes']:.2g} of {minutes:.2g} minutes bought no gradient"
    if parts := [f"{kind} {percent(count / groups)}" for kind, count in kinds.most_common() if count]:
        words += f" ({', '.join(parts)})"
    if always:
        words += f"; {len(always)} of {visits} prompts that came again were dead each time"
    unlearnt = share(dead - kinds[ALL_RIGHT], groups)
    state = WARNING if unlearnt.low > 0.5 else NOTE if dead / groups > 0.25 else OK
    why = ("", "") if state == OK else WHY["wasted"]
    return view.verdict(state, words, evidence, why, batches, prompts=tuple(always[-MOST_PROMPTS:]))


def _always_dead(batches: Sequence[StepSummary]) -> tuple[list[str], int]:
    # (prompts that came more than once and taught nothing each time, prompts that came more than once).
    seen: dict[str, list[bool]] = {}
    for batch in batches:
        for group in batch.groups:
            if group.prompt_id:
                seen.setdefault(group.prompt_id, []).append(group.dead is not None and group.right < batch.group_size)
    again = {prompt: dead for prompt, dead in seen.items() if len(dead) > 1}
    return [prompt for prompt, dead in again.items() if all(dead)], len(again)
