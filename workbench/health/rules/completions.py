"""What can go wrong with the completions and their groups: dead, identical, cut off, drifting, in
the format and wrong.
"""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np

from workbench.base.kinds import Fields
from workbench.health.summary import StepSummary
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
from workbench.rewards.groups import ALL_RIGHT, IDENTICAL, cancel_words
from workbench.run.held_out import best_of, flags
from workbench.run.metrics import STEP_S

FAR = 200  # batches that are looked at, at most
MEASURED = 4  # times that held-out prompts were, at least


@rule()
def dead_groups(view: ExaminedRun) -> Verdict:
    """Groups that teach nothing, and not because they are all right."""
    groups, size, kinds = view.total("group_count"), view.recent[-1].group_size, view.dead_kinds()
    done = kinds.pop(ALL_RIGHT)
    dead = share(kinds.total(), groups)
    evidence = {
        "groups": groups,
        "share": dead.value,
        "at_least": dead.low,
        ALL_RIGHT: done,
        **kinds,
    }
    line = f"{percent(dead.value)} of the latest {groups} groups"
    if dead.low <= 0.25:
        return view.verdict(OK, f"{line} are dead without being all right", evidence)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if count)
    line += f" teach nothing: {named}"
    shown = [group for batch in view.recent for group in batch.groups]  # of many the first
    cancelled = Counter(group.cancels for group in shown if group.cancels)
    if cancelled:
        commonest, _ = cancelled.most_common(1)[0]
        evidence["cancel"] = dict(commonest)
        alike = sum(
            count
            for cancels, count in cancelled.items()
            if dict(cancels).keys() == dict(commonest).keys()
        )
        line += f"; {cancel_words(commonest)} cancel in {alike} of {len(shown)} groups"
    worst, _ = kinds.most_common(1)[0]
    prompts = view.prompts(lambda group: group.dead == worst and group.right != size)
    state = ALARM if dead.low > 0.5 else WARNING
    return view.verdict(state, line, evidence, worst, prompts=prompts)


@rule()
def learnt_out(view: ExaminedRun) -> Verdict:
    """Groups that are all right, batch after batch, while neither the reward nor held-out prompts
    still gain.

    A warning once 20 batches brought no improvement; where held-out prompts do not tell, with three
    in four groups all right.
    """
    groups, size = view.total("group_count"), view.recent[-1].group_size
    batches = view.batches[-FAR:]
    done = [view.dead_kinds([batch])[ALL_RIGHT] for batch in batches]
    learnt = share(sum(done[-WINDOW:]), groups)
    evidence: Fields = {"groups": groups, "all_right": learnt.value, "at_least": learnt.low}
    line = f"{percent(learnt.value)} of the latest {groups} groups are all right"
    if learnt.low <= 0.5:
        return view.verdict(OK, line, evidence)
    prompts = view.prompts(lambda group: group.dead and group.right == size)

    def note(line: str) -> Verdict:
        return view.verdict(NOTE, line, evidence, "harder prompts", prompts=prompts)

    since, level = _learnt_since(view, batches, done)
    # The policy that wrote batch n had been trained for n - 1 steps.
    measured = [*{own["step"]: own for own in view.held_out if own["step"] >= since - 1}.values()]
    if len(measured) >= MEASURED:
        solved = np.array([flags(own)[:, 0] for own in measured], dtype=float)
        gains = [paired_trend(solved[place:]) for place in range(len(solved) - MEASURED + 1)]
        # while they clearly gain, it learns
        place = next((place for place, gain in enumerate(gains) if gain.low <= 0), None)
        if place is None:
            return note(f"{line}, but held-out prompts still gain")
        gain, held = gains[place], float(solved[place:].mean())
        if gain.high >= GAINED:
            return note(
                f"{line}, but held-out prompts may still gain: 10 points cannot be ruled out"
            )
        since, certain = max(since, measured[place]["step"] + 1), level
        stay = f"stay at {percent(held)}" if gain.high >= 0 else "even got worse"
        points = f"{100 * gain.low:+.0f} to {100 * gain.high:+.0f}"
        why = f"held-out prompts {stay} ({points} points in that time)"
        evidence["held_out"] = held
        evidence |= zip(("gain", "gain_low", "gain_high"), gain)
    elif view.held_out:
        return note(
            f"{line}: nothing left to learn there; held-out prompts were measured"
            f" {len(measured)} times since step {since}: too few to tell"
        )
    else:
        certain = level and learnt.low > 0.75
        why = (
            "the reward is flat, as far as training prompts tell (eval_every measures held-out"
            " ones)"
        )
    last = batches[-1].step
    steps = last - since + 1
    if not certain or steps < WINDOW:
        return note(f"{line}: nothing left to learn there")
    times = [seconds for step, seconds in view.numbers(STEP_S) if step >= since]
    # a row may be a mean over several steps
    minutes = steps * statistics.fmean(times or [0.0]) / 60
    evidence |= {"since": since, "steps": steps, "minutes": minutes}
    line = (
        f"the last {steps} steps ({minutes:.2g} minutes) brought no improvement: {line}, and {why}"
    )
    best = ""
    if measurement := best_of(view.held_out):
        evidence["best_step"] = step = measurement["step"]
        best = f"; the best adapter by the held-out prompts is that of step {step}"
    return view.verdict(
        WARNING, line, evidence, "learnt out", steps=(since, last), prompts=prompts, best=best
    )


