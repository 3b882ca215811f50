"""reasoning-gym's tasks: do they score as their library does, and does `difficulty: auto` find a
level that the policy solves some of the time?

    uv run python benchmarks/levels.py [--policy smollm2]    # with the extras tasks and smollm2

Scorers: the library's scorer is called directly with the library's entry, and by the workbench with
what a row kept, on answers right, wrong and broken. Equal scores prove that an entry survives the
row's JSON and that the scorer is called as its library would; not that it is right: it is the same
code on both sides.

Auto: the level that it chose is measured again, with fresh completions of held-out questions. Said
to be in the band, it has landed where at least half of the fresh 95 % interval lies in the band.
Where auto said that no level is, that is honest where at least half of the interval lies outside,
for the level that it called nearest: the others are not measured again. Else auto is contradicted;
without fresh completions it is not measured. Results are kept task by task in --home, so that it
can be interrupted; the command that is recorded is the last one's.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import random
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

FRESH = 60  # completions of the second measurement
OUTCOMES = ("landed", "honestly none", "contradicted", "not measured")
TOKENS = 32


class OutOfTimeError(Exception):
    """A task's questions took longer than they may."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise where the block takes longer."""

    def ring(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def answers_to(entry: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Answers to try on one entry's scorers: right, another's, mutilated, with words, broken."""
    right = str(entry["answer"] or "x")
    words = [right, str(other["answer"] or "y"), right[:-1], f"{right} or so", f"it is {right}"]
    return [*words, "0", "no", "[[1, 2], [3", "{'a': 1}", right.upper(), right[::-1]]


def scored(theirs: Any, answer: str, entry: dict[str, Any]) -> object:
    """What their scorer pays, or the name of its error."""
    try:
        return float(theirs.score_answer(answer, copy.deepcopy(entry)))
    except Exception as error:
        return type(error).__name__


def scorers(name: str, rows: int) -> dict[str, Any]:
    """One task: pairs of scores compared, how many differ, and how many of their errors became
    0.
    """
    from workbench.rewards.answers import find_answer
    from workbench.tasks import gym

    named = gym.GymName(name, None)
    theirs = gym.dataset(named, 0, rows * 4)
    entries, began = [], time.monotonic()
    with contextlib.suppress(OutOfTimeError), within(60):
        for index in range(rows * 2):
            random.seed(index)
            with contextlib.suppress(ValueError):
                entries.append(theirs[index])
            if len(entries) == rows:
                break
    made_s = time.monotonic() - began
    found = {"task": name, "rows": len(entries), "made_s": made_s, "pairs": 0, "differ": 0}
    found |= {"errors": 0, "changed": 0, "refused": 0}
    for number, entry in enumerate(entries):
        row = gym._row(named, entry)
        found["changed"] += gym.entry_of(row["entry"])[1] != entry
        for answer in answers_to(entry, entries[number - 1]):
            text = f"<answer>{answer}</answer>"
            given = find_answer(text, "tag")
            if given is None:
                continue
            with contextlib.suppress(OutOfTimeError), within(10):
                expected = scored(theirs, given, entry)
                columns = {"answer": [row["answer"]], "entry": [row["entry"]]}
                try:
                    own: object = gym.score_reward([text], **columns)[0]
                except Exception as error:
                    own = type(error).__name__
                failed = isinstance(expected, str)
                found["pairs"] += 1
                found["errors"] += failed
                found["refused"] += isinstance(own, str)
                found["differ"] += own != expected and not (failed and own in (0.0, expected))
    return found


def outcome(claimed: bool, right: int, of: int) -> str:
    """What fresh completions say of auto's claim that a level is in the band, or that none is: one
    of `OUTCOMES`.
    """
    from workbench.health.trends import Z_95, share
    from workbench.training.levels import BAND

    if not of:
        return "not measured"
    fresh = share(right, of, Z_95)
    within_band = min(fresh.high, BAND[1]) - max(fresh.low, BAND[0])
    inside = max(0.0, within_band) / (fresh.high - fresh.low)
    if claimed:
        return "landed" if inside >= 0.5 else "contradicted"
    return "honestly none" if inside <= 0.5 else "contradicted"


def auto(name: str, policy: Any, recipe: Any) -> dict[str, Any]:
    """One task: what `difficulty: auto` said, and the fresh measurement at that level."""
    from workbench.inspection.evaluation import measure_policy
    from workbench.task import load_task
    from workbench.training.levels import find_level, fitting

    began = time.monotonic()
    asked = recipe.model_copy(update={"task": f"reasoning_gym/{name}", "difficulty": "auto"})
    with contextlib.redirect_stdout(io.StringIO()):
        chosen, (said,) = find_level(asked, policy)
    task = load_task(chosen.task)
    how = {"max_completion_length": TOKENS, "seed": 1000}
    rows = fitting(task.held_out, policy.tokenizer, recipe, TOKENS)[:FRESH]
    right, of = 0, len(rows)
    if rows:
        measured = measure_policy(policy, task, rows, samples=1, batch_size=32, **how)
        right = int(measured.lenient.sum())
    return {
        "task": name,
        "level": chosen.task.partition("@")[2],
        "said": said.partition("; kept in")[0],
        "in_band": "WARNING" not in said,
        "fresh": [right, of],
        "seconds": time.monotonic() - began,
    }


def kept(file: Path, names: list[str], measure: Any, minutes: float) -> list[dict[str, Any]]:
    """The results by task: those in the file, and those that are missing, until time is up."""
    from workbench.workspace import append_line, read_lines

    found = {line["task"]: line for line in read_lines(file)}
    until = time.monotonic() + 60 * minutes
    for name in names:
        if name not in found and time.monotonic() < until:
            found[name] = measure(name)
            measuring.say(str(found[name]))
            append_line(file, found[name])
    return [found[name] for name in names if name in found]


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--policy", default="smollm2", help="which policy auto measures")
    parser.add_argument("--rows", type=int, default=50, help="rows of each task to score")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument("--home", type=Path, help="where results are kept meanwhile")
    asked = measuring.parse(parser, rows=2, minutes=1, policy="tiny")
    stamped = measuring.stamp()
    warnings.simplefilter("ignore")
    with contextlib.ExitStack() as entered:
        home = asked.home or entered.enter_context(measuring.empty_home())
        home.mkdir(parents=True, exist_ok=True)
        os.environ["WORKBENCH_HOME"] = str(home)
        from workbench.recipe import Recipe
        from workbench.tasks import gym
        from workbench.training.policy import load_policy

        names = ["chain_sum", "codeio", "futoshiki"] if asked.quick else gym.names()
        file = home / f"scorers-{asked.rows}.jsonl"
        with contextlib.redirect_stdout(io.StringIO()):
            of_tasks = kept(file, names, lambda name: scorers(name, asked.rows), asked.minutes)
        shape = {"name": asked.policy, "load_in_4bit": False, "backend": "transformers"}
        recipe = Recipe.of(
            {"policy": {**shape, "max_seq_length": 512}, "grpo": {"max_completion_length": TOKENS}}
        )
        tasks = ["chain_sum"] if asked.quick else names
        policy = load_policy(recipe)
        file = home / f"auto-{asked.policy}.jsonl"
        found = kept(file, tasks, lambda name: auto(name, policy, recipe), asked.minutes)
    del asked.home
    content = {"scorers": of_tasks, "auto": found}
    measuring.save("levels", asked, stamped, *report(asked.policy, asked.rows, **content))


def report(
    policy: str, asked_rows: int, scorers: list[dict[str, Any]], auto: list[dict[str, Any]]
) -> tuple[list[Line], tuple[list[str], list[list[str]]], dict[str, Any], list[str]]:
    """Lines, table, numbers and notes of a result, from what was kept of each task."""
    found = [each | {"outcome": outcome(each["in_band"], *each["fresh"])} for each in auto]
    counts = Counter(each["outcome"] for each in found)
    pairs, differ = (sum(each[key] for each in scorers) for key in ("pairs", "differ"))
    lines = [
        Line(
            f"reasoning-gym's scores through a row, {len(scorers)} tasks x {asked_rows} rows",
            f"{pairs - differ:,} of {pairs:,} equal",
            "the same scorer, called directly",
            "none: no chance in it",
        ),
        Line(
            f"difficulty: auto, {policy}, {len(found)} tasks",
            ", ".join(f"{counts[each]} {each}" for each in OUTCOMES),
            "fresh completions",
            "sampled: 95 % intervals in the rule",
        ),
    ]
    header = ["task", "level", "what auto said", "fresh", "outcome"]
    rows = [
        [
            each["task"],
            each["level"] or "-",
            each["said"].removeprefix("difficulty: auto: "),
            "{} of {}".format(*each["fresh"]),
            each["outcome"],
        ]
        for each in found
    ]
    changed = [each["task"] for each in scorers if each["changed"]]
    fewer = [f"{each['task']} ({each['rows']})" for each in scorers if each["rows"] < asked_rows]
    errors = sum(each["errors"] for each in scorers)
    notes = [
        f"Auto said of {sum(each['in_band'] for each in found)} of {len(found)} tasks that a level"
        " is in the band: only those can show that it finds one where there is one.",
        f"{errors:,} of the {pairs:,} answers were beyond their own scorers, which raised; the"
        " reward is 0 there, which is counted as equal.",
        f"Entries that a row does not give back equal, type by type: {', '.join(changed) or 'none'}"
        f"; fewer rows within a minute: {', '.join(fewer) or 'none'}.",
    ]
    return lines, (header, rows), {"scorers": scorers, "auto": found}, notes


if __name__ == "__main__":
    main()
