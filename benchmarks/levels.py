"""reasoning-gym's tasks: do they score as their library does, and does `difficulty: auto` find a
level that the policy solves some of the time?

    uv run python benchmarks/levels.py [--policy smollm2]    # with the extras tasks and smollm2
    uv run python benchmarks/levels.py --policy tiny --taught 20 --home FOLDER

Scorers: the library's scorer is called directly with the library's entry, and by the workbench with
what a row kept, on answers right, wrong and broken. Equal scores prove that an entry survives the
row's JSON and that the scorer is called as its library would; not that it is right: it is the same
code on both sides.

Auto: the level that it chose is measured again, with fresh completions of held-out questions. Said
to be in the band, it has landed where at least half of the fresh 95 % interval lies in the band.
Where auto said that no level is, that is honest where at least half of the interval lies outside,
for the level that it called nearest: the others are not measured again. Else auto is contradicted;
without fresh completions it is not measured.

Taught: no policy here solves many of these tasks, so the policy (tiny) is taught first, each task
from the start and alone: a warm start on reference completions of the easiest level that has
enough questions, the same for every task. Which tasks count: those with levels and short answers,
by alphabet, first the ones with short prompts, then the others, until --taught of them have a level
that is known to be in the band. Known: of up to 180 completions of held-out questions the whole
95 % interval lies in it; levels are tried from the easiest until one does or is solved less often
than the band. Then auto is asked, of questions that were not taught at that level, and its level is
measured with 60 held-out questions that neither saw. It has landed, is contradicted, or has missed,
saying that no level is in the band. Tasks that were taught and have no such level are in the table,
those that could not be taught in a note.

Results are kept task by task in --home, each with its commit, so that it can be interrupted; the
command that is recorded is the last one's.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import os
import random
import re
import signal
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

FRESH = 60  # completions of the second measurement
OUTCOMES = ("landed", "honestly none", "contradicted", "not measured")
OF_TAUGHT = ("landed", "missed", "contradicted", "not measured")
TOKENS = 32
# Tasks whose prompts fit into so many tokens are taught first, then those that fit into more. Of a
# level so many questions are made, by that, from a seed of their own, as longer ones take longer;
# first a few: none may fit.
PROMPTS = (200, 440)
TEACHES, QUESTIONS, FEW = 9001, {200: 250, 440: 180}, 40
LEAST = 100  # questions to teach, and completions that say how often a level is solved
LARGER = 180  # such completions at most
FIRST = 3  # levels that may be taught
SHORT = 5  # tokens of a reference completion, at the median
EPOCHS, RATE, RANK = 3, 6e-3, 32
LONGEST_S = 150  # of the processor's time, of a task


class OutOfTimeError(BaseException):
    """A task took longer than it may. No Exception: the library's questions are made under an
    `except` for those.
    """


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise where the block takes longer, in the time of the processor: a busy machine changes no
    outcome.
    """

    def ring(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


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
    from workbench.instruments.games import gym
    from workbench.rewards.answers import find_answer

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
    from workbench.instruments.games.levels import BAND

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
    from workbench.instruments.games.levels import find_level, fitting
    from workbench.tasks.loading import load_task

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


def lesson(name: str, policy: Any, recipe: Any) -> Any:
    """The task that is taught: the easiest of its first levels with enough rows that auto may not
    ask, with their reference completions. TaskError: there is none, or its answers are long.
    """
    from workbench.base.errors import TaskError
    from workbench.instruments.games import gym
    from workbench.instruments.games.levels import fitting

    def length(row: dict[str, Any]) -> int:
        return len(policy.tokenizer(written(row))["input_ids"])

    def teachable(task: Any) -> list[dict[str, Any]]:
        rows = fitting(task.rows, policy.tokenizer, recipe, TOKENS)
        return [row for row in rows if right(row) and length(row) < TOKENS]

    why, many = "", QUESTIONS[recipe.max_prompt_length]
    for level in gym.levels(name)[:FIRST]:
        named = str(gym.GymName(name, level))
        try:
            some = teachable(gym.task(named, TEACHES, FEW))
            if not some:
                why = why or "no prompts and answers that fit"
                break
            if (typical := statistics.median(map(length, some))) > SHORT:
                why = why or f"answers of {typical:.0f} tokens"
                break
            task = gym.task(named, TEACHES, many)
            asked = questions(name, level)
        except TaskError as error:
            why = why or error.value
            continue
        rows = [row for row in teachable(task) if question(row) not in asked]
        if len(rows) >= LEAST:
            return dataclasses.replace(task, rows=rows, held_out=(), ideal=written)
        why = why or f"{len(rows)} questions to teach"
    raise TaskError(why, rule=f"{LEAST} questions with short answers are taught", remedy="-")


def teach(name: str, recipe: Any) -> dict[str, Any]:
    """One task: the run that taught it to a policy, and how often its levels are solved then; or
    why it could not be taught.
    """
    from workbench.base.errors import WorkbenchError
    from workbench.training.policy import load_policy
    from workbench.training.trainer import train

    found: dict[str, Any] = {"task": name, "taught": 0, "known": None, "tried": [], "said": ""}
    try:
        with within(LONGEST_S), contextlib.redirect_stdout(io.StringIO()):
            policy = load_policy(recipe)
            task = lesson(name, policy, recipe)
            warm = {"source": "reference", "samples": len(task.rows)}
            content = recipe.model_dump(exclude_unset=True) | {
                "run_name": f"taught_{name}",
                "warm_start": {**warm, "epochs": EPOCHS, "learning_rate": RATE},
            }
            # a run has at least one step: so small a rate leaves what was taught as it is
            content["grpo"] |= {"max_steps": 1, "learning_rate": 1e-9}
            content["grpo"] |= {"num_generations": 4, "per_device_train_batch_size": 8}
            run = train(type(recipe).of(content), policy=policy, task=task)
            found |= {"taught": len(task.rows), "run": run.name}
            found["known"], found["tried"] = known(name, policy, recipe)
    except OutOfTimeError:
        found |= {"known": None, "said": f"took more than {LONGEST_S} s of processor time"}
    except WorkbenchError as error:
        found |= {"known": None, "said": error.value}
    return found


def questions(name: str, level: int) -> set[str]:
    """What auto may ask of a level."""
    from workbench.instruments.games import gym
    from workbench.instruments.games.levels import _QUESTIONS

    named = str(gym.GymName(name, level))
    return {question(row) for row in gym.task(named, questions=_QUESTIONS).rows}


def question(row: dict[str, Any]) -> str:
    """What a row asks."""
    return row["prompt"][-1]["content"]


def written(row: dict[str, Any]) -> str:
    """A row's reference completion."""
    return f"<answer>{row['answer']}</answer>"


def right(row: dict[str, Any]) -> bool:
    """Whether the reference completion of a row is right."""
    from workbench.instruments.games import gym

    columns = {"answer": [row["answer"]], "entry": [row["entry"]]}
    return gym.score_reward([written(row)], **columns) == [1.0]


def known(name: str, policy: Any, recipe: Any) -> tuple[int | None, list[list[int]]]:
    """The easiest level that is known to be in the band, if there is one, and (level, right,
    completions) of each that was tried.
    """
    from workbench.base.errors import TaskError
    from workbench.health.trends import Z_95, share
    from workbench.inspection.evaluation import measure_policy
    from workbench.instruments.games import gym
    from workbench.instruments.games.levels import BAND, fitting
    from workbench.tasks.loading import load_task

    tried: list[list[int]] = []
    for level in gym.levels(name):
        try:
            task = load_task(str(gym.GymName(name, level)))
        except TaskError:
            continue
        rows = fitting(task.held_out, policy.tokenizer, recipe, TOKENS)[FRESH : FRESH + LARGER]
        if len(rows) < LEAST:
            continue
        how = {"max_completion_length": TOKENS, "seed": 2000}
        measured = measure_policy(policy, task, rows, samples=1, batch_size=32, **how)
        tried.append([level, int(measured.lenient.sum()), len(rows)])
        rate = share(*tried[-1][1:], Z_95)
        if BAND[0] <= rate.low and rate.high <= BAND[1]:
            return level, tried
        if rate.high < BAND[0]:
            break
    return None, tried


def auto_of_taught(each: dict[str, Any], recipe: Any) -> dict[str, Any]:
    """One task that was taught: as `auto`, and how many of the questions of the levels that auto
    looked at had been taught.
    """
    from workbench.run.directory import open_run
    from workbench.training.policy import load_policy

    name = each["task"]
    policy = load_policy(recipe, adapter=open_run(each["run"]).adapter)
    policy.trained_in = [each["run"]]  # auto keeps what it measures by that
    found = auto(name, policy, recipe)
    seen = {question(row) for row in lesson(name, policy, recipe).rows}
    looked_at = map(int, re.findall(r"level (\d+) solved", found["said"]))
    asked = [text for level in looked_at for text in questions(name, level)]
    return found | {"seen": [sum(text in seen for text in asked), len(asked)]}


def outcome_of_taught(each: dict[str, Any]) -> str:
    """One of `OF_TAUGHT`, or "-" where no level is known to be in the band."""
    if each["known"] is None:
        return "-"
    if "fresh" not in each:
        return "not measured"
    return outcome(True, *each["fresh"]) if each["in_band"] else "missed"


def kept(
    file: Path,
    names: list[str],
    measure: Callable[[str], dict[str, Any]],
    minutes: float,
    enough: Callable[[list[dict[str, Any]]], bool] = lambda found: False,
) -> list[dict[str, Any]]:
    """The results by task: those in the file, and those that are missing, until time is up or there
    are enough.
    """
    from workbench.base.workspace import append_line, read_lines

    before = {line["task"]: line for line in read_lines(file)}
    until, commit = time.monotonic() + 60 * minutes, measuring.stamp()["versions"]["commit"]
    found: list[dict[str, Any]] = []
    for name in names:
        if enough(found):
            break
        if name not in before:
            if time.monotonic() > until:
                continue
            before[name] = measure(name) | {"commit": commit}
            measuring.say(str(before[name]))
            append_line(file, before[name])
        found.append(before[name])
    return found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--policy", default="smollm2", help="which policy auto measures")
    parser.add_argument("--rows", type=int, default=50, help="rows of each task to score")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument(
        "--taught",
        type=int,
        help="only tasks that the policy is taught, until so many count",
    )
    parser.add_argument("--home", type=Path, help="where results are kept meanwhile")
    asked = measuring.parse(parser, rows=2, minutes=1, policy="tiny")
    stamped = measuring.stamp()
    warnings.simplefilter("ignore")
    with contextlib.ExitStack() as entered:
        home = asked.home or entered.enter_context(measuring.empty_home())
        home.mkdir(parents=True, exist_ok=True)
        os.environ["WORKBENCH_HOME"] = str(home)
        from workbench.instruments.games import gym
        from workbench.recipe import Recipe
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
        # where it is taught, of the untaught one only what is kept
        minutes = 0 if asked.taught else asked.minutes
        found = kept(file, tasks, lambda name: auto(name, policy, recipe), minutes)
        of_taught = []
        if asked.taught:
            names = ["letter_counting"] if asked.quick else [*filter(gym.levels, names)]
            of_taught = of_all_taught(home, names, recipe, asked.taught, asked.minutes)
    del asked.home
    content = {"scorers": of_tasks, "auto": found, "taught": of_taught}
    measuring.save("levels", asked, stamped, *report(asked.policy, asked.rows, **content))


def of_all_taught(
    home: Path, names: list[str], recipe: Any, wanted: int, minutes: float
) -> list[dict[str, Any]]:
    """The tasks that were taught until so many have a level in the band, and what auto said of
    those.
    """

    def count(found: list[dict[str, Any]]) -> int:
        return sum(each["known"] is not None for each in found)

    taught: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []
    for longest in PROMPTS:
        # its head, too: it has hardly seen the tokens of most words
        lora = {"r": RANK, "lora_alpha": RANK}
        lora["target_modules"] = [*recipe.lora.target_modules, "lm_head"]
        part = {"lora": lora, "max_prompt_length": longest}
        own = type(recipe).of(recipe.model_dump(exclude_unset=True) | part)
        before = count(taught)
        found = kept(
            home / f"taught-{longest}.jsonl",
            names,
            lambda name, own=own: teach(name, own),
            minutes,
            lambda found, before=before: before + count(found) >= wanted,
        )
        counts = {each["task"]: each for each in found if each["known"] is not None}
        asked += kept(
            home / f"auto-taught-{longest}.jsonl",
            [*counts],
            lambda name, counts=counts, own=own: auto_of_taught(counts[name], own),
            minutes,
        )
        by_name = {each["task"]: each for each in (*taught, *found)}
        taught = list(by_name.values())
        names = [each["task"] for each in found if not each["taught"]]
    by_task = {each["task"]: each for each in asked}
    for each in taught:
        if of_auto := by_task.get(each["task"]):
            each |= {**of_auto, "commit": each["commit"], "commit_of_auto": of_auto["commit"]}
    return sorted(taught, key=lambda each: each["task"])


def report(
    policy: str,
    asked_rows: int,
    scorers: list[dict[str, Any]],
    auto: list[dict[str, Any]],
    taught: list[dict[str, Any]],
) -> tuple[list[Line], tuple[list[str], list[list[str]]], dict[str, Any], list[str]]:
    """Lines, table, numbers and notes of a result, from what was kept of each task."""
    found = [each | {"outcome": outcome(each["in_band"], *each["fresh"])} for each in auto]
    of_taught = [each | {"outcome": outcome_of_taught(each)} for each in taught]
    pairs, differ = (sum(each[key] for each in scorers) for key in ("pairs", "differ"))
    lines = [
        Line(
            f"reasoning-gym's scores through a row, {len(scorers)} tasks x {asked_rows} rows",
            f"{pairs - differ:,} of {pairs:,} equal",
            "the same scorer, called directly",
            "none: no chance in it",
        ),
        *_lines(f"difficulty: auto, {policy}, {len(found)} tasks", found, OUTCOMES),
    ]
    counts = [each for each in of_taught if each["known"] is not None]
    what = f"difficulty: auto, {policy}, taught {len(counts)} tasks that have a level in the band"
    lines += _lines(what, counts, OF_TAUGHT)
    header = ["task", "taught", "solved, of more", "level", "what auto said", "fresh", "outcome"]
    rows = [
        [
            each["task"],
            str(each.get("taught", "-")),
            ", ".join("{}: {} of {}".format(*tried) for tried in each.get("tried", [])) or "-",
            each.get("level") or "-",
            each["said"].removeprefix("difficulty: auto: ") or "not asked",
            "{} of {}".format(*each["fresh"]) if "fresh" in each else "-",
            each["outcome"],
        ]
        for each in (*filter(lambda each: each["taught"], of_taught), *found)
    ]
    changed = [each["task"] for each in scorers if each["changed"]]
    fewer = [f"{each['task']} ({each['rows']})" for each in scorers if each["rows"] < asked_rows]
    errors = sum(each["errors"] for each in scorers)
    notes = [
        f"Untaught, auto said of {sum(each['in_band'] for each in found)} of {len(found)} tasks"
        " that a level is in the band: only those can show that it finds one where there is one.",
        f"{errors:,} of the {pairs:,} answers were beyond their own scorers, which raised; the"
        " reward is 0 there, which is counted as equal.",
        f"Entries that a row does not give back equal, type by type: {', '.join(changed) or 'none'}"
        f"; fewer rows within a minute: {', '.join(fewer) or 'none'}.",
    ]
    if counts:
        measured = [each for each in counts if "fresh" in each]
        seen, asked = (sum(each["seen"][place] for each in measured) for place in (0, 1))
        harder = sum(each["level"] != str(each["tried"][0][0]) for each in measured)
        untaught = [f"{each['task']} ({each['said']})" for each in of_taught if not each["taught"]]
        # its own name at the head of a reason says nothing more
        words = ", ".join(re.sub(r"task 'reasoning_gym/\S+': ", "", each) for each in untaught)
        notes.append(
            f"{len(of_taught) - len(untaught)} tasks were taught, {len(counts)} count; in {harder}"
            f" of those auto named a harder level than the first. Also taught were {seen:,} of the"
            f" {asked:,} questions of the levels that it looked at."
        )
        notes.append(f"Not taught: {words or 'none'}.")
    content = {"scorers": scorers, "auto": found, "taught": of_taught}
    for part, of_part in content.items():
        for key, what in (("commit", part), ("commit_of_auto", "auto of taught")):
            if commits := Counter(each[key] for each in of_part if key in each):
                notes.append(f"Measured at, {what}: {', '.join(commits)}.")
    return lines, (header, rows), content, notes


def _lines(what: str, found: list[dict[str, Any]], outcomes: tuple[str, ...]) -> list[Line]:
    counts = Counter(each["outcome"] for each in found)
    figure = ", ".join(f"{counts[each]} {each}" for each in outcomes)
    noise = "sampled: 95 % intervals in the rule"
    return [Line(what, figure, "fresh completions", noise)] if found else []


if __name__ == "__main__":
    main()
