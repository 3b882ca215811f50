"""What can go wrong with the completions and their groups: dead, identical, cut off, drifting, in
the format and wrong.
"""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np

from workbench.health.trends import GAINED, paired_trend, percent, share, slope
from workbench.health.verdicts import (
    ALARM,
    MOST_PROMPTS,
    NOTE,
    OK,
    WARNING,
    WINDOW,
    ExaminedRun,
    Verdict,
    is_finite,
    not_examined,
    rule,
)
from workbench.kinds import Fields
from workbench.rewards.groups import (
    ALL_RIGHT,
    ALL_WRONG,
    CANCELLED,
    IDENTICAL,
    NOT_SCORED,
    SAME_SCORE,
    cancel_words,
)
from workbench.run.held_out import best_of, flags
from workbench.run.metrics import STEP_S

FAR = 200  # batches that are looked at, at most
MEASURED = 4  # times that held-out prompts were, at least

_DEAD = {  # what most dead groups are -> (cause, remedy)
    ALL_WRONG: (
        "the policy solves none of these prompts, or the reward pays for nothing that it writes",
        (
            "first see whether the rewards can pay (`workbench probe`, notebook 02); then take"
            " easier prompts (notebook 01 measures difficulty) or more completions per prompt"
        ),
    ),
    SAME_SCORE: (
        "different completions earn the same",
        "look at one such group in notebook 04; give the reward finer steps",
    ),
    IDENTICAL: (
        "the policy writes the same text each time",
        "raise the temperature; more equal completions do not help",
    ),
    CANCELLED: (
        "what one function pays, another takes away",
        (
            "change a weight: `workbench replay` shows which groups come alive with --weight, or"
            " --aggregation normalize_then_sum"
        ),
    ),
    NOT_SCORED: (
        "no function scored their completions",
        "see events.jsonl for functions that fail, or score these prompts too",
    ),
}


@rule()
def dead_groups(view: ExaminedRun) -> Verdict:
    """Groups that teach nothing, and not because they are all right."""
    groups, size, kinds = view.total("group_count"), view.recent[-1].group_size, view.dead_kinds()
    done = kinds.pop(ALL_RIGHT)
    dead = share(sum(kinds.values()), groups)
    evidence = {
        "groups": groups,
        "share": dead.value,
        "at_least": dead.low,
        ALL_RIGHT: done,
        **kinds,
    }
    line = f"{percent(dead.value)} of the latest {groups} groups are dead without being all right"
    cancelled = Counter(
        group.cancels for batch in view.recent for group in batch.groups if group.cancels
    )
    if dead.low > 0.25:
        worst = max(kinds, key=kinds.__getitem__)
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if count)
        line = f"{percent(dead.value)} of the latest {groups} groups teach nothing: {words}"
        for commonest, _ in cancelled.most_common(1):
            evidence |= {"cancel": dict(commonest)}
            of_these = sum(
                count
                for each, count in cancelled.items()
                if dict(each).keys() == dict(commonest).keys()
            )
            # of many groups a summary keeps the first
            seen = sum(len(batch.groups) for batch in view.recent)
            line += f"; {cancel_words(commonest)} cancel in {of_these} of {seen} groups"
        prompts = view.prompts(lambda group: group.dead == worst and group.right < size)
        cause, remedy = _DEAD[worst]
        if worst == ALL_WRONG:
            remedy += view.helps_to_begin
        return view.verdict(
            ALARM if dead.low > 0.5 else WARNING, line, evidence, cause, remedy, prompts=prompts
        )
    return view.verdict(OK, line, evidence)


