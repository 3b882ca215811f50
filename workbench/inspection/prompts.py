"""The record by prompt: one prompt through time, and the prompts that never taught anything."""

from __future__ import annotations

from workbench.base.errors import RunError
from workbench.inspection.reading import (
    Listing,
    needs,
    quoted,
    shown_prompts,
    told_apart,
    with_meaning,
)
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import KEY, query


def through_time(run: RunDirectory, prompt: str) -> Listing:
    """Every group that a prompt was drawn for, in order: its rewards, how many were right, and its
    best completion.

    >>> asked = wb.inspection.never_mixed(wb.open_run(), least=1).frame["prompt"]
    >>> # wb.inspection.through_time(wb.open_run(), asked[0])

    Args:
        prompt: its `prompt_id`, or words that its text holds and no other prompt's does.

    Returns:
        `frame`: step, rewards (best first), right, of (completions), length_tokens (mean), best.

    Raises:
        RunError: if no prompt on record fits, or several do.
    """
    needs(run, RunDirectory)
    sql = f"select {KEY} as key, any_value(prompt) as prompt from rollouts group by key"
    every = query(run.rollouts, sql).set_index("key")["prompt"]
    texts = dict(zip(every.index, shown_prompts(every)))
    fits = [key for key in texts if key == prompt] or [key for key in texts if prompt in texts[key]]
    if len(fits) != 1:
        some = ", ".join(map(repr, told_apart([texts[key] for key in fits])[:3]))
        raise RunError(
            f"{prompt!r}: {len(fits)} prompts on record fit{some and f': {some}, ...'}",
            rule="one prompt is followed",
            remedy="give its prompt_id, or more of its words",
        )
    [key] = fits
    columns = """step, list(nullif(total, 'nan') order by total desc) as rewards,
        cast(coalesce(sum(cast("right" as int)), 0) as int) as right,
        cast(count("right") as int) as "of",
        avg(length_tokens) as length_tokens, arg_max(completion, total) as best"""
    ours = f"""{KEY} = {quoted(key, "'")} group by step, "group" order by step, "group\""""
    frame = query(run.rollouts, f"select {columns} from rollouts where {ours}")
    frame["rewards"] = [
        " ".join("-" if own is None else f"{own:.3g}" for own in each) for each in frame["rewards"]
    ]
    solved = frame[(frame["right"] == frame["of"]) & (frame["of"] > 0)]["step"]
    when = f"all right first at step {solved.iloc[0]}" if len(solved) else "never all right"
    told = frame[frame["of"] > 0]
    said = "nothing says whether a completion is right"
    if len(told):
        began, ended = told["right"].iloc[[0, -1]] / told["of"].iloc[[0, -1]]
        said = f"right {began:.0%} -> {ended:.0%}; {when}"
    times = "once" if len(frame) == 1 else f"{len(frame)} times"
    verdict = f"{texts[key]}\ndrawn {times}, {said}"
    return Listing(
        with_meaning(verdict, run),
        frame,
        {"prompt_id": key, "solved_at": int(solved.iloc[0]) if len(solved) else None},
    )


def never_mixed(run: RunDirectory, least: int | None = None) -> Listing:
    """Prompts whose groups never held both right and wrong completions: too hard (never right), or
    too easy (always right).

    >>> wb.inspection.never_mixed(wb.open_run()).numbers.keys()
    dict_keys(['prompts', 'often', 'never_right', 'always_right', 'now_right'])

    A prompt that was all wrong and later all right was learnt from others: it is counted as
    `now_right`, and not listed.

    Args:
        least: groups that a prompt must have had; None: 2, or 1 where no prompt had more.

    Returns:
        `frame`, the most often drawn first, and among them the hard ones: prompt, kind ("never
        right", "always right" or "no longer right"), groups, reward (mean), example, prompt_id.
    """
    needs(run, RunDirectory)
    drawn = f"""select count(distinct (step, "group")) as groups from rollouts
        where "right" is not null group by {KEY}"""
    times = query(run.rollouts, drawn)["groups"]
    least = least or (2 if (times > 1).any() else 1)
    groups = f"""select {KEY} as key, step, "group", any_value(prompt) as prompt, avg(cast("right" as double)) as share,
        avg(total) as reward, arg_max(completion, total) as example from rollouts group by key, step, "group" """  # noqa: E501
    frame = query(
        run.rollouts,
        f"""select any_value(prompt) as prompt,
        case when max(share) = 0 then 'never right'
        when min(share) = 1 then 'always right'
        when arg_max(share, step) = 1 then 'now right'
        else 'no longer right' end as kind, count(*) as groups, avg(reward) as reward, any_value(example) as example, key
        from ({groups}) group by key having bool_and(share in (0, 1)) and count(*) >= {int(least)}
        order by groups desc, kind = 'never right' desc, key""",  # noqa: E501
    )
    often = int((times >= least).sum())
    frame["prompt"] = shown_prompts(frame["prompt"])
    kinds = {
        f"{kind}_right": int((frame["kind"] == f"{kind} right").sum())
        for kind in ("never", "always", "now")
    }
    listed = frame[frame["kind"] != "now right"].reset_index(drop=True)
    how = f"{least} times or more" if least > 1 else "once or more"
    # One group says little of a prompt of which, say, one completion in eight is right.
    hard, easy = (" (too hard)", " (too easy)") if least > 1 else ("", "")
    verdict = (
        f"of {often} prompts drawn {how}, {len(listed)} never had right and wrong in one group:"
        f" {kinds['never_right']} never right{hard}, {kinds['always_right']} always right{easy}"
    )
    if not often:
        verdict = (
            f"none of the {len(times)} prompts was drawn {least} times or more; more epochs, or a"
            " lower least, would tell"
        )
    return Listing(
        with_meaning(verdict, run),
        listed.drop(columns="key").assign(prompt_id=listed["key"]),
        {"prompts": len(times), "often": often, **kinds},
    )
