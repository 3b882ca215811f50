"""What can go wrong with the completions: cut off, drifting in length, in the format and still wrong."""

from __future__ import annotations

import statistics

from workbench.health.trends import change_of_share, share, slope
from workbench.health.verdicts import ALARM, NOTE, OK, WARNING, RunView, Verdict, counts, missing, percent, rule

WHY = {  # (cause, remedy)
    "other end token": ("", "check eos_token_id of tokenizer and model"),
    "truncation": (
        "the limit is shorter than what the policy writes, or the policy does not end its turn",
        "raise max_completion_length (notebook 01 measures what the policy needs), or reward shorter completions",
    ),
    "length pays": (
        "the reward pays for length rather than for answers",
        "take the gain out of length (a length or overlong reward, notebook 02), or set loss_type to dr_grpo",
    ),
    "length drifts": (
        "not the reward, which does not go with length: long completions weigh more in the loss, or the policy drifts",
        "take the gain out of length (a length or overlong reward, notebook 02), or set loss_type to dr_grpo",
    ),
    "format": (
        "the format is paid whether or not the answer in it is right, and answers are too hard, or paid too little",
        "raise the weight of the function that says what is right, take easier prompts, or pay partly right answers",
    ),
}


@rule(groups=8, completions=48)
def truncation(view: RunView) -> Verdict:
    """Completions cut at max_completion_length, before they could close their tags."""
    recent, limit, count = view.recent, view.config.max_completion_length, view.total("completions")
    # A batch that stays below the limit holds none that was cut, whatever its longest one ends with.
    full = [batch for batch in recent if limit is None or batch.longest >= limit]
    clipped, clipped_right = view.total("clipped", full), view.total("clipped_right", full)
    right, unended = view.total("right"), view.total("unended")
    found = share(clipped, count)
    evidence = {
        "completions": count,
        "share": found.value,
        "at_least": found.low,
        "unended": unended / count,
        "longest": max(batch.longest for batch in recent),
        "max_completion_length": limit,
        "right_of_cut": clipped_right / clipped if clipped else None,
        "right_of_others": (right - clipped_right) / (count - clipped) if count > clipped else None,
    }
    words = f"{percent(found.value)} of the latest {count} completions were cut"
    if found.low <= 0.2:
        if share(unended - clipped, count).low > 0.2:
            words += f"; {percent((unended - clipped) / count)} end with another token than the tokenizer's eos token"
            return view.verdict(NOTE, words, evidence, WHY["other end token"])
        return view.verdict(OK, words, evidence)
    words += (f" at {limit} tokens" if limit else "") + f"; of the cut ones {percent(clipped_right / clipped)} are right"
    if count > clipped:
        words += f", of the others {percent(evidence['right_of_others'])}"
    state, half = ALARM if found.low > 0.5 else WARNING, view.recent[-1].group_size / 2
    prompts = view.prompts(lambda group: group.clipped > half)
    return view.verdict(state, words, evidence, WHY["truncation"], prompts=prompts)


@rule(batches=10)
def length_drift(view: RunView) -> Verdict:
    """Completions that have become much longer or shorter, and no more often right."""
    first, last = view.ends()
    before, after = (statistics.fmean(batch.length for batch in side) for side in (first, last))
    moved = slope([batch.length for batch in view.batches])
    ratio = after / before if before else float("inf")
    right, end = change_of_share(counts(first, "right"), counts(last, "right")), share(*counts(last, "right"))
    correlations = [batch.length_correlation for batch in view.recent if batch.length_correlation is not None]
    correlation = statistics.fmean(correlations) if correlations else None
    evidence = {
        "before": before,
        "after": after,
        "ratio": ratio,
        "right_before": end.value - right.value,
        "right_after": end.value,
        "reward_goes_with_length": correlation,
        "max_completion_length": view.config.max_completion_length,
    }
    words = f"mean length {before:.0f} -> {after:.0f} tokens, right {percent(end.value - right.value)} -> {percent(end.value)}"
    sure = moved.low > 0 or moved.high < 0
    if not sure or 1 / 1.5 < ratio < 1.5:
        return view.verdict(OK, words, evidence, over=view.batches)
    if right.low > 0 or (ratio < 1 and end.value > 0.8):
        # Longer working that finds more answers, or waste that went away: what a run is for.
        return view.verdict(NOTE, words, evidence, over=view.batches)
    if correlation is not None:
        words += f"; within groups the reward goes with the length (r = {correlation:+.2f})"
    why = WHY["length pays" if (correlation or 0) * (ratio - 1) > 0 else "length drifts"]
    return view.verdict(ALARM if not 0.5 < ratio < 2 else WARNING, words, evidence, why, view.batches)


@rule(batches=0)
def format_without_right(view: RunView) -> Verdict:
    """The format is learnt, and the answers in it are not."""
    right_by, format_by = view.config.right_by, view.config.format_by
    if not view.batches:
        return missing("rollouts", "no batch was recorded")
    if view.batches[-1].formatted is None:
        return missing("format_by", "the task names no function that says whether the format is kept")
    if format_by is not None and format_by == right_by:
        return missing("right_by", f"{right_by} says both what is right and what is in the format")
    if waits := view.too_few(batches=8):
        return waits
    first, last = view.ends()
    format_, right = (change_of_share(counts(first, of), counts(last, of)) for of in ("formatted", "right"))
    now, right_now = (share(*counts(last, of)).value for of in ("formatted", "right"))
    formatted = view.total("formatted", last)
    evidence = {
        "format_before": now - format_.value,
        "format_after": now,
        "right_before": right_now - right.value,
        "right_after": right_now,
        "right_in_format": view.total("formatted_right", last) / formatted if formatted else None,
    }
    words = (
        f"in the format {percent(now - format_.value)} -> {percent(now)}, "
        f"right {percent(right_now - right.value)} -> {percent(right_now)}"
    )
    more = {"over": view.batches, "function": right_by or ""}
    # Flat: it did not rise beyond doubt, and it rose less than the format beyond doubt.
    flat = right.low <= 0 and right.high < format_.low and right_now < 0.9
    if format_.low <= 0.1 or not flat:
        return view.verdict(OK, words, evidence, **more)
    # With the format all but learnt, it has nothing more to give, and the rest of the run is about the answers.
    prompts = view.prompts(lambda group: group.right == 0, last)
    return view.verdict(ALARM if now > 0.8 else WARNING, words, evidence, WHY["format"], prompts=prompts, **more)