def _learnt_since(
    view: ExaminedRun, batches: list[StepSummary], done: list[int]
) -> tuple[int, bool]:
    # (step, whether the reward is flat from there on). Back from the end, as long as most groups
    # are all right in every window of so many batches; then on to where the reward is flat.
    counted, rewards = [batch.group_count for batch in batches], view.rewards_of(batches)
    begin = latest = max(0, len(batches) - WINDOW)
    while begin > 0:
        window = slice(begin - 1, begin - 1 + WINDOW)
        if share(sum(done[window]), sum(counted[window])).low <= 0.5:
            break
        begin -= 1
    starts = range(begin, latest + 1, 5)
    flat = next((start for start in starts if slope(rewards[start:]).low <= 0), 0)
    return batches[flat].step, slope(rewards[flat:]).low <= 0


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
        "commonest": recent[-1].commonest,
        "commonest_right": one_right,
    }
    everywhere = one.low > 0.8 and one_right < 0.5
    if everywhere:
        line = f"{percent(one.value)} of the latest completions are one text, for any prompt,"
    elif same.low > 0.2:
        line = f"in {percent(same.value)} of the latest {groups} groups all texts are the same"
    else:
        return view.verdict(OK, f"{percent(distinct)} of a group's texts are distinct", evidence)
    line += f" and not right; the commonest begins {recent[-1].commonest[:40]!r}"
    state = ALARM if everywhere or same.low > 0.5 else WARNING
    prompts = view.prompts(lambda group: group.dead == IDENTICAL and not group.right)
    case = "cold" if temperature is not None and temperature < 0.5 else "one text"
    return view.verdict(state, line, evidence, case, prompts=prompts, temperature=temperature)


@rule()
def wasted(view: ExaminedRun) -> Verdict:
    """The share of compute spent on dead groups, in minutes, and the prompts that are dead each
    time.
    """
    batches = view.everything
    groups, kinds = view.total("group_count", batches), view.dead_kinds(batches)
    dead = kinds.total()
    # whether a prompt's groups taught nothing, one after the other
    seen: dict[str, list[bool]] = {}
    for batch in batches:
        for group in batch.groups:
            taught_nothing = group.dead is not None and group.right != batch.group_size
            seen.setdefault(group.prompt_id, []).append(taught_nothing)
    seen.pop("", None)  # prompts without an id
    again = {prompt: nothing for prompt, nothing in seen.items() if len(nothing) > 1}
    always = [prompt for prompt, nothing in again.items() if all(nothing)]
    evidence: Fields = {"groups": groups, "share": dead / groups}
    evidence |= {"always_dead_prompts": len(always), "prompts_seen_again": len(again)}
    line = f"{percent(dead / groups)} of the completions were in dead groups"
    if times := [float(row[STEP_S]) for row in view.all_rows if is_finite(row.get(STEP_S))]:
        minutes = statistics.fmean(times) * (batches[-1].step - batches[0].step + 1) / 60
        evidence["minutes"] = minutes * dead / groups
        line += f": {evidence['minutes']:.2g} of {minutes:.2g} minutes produced no gradient"
    else:
        evidence["missing"] = STEP_S
        line += f" (minutes unknown: the metrics have no {STEP_S})"
    shares = [f"{kind} {percent(count / groups)}" for kind, count in kinds.most_common() if count]
    if shares:
        line += f" ({', '.join(shares)})"
    if always:
        line += f"; {len(always)} of {len(again)} prompts that came again were dead each time"
    unlearnt = share(dead - kinds[ALL_RIGHT], groups)
    state = WARNING if unlearnt.low > 0.5 else NOTE if dead / groups > 0.25 else OK
    prompts = tuple(always[-MOST_PROMPTS:])
    return view.verdict(state, line, evidence, "wasted", over=batches, prompts=prompts)