@rule()
def learnt_out(view: ExaminedRun) -> Verdict:
    """Groups that are all right, batch after batch, while neither the reward nor held-out prompts
    still gain.

    A warning once 20 batches brought no improvement; where held-out prompts do not tell, with three
    in four groups all right.
    """
    groups, size, batches = (
        view.total("group_count"),
        view.recent[-1].group_size,
        view.batches[-FAR:],
    )
    done = np.array([view.dead_kinds([batch])[ALL_RIGHT] for batch in batches])
    learnt = share(int(done[-WINDOW:].sum()), groups)
    evidence = {"groups": groups, "all_right": learnt.value, "at_least": learnt.low}
    line = f"{percent(learnt.value)} of the latest {groups} groups are all right"
    if learnt.low <= 0.5:
        return view.verdict(OK, line, evidence)
    note = f"{line}: nothing left to learn there"
    prompts = view.prompts(lambda group: group.dead and group.right == size)
    remedy = "stop here, or continue with harder prompts"
    # Back from the end, as long as the same can be said of every window of so many batches; then on
    # to where the reward is flat.
    latest, counted = len(batches) - WINDOW, np.array([batch.group_count for batch in batches])
    begin, rewards = latest, view.rewards_of(batches)
    while (
        begin > 0
        and share(*(int(own[begin - 1 : begin - 1 + WINDOW].sum()) for own in (done, counted))).low
        > 0.5
    ):
        begin -= 1
    flat = next(
        (
            start
            for start in range(begin, latest + 1, 5)
            if start >= 0 and slope(rewards[start:]).low <= 0
        ),
        0,
    )
    since, level, told = batches[flat].step, slope(rewards[flat:]).low <= 0, "the reward is flat"
    certain = level and learnt.low > 0.75
    # The policy that wrote batch n had been trained for n - 1 steps.
    measured = [*{own["step"]: own for own in view.held_out if own["step"] >= since - 1}.values()]
    if len(measured) >= MEASURED:
        solved = np.array([flags(own)[:, 0] for own in measured], dtype=float)
        gains = [paired_trend(solved[place:]) for place in range(len(solved) - MEASURED + 1)]
        # while they clearly gain, it learns
        place = next((place for place, gain in enumerate(gains) if gain.low <= 0), None)
        if place is None or gains[place].high >= GAINED:
            word = (
                "still gain" if place is None else "may still gain: 10 points cannot be ruled out"
            )
            return view.verdict(
                NOTE, f"{line}, but held-out prompts {word}", evidence, "", remedy, prompts=prompts
            )
        gain, held = gains[place], float(solved[place:].mean())
        since, certain = max(since, measured[place]["step"] + 1), level
        told = "held-out prompts " + (
            f"stay at {percent(held)}" if gain.high >= 0 else "even got worse"
        )
        told += f" ({100 * gain.low:+.0f} to {100 * gain.high:+.0f} points in that time)"
        evidence |= {
            "held_out": held,
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }
    elif view.held_out:
        words = (
            f"held-out prompts were measured {len(measured)} times since step {since}: too few to"
            " tell"
        )
        return view.verdict(NOTE, f"{note}; {words}", evidence, "", remedy, prompts=prompts)
    else:
        told += ", as far as training prompts tell (eval_every measures held-out ones)"
    count = batches[-1].step - since + 1
    if not certain or count < WINDOW:
        return view.verdict(NOTE, note, evidence, "", remedy, prompts=prompts)
    times = [seconds for step, seconds in view.numbers(STEP_S) if step >= since]
    # a row may be a mean over several steps
    minutes = count * statistics.fmean(times or [0.0]) / 60
    evidence |= {"since": since, "steps": count, "minutes": minutes}
    line = (
        f"the last {count} steps ({minutes:.2g} minutes) brought no improvement: {line}, and {told}"
    )
    if best := best_of(view.held_out):
        evidence["best_step"] = best["step"]
        remedy = (
            f"{remedy}; the best adapter by the held-out prompts is that of step {best['step']}"
        )
    cause = "the policy solves these prompts, and a group that is all right has no gradient"
    return view.verdict(
        WARNING, line, evidence, cause, remedy, over=(since, batches[-1].step), prompts=prompts
    )


@rule()
def collapse(view: ExaminedRun) -> Verdict:
    """The policy writes one text over and over, within groups or over different prompts, and it is
    not the answer.
    """
    recent, temperature, groups = view.recent, view.config.temperature, view.total("group_count")
    same = share(sum(batch.dead[IDENTICAL] - batch.identical_right for batch in recent), groups)
    distinct = statistics.fmean(batch.distinct_in_groups for batch in recent)
    # One text for different prompts: only batches of several prompts can show it.
    several = [batch for batch in recent if batch.group_count > 1]
    written = view.total("commonest_count", several)
    one = share(written, view.total("completions", several))
    one_right = view.total("commonest_right", several) / max(written, 1)
    evidence: Fields = {
        "groups": groups,
        "identical_and_not_right": same.value,
        "at_least": same.low,
        "distinct_in_groups": distinct,
    }
    evidence["distinct_in_batch"] = view.total("distinct") / view.total("completions")
    evidence |= {
        "commonest": recent[-1].commonest,
        "commonest_share": one.value,
        "commonest_right": one_right,
    }
    evidence["temperature"] = temperature
    everywhere = one.low > 0.8 and one_right < 0.5
    if same.low <= 0.2 and not everywhere:
        return view.verdict(OK, f"{percent(distinct)} of a group's texts are distinct", evidence)
    words = (
        f"in {percent(same.value)} of the latest {groups} groups all texts are the same and not"
        " right"
    )
    if everywhere:
        words = (
            f"{percent(one.value)} of the latest completions are one text, for any prompt, and not"
            " right"
        )
    words += f"; the commonest begins {recent[-1].commonest[:40]!r}"
    cause = (
        "the policy is sure of one text: it exploits a reward, learns too fast, or was sure from"
        " the start"
    )
    remedy = (
        "go back to a checkpoint from before; then a lower learning rate, a higher beta, or another"
        " reward"
    )
    if temperature is not None and temperature < 0.5:
        cause = f"temperature = {temperature:g} leaves sampling no choice"
        remedy = "raise the temperature (1.0 is TRL's default)"
    prompts = view.prompts(lambda group: group.dead == IDENTICAL and not group.right)
    return view.verdict(
        ALARM if everywhere or same.low > 0.5 else WARNING,
        words,
        evidence,
        cause,
        remedy,
        prompts=prompts,
    )


