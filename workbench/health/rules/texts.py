"""What can go wrong with the completions: cut off, drifting in length, in the format and still wrong."""

from __future__ import annotations

import statistics

from workbench.health.trends import change_of_share, share, slope
from workbench.health.verdicts import (
    ALARM,
    NOTE,
    OK,
    WARNING,
    Case,
    Verdict,
    counts,
    latest_prompts,
    missing,
    percent,
    steps_of,
)


def truncation(case: Case) -> Verdict:
    """Completions cut at max_completion_length, before they could close their tags."""
    name = "truncation"
    if early := case.too_few(name, groups=8, completions=48):
        return early
    recent, limit = case.recent, case.facts.max_completion_length
    count = sum(batch.completions for batch in recent)
    # A batch that stays below the limit holds none that was cut, whatever its longest one ends with.
    full = [batch for batch in recent if limit is None or batch.longest >= limit]
    clipped, clipped_right = (sum(getattr(batch, of) for batch in full) for of in ("clipped", "clipped_right"))
    right, unended = (sum(getattr(batch, of) for batch in recent) for of in ("right", "unended"))
    found, longest = share(clipped, count), max(batch.longest for batch in recent)
    evidence = {
        "completions": count,
        "share": found.value,
        "at_least": found.low,
        "unended": unended / count,
        "longest": longest,
        "max_completion_length": limit,
        "right_of_cut": clipped_right / clipped if clipped else None,
        "right_of_others": (right - clipped_right) / (count - clipped) if count > clipped else None,
    }
    rest = steps_of(recent)
    if found.low <= 0.2:
        words = f"{percent(found.value)} of the latest {count} completions were cut"
        if share(unended - clipped, count).low > 0.2:
            words += f"; {percent((unended - clipped) / count)} end with another token than the tokenizer's eos token"
            return Verdict(name, NOTE, words, evidence, remedy="check eos_token_id of tokenizer and model", **rest)
        return Verdict(name, OK, words, evidence, **rest)
    where = f" at {limit} tokens" if limit else ""
    joined = f"; of the cut ones {percent(clipped_right / clipped)} are right"
    if count > clipped:
        joined += f", of the others {percent(evidence['right_of_others'])}"
    return Verdict(
        name,
        ALARM if found.low > 0.5 else WARNING,
        f"{percent(found.value)} of the latest {count} completions were cut{where}{joined}",
        evidence,
        prompts=latest_prompts(recent, lambda group: 2 * group.clipped > case.recent[-1].group_size),
        cause="the limit is shorter than what the policy writes, or the policy does not end its turn",
        remedy="raise max_completion_length (notebook 01 measures what the policy needs), or reward shorter completions",
        **rest,
    )


def length_drift(case: Case) -> Verdict:
    """Completions that have become much longer or shorter, and no more often right."""
    name = "length_drift"
    if early := case.too_few(name, batches=10):
        return early
    first, last = case.ends()
    lengths = [[batch.length for batch in side] for side in (first, last)]
    before, after = map(statistics.fmean, lengths)
    moved = slope([batch.length for batch in case.batches])
    ratio = after / before if before else float("inf")
    right = change_of_share(*(counts(side, "right") for side in (first, last)))
    end = share(*counts(last, "right"))
    correlations = [batch.length_correlation for batch in case.recent if batch.length_correlation is not None]
    correlation = statistics.fmean(correlations) if correlations else None
    evidence = {
        "before": before,
        "after": after,
        "ratio": ratio,
        "right_before": end.value - right.value,
        "right_after": end.value,
        "reward_goes_with_length": correlation,
        "max_completion_length": case.facts.max_completion_length,
    }
    rest = steps_of(case.batches)
    words = f"mean length {before:.0f} -> {after:.0f} tokens, right {percent(end.value - right.value)} -> {percent(end.value)}"
    sure = moved.low > 0 or moved.high < 0
    if not sure or 1 / 1.5 < ratio < 1.5:
        return Verdict(name, OK, words, evidence, **rest)
    if right.low > 0 or (ratio < 1 and end.value > 0.8):
        # Longer working that finds more answers, or waste that went away: what a run is for.
        return Verdict(name, NOTE, words, evidence, **rest)
    goes = "" if correlation is None else f"; within groups the reward goes with the length (r = {correlation:+.2f})"
    return Verdict(
        name,
        ALARM if not 0.5 < ratio < 2 else WARNING,
        words + goes,
        evidence,
        cause="the reward pays for length rather than for answers"
        if (correlation or 0) * (ratio - 1) > 0
        else "not the reward, which does not go with length: long completions weigh more in the loss, or the policy drifts",
        remedy="take the gain out of length (a length or overlong reward, notebook 02), or set loss_type to dr_grpo",
        **rest,
    )


def format_without_right(case: Case) -> Verdict:
    """The format is learnt, and the answers in it are not."""
    name = "format_without_right"
    facts = case.facts
    if not case.batches:
        return missing(name, "rollouts", "no batch was recorded")
    if case.batches[-1].formatted is None:
        return missing(name, "format_by", "the task names no function that says whether the format is kept")
    if facts.format_by is not None and facts.format_by == facts.right_by:
        return missing(name, "right_by", f"{facts.right_by} says both what is right and what is in the format")
    if early := case.too_few(name, batches=8):
        return early
    first, last = case.ends()
    format_, right = (change_of_share(*(counts(side, of) for side in (first, last))) for of in ("formatted", "right"))
    formatted, in_format = (sum(getattr(batch, of) or 0 for batch in last) for of in ("formatted", "formatted_right"))
    now, right_now = (share(*counts(last, of)).value for of in ("formatted", "right"))
    evidence = {
        "format_before": now - format_.value,
        "format_after": now,
        "right_before": right_now - right.value,
        "right_after": right_now,
        "right_in_format": in_format / formatted if formatted else None,
    }
    rest = {"function": facts.right_by or "", **steps_of(case.batches)}
    words = (
        f"in the format {percent(now - format_.value)} -> {percent(now)}, "
        f"right {percent(right_now - right.value)} -> {percent(right_now)}"
    )
    # Flat: it did not rise beyond doubt, and it rose less than the format beyond doubt.
    flat = right.low <= 0 and right.high < format_.low and right_now < 0.9
    if format_.low <= 0.1 or not flat:
        return Verdict(name, OK, words, evidence, **rest)
    # With the format all but learnt, it has nothing more to give, and the rest of the run is about the answers.
    return Verdict(
        name,
        ALARM if now > 0.8 else WARNING,
        words,
        evidence,
        prompts=latest_prompts(last, lambda group: group.right == 0),
        cause="the format is paid whether or not the answer in it is right, and answers are too hard, or paid too little",
        remedy="raise the weight of the function that says what is right, take easier prompts, or pay partly right answers",
        **rest,
    )