@rule(groups=8)
def truncation(view: ExaminedRun) -> Verdict:
    """Completions cut at max_completion_length, before they could close their tags."""
    recent, limit, count = view.recent, view.config.max_completion_length, view.total("completions")
    # A batch that stays below the limit holds none that was cut, whatever its longest one ends
    # with.
    full = [batch for batch in recent if limit is None or batch.longest >= limit]
    clipped, clipped_right = view.total("clipped", full), view.total("clipped_right", full)
    unended, others = view.total("unended"), count - clipped
    cut = share(clipped, count)
    of_cut = clipped_right / clipped if clipped else None
    of_others = (view.total("right") - clipped_right) / others if others else None
    evidence: Fields = {
        "completions": count,
        "share": cut.value,
        "at_least": cut.low,
        "max_completion_length": limit,
        "right_of_cut": of_cut,
    }
    line = f"{percent(cut.value)} of the latest {count} completions were cut"
    if cut.low <= 0.2 or of_cut is None:
        if share(unended - clipped, count).low <= 0.2:
            return view.verdict(OK, line, evidence)
        line += f"; {percent((unended - clipped) / count)} end below the limit, "
        # their lengths leave out what tools answered
        if any(own.calls for own in view.calls):
            line += "with what tools answered at it"
            return view.verdict(WARNING, line, evidence, "cut rollouts")
        line += "by no EOS token that the record knows"
        return view.verdict(NOTE, line, evidence, "other ends")
    if limit:
        line += f" at {limit} tokens"
    line += f"; of the cut ones {percent(of_cut)} are right"
    if of_others is not None:
        line += f", of the others {percent(of_others)}"
    prompts = view.prompts(lambda group: group.clipped > recent[-1].group_size / 2)
    state = ALARM if cut.low > 0.5 else WARNING
    return view.verdict(state, line, evidence, "cut", prompts=prompts)


@rule(batches=10)
def length_drift(view: ExaminedRun) -> Verdict:
    """Completions that became much longer or shorter, but not more often right."""
    batches = view.batches
    before, after = (statistics.fmean(batch.length for batch in side) for side in view.ends())
    if not before and not after:
        return not_examined("length_tokens", "the record has no completion lengths")
    moved = slope([batch.length for batch in batches])
    ratio = after / before if before else float("inf")
    right_before, right_after, risen = view.rise("right")
    measured = [own for batch in view.recent if (own := batch.length_correlation) is not None]
    correlation = statistics.fmean(measured) if measured else None
    evidence: Fields = {
        "before": before,
        "after": after,
        "ratio": ratio,
        "right_before": right_before,
        "right_after": right_after,
        "reward_goes_with_length": correlation,
    }
    line = (
        f"mean length {before:.0f} -> {after:.0f} tokens, right {percent(right_before)} ->"
        f" {percent(right_after)}"
    )
    if moved.low <= 0 <= moved.high or 1 / 1.5 < ratio < 1.5:
        return view.verdict(OK, line, evidence, over=batches)
    cut = share(view.total("clipped"), view.total("completions"))
    learnt = view.reward_slope.low > 0 and risen.high >= 0 and right_after > 0 and cut.low <= 0.2
    if risen.low > 0 or (ratio < 1 and (learnt or right_after > 0.8)):
        # Longer working that finds more answers, or waste that went away: what a run is for. The
        # reward tells it sooner than right answers do, which are few at first.
        return view.verdict(NOTE, line, evidence, over=batches)
    if correlation is not None:
        line += f"; within groups the reward goes with the length (r = {correlation:+.2f})"
    state = WARNING if 0.5 < ratio < 2 else ALARM
    case = "length pays" if (correlation or 0) * (ratio - 1) > 0 else "length drifts"
    return view.verdict(state, line, evidence, case, over=batches)


@rule(batches=0)
def format_without_right(view: ExaminedRun) -> Verdict:
    """The format is learnt, and the answers in it are not."""
    right_by, batches, last = view.config.right_by or "", view.batches, view.ends()[1]
    if batches and batches[-1].formatted is None:
        why = "the task names no function that says whether the format is kept"
        return not_examined("format_by", why)
    if view.config.format_by == right_by:
        why = f"{right_by} decides both what is right and what is in the format"
        return not_examined("right_by", why)
    if waits := view.too_few(batches=8):
        return waits
    began, now, format_ = view.rise("formatted")
    right_began, right_now, right = view.rise("right")
    evidence = {
        "format_before": began,
        "format_after": now,
        "right_before": right_began,
        "right_after": right_now,
    }
    line = (
        f"in the format {percent(began)} -> {percent(now)}, right {percent(right_began)} ->"
        f" {percent(right_now)}"
    )
    # Flat: it did not rise beyond doubt, and it rose less than the format beyond doubt.
    flat = right.low <= 0 and right.high < format_.low and right_now < 0.9
    if format_.low <= 0.1 or not flat:
        return view.verdict(OK, line, evidence, over=batches, function=right_by)
    prompts = view.prompts(lambda group: group.right == 0, last)
    # With the format all but learnt, it has nothing more to give, and the rest of the run is about
    # the answers.
    state = ALARM if now > 0.8 else WARNING
    return view.verdict(
        state, line, evidence, "format alone", over=batches, prompts=prompts, function=right_by
    )