@rule()
def wasted(view: ExaminedRun) -> Verdict:
    """The share of compute spent on dead groups, in minutes, and the prompts that are dead each
    time.
    """
    batches = view.everything
    groups, kinds = view.total("group_count", batches), view.dead_kinds(batches)
    dead, by_kind = sum(kinds.values()), {kind: count for kind, count in kinds.items() if count}
    # whether a prompt's groups taught nothing, one after the other
    seen: dict[str, list[bool]] = {}
    for batch in batches:
        for group in filter(lambda group: group.prompt_id, batch.groups):
            seen.setdefault(group.prompt_id, []).append(
                group.dead is not None and group.right < batch.group_size
            )
    again = {
        prompt: taught_nothing for prompt, taught_nothing in seen.items() if len(taught_nothing) > 1
    }
    always = [prompt for prompt, taught_nothing in again.items() if all(taught_nothing)]
    evidence: Fields = {"groups": groups, "share": dead / groups, "by_kind": by_kind}
    evidence |= {"always_dead_prompts": len(always), "prompts_seen_again": len(again)}
    words = f"{percent(dead / groups)} of the completions were in dead groups"
    if times := [float(row[STEP_S]) for row in view.all_rows if is_finite(row.get(STEP_S))]:
        minutes = statistics.fmean(times) * (batches[-1].step - batches[0].step + 1) / 60
        evidence["minutes"] = minutes * dead / groups
        evidence["minutes_by_kind"] = {
            kind: minutes * count / groups for kind, count in by_kind.items()
        }
        words += f": {evidence['minutes']:.2g} of {minutes:.2g} minutes produced no gradient"
    else:
        evidence["missing"] = STEP_S
        words += f" (minutes unknown: the metrics have no {STEP_S})"
    if parts := [
        f"{kind} {percent(count / groups)}" for kind, count in kinds.most_common() if count
    ]:
        words += f" ({', '.join(parts)})"
    if always:
        words += f"; {len(always)} of {len(again)} prompts that came again were dead each time"
    unlearnt = share(dead - kinds[ALL_RIGHT], groups)
    state = WARNING if unlearnt.low > 0.5 else NOTE if dead / groups > 0.25 else OK
    cause = "the completions of those groups all score the same"
    remedy = "leave such prompts out (notebook 01 measures difficulty), or take fewer of them"
    return view.verdict(
        state, words, evidence, cause, remedy, over=batches, prompts=tuple(always[-MOST_PROMPTS:])
    )


@rule(groups=8, completions=48)
def truncation(view: ExaminedRun) -> Verdict:
    """Completions cut at max_completion_length, before they could close their tags."""
    recent, limit, count = view.recent, view.config.max_completion_length, view.total("completions")
    # A batch that stays below the limit holds none that was cut, whatever its longest one ends
    # with.
    full = [batch for batch in recent if limit is None or batch.longest >= limit]
    clipped, clipped_right = view.total("clipped", full), view.total("clipped_right", full)
    unended, others = view.total("unended"), count - clipped
    cut = share(clipped, count)
    evidence: Fields = {
        "completions": count,
        "share": cut.value,
        "at_least": cut.low,
        "unended": unended / count,
    }
    evidence |= {"longest": max(batch.longest for batch in recent), "max_completion_length": limit}
    evidence["right_of_cut"] = clipped_right / clipped if clipped else None
    right_of_others = (view.total("right") - clipped_right) / others if others else 0.0
    evidence["right_of_others"] = right_of_others if others else None
    words = f"{percent(cut.value)} of the latest {count} completions were cut"
    if cut.low <= 0.2:
        if share(unended - clipped, count).low <= 0.2:
            return view.verdict(OK, words, evidence)
        words += (
            f"; {percent((unended - clipped) / count)} end below the limit, by no EOS token that"
            " the record knows"
        )
        remedy = (
            "check eos_token_id in the model's generation_config and in its tokenizer; stop strings"
            " also end completions"
        )
        return view.verdict(NOTE, words, evidence, "", remedy)
    words += (
        f" at {limit} tokens" if limit else ""
    ) + f"; of the cut ones {percent(clipped_right / clipped)} are right"
    words += f", of the others {percent(right_of_others)}" if others else ""
    prompts = view.prompts(lambda group: group.clipped > recent[-1].group_size / 2)
    cause = "the limit is shorter than what the policy writes, or the policy does not end its turn"
    remedy = (
        "raise max_completion_length (notebook 01 measures what the policy needs), or reward"
        " shorter completions"
    )
    return view.verdict(
        ALARM if cut.low > 0.5 else WARNING, words, evidence, cause, remedy, prompts=prompts
    )


@rule(batches=10)
def length_drift(view: ExaminedRun) -> Verdict:
    """Completions that became much longer or shorter, but not more often right."""
    before, after = (statistics.fmean(batch.length for batch in side) for side in view.ends())
    if not before and not after:
        return not_examined("length_tokens", "the record has no completion lengths")
    moved, ratio = (
        slope([batch.length for batch in view.batches]),
        (after / before if before else float("inf")),
    )
    right_before, right_after, risen = view.rise("right")
    correlations = [
        batch.length_correlation for batch in view.recent if batch.length_correlation is not None
    ]
    correlation = statistics.fmean(correlations) if correlations else None
    evidence: Fields = {
        "before": before,
        "after": after,
        "ratio": ratio,
        "right_before": right_before,
        "right_after": right_after,
    }
    evidence |= {
        "reward_goes_with_length": correlation,
        "max_completion_length": view.config.max_completion_length,
    }
    words = (
        f"mean length {before:.0f} -> {after:.0f} tokens, right {percent(right_before)} ->"
        f" {percent(right_after)}"
    )
    if moved.low <= 0 <= moved.high or 1 / 1.5 < ratio < 1.5:
        return view.verdict(OK, words, evidence, over=view.batches)
    if risen.low > 0 or (ratio < 1 and right_after > 0.8):
        # Longer working that finds more answers, or waste that went away: what a run is for.
        return view.verdict(NOTE, words, evidence, over=view.batches)
    if correlation is not None:
        words += f"; within groups the reward goes with the length (r = {correlation:+.2f})"
    cause = (
        "not the reward, which does not go with length: long completions weigh more in the loss, or"
        " the policy drifts"
    )
    if (correlation or 0) * (ratio - 1) > 0:
        cause = "the reward pays for length rather than for answers"
    remedy = (
        "take the gain out of length (a length or overlong reward, notebook 02), or set loss_type"
        " to dr_grpo"
    )
    return view.verdict(
        WARNING if 0.5 < ratio < 2 else ALARM, words, evidence, cause, remedy, over=view.batches
    )


@rule(batches=0)
def format_without_right(view: ExaminedRun) -> Verdict:
    """The format is learnt, and the answers in it are not."""
    right_by, format_by = view.config.right_by, view.config.format_by
    if not view.batches:
        return not_examined("rollouts", "no batch was recorded")
    if view.batches[-1].formatted is None:
        return not_examined(
            "format_by", "the task names no function that says whether the format is kept"
        )
    if format_by is not None and format_by == right_by:
        return not_examined(
            "right_by", f"{right_by} decides both what is right and what is in the format"
        )
    if waits := view.too_few(batches=8):
        return waits
    last = view.ends()[1]
    (began, now, format_), (right_began, right_now, right) = (
        view.rise("formatted"),
        view.rise("right"),
    )
    formatted = view.total("formatted", last)
    evidence = {
        "format_before": began,
        "format_after": now,
        "right_before": right_began,
        "right_after": right_now,
    }
    evidence["right_in_format"] = (
        view.total("formatted_right", last) / formatted if formatted else None
    )
    words = (
        f"in the format {percent(began)} -> {percent(now)}, right {percent(right_began)} ->"
        f" {percent(right_now)}"
    )
    about: Fields = {"over": view.batches, "function": right_by or ""}
    # Flat: it did not rise beyond doubt, and it rose less than the format beyond doubt.
    flat = right.low <= 0 and right.high < format_.low and right_now < 0.9
    if format_.low <= 0.1 or not flat:
        return view.verdict(OK, words, evidence, **about)
    cause = (
        "the format is paid whether or not the answer in it is right, and answers are too hard, or"
        " paid too little"
    )
    remedy = (
        "raise the weight of the function that decides what is right, take easier prompts, or pay"
        " partly right answers"
    )
    prompts = view.prompts(lambda group: group.right == 0, last)
    # With the format all but learnt, it has nothing more to give, and the rest of the run is about
    # the answers.
    return view.verdict(
        ALARM if now > 0.8 else WARNING, words, evidence, cause, remedy, prompts=prompts, **about
    )
