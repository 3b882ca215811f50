"""reasoning-gym's procedural tasks, each with its own scorer: `reasoning_gym/NAME`, or
`reasoning_gym/NAME@LEVEL`. Needs the extra `tasks`.

Its curricula say what a level is: 0 is the easiest, and a level holds its own difficulty, not the
easier ones (of five tasks it does). Without a level a task has its library's default settings. A
hash of the question decides whether it is held out: one that is held out at one level is not
trained on at another.

Some of the library's scorers call eval() on what the policy wrote: they run in the worker process,
with a deadline, which is no sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import numbers
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.base.errors import TaskError, nearest
from workbench.base.kinds import Fields
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.data.sources import Source
from workbench.data.split import split
from workbench.instruments.games import GYM
from workbench.rewards.answers import answer_like, completion_text, find_answer
from workbench.rewards.library import Column, Scores, max_score, strict_format_reward
from workbench.task import Row, Task

QUESTIONS = 1200
PERCENT = 20  # held out
_FEWEST = 20
# Here one question takes a hundredth of a second to a second: fewer of them.
_FEWER = 300
_SLOW = frozenset(
    {"arc_agi", "codeio", "intermediate_integration", "jugs", "knight_swap", "puzzle24", "sudoku"}
    | {"word_ladder"}
)
# Whose generators find nothing, or search for minutes, unless a level holds the easier ones, too.
_WITH_EASIER = frozenset({"futoshiki", "letter_jumble", "puzzle24", "sokoban", "spell_backward"})
# Whose questions are made by running programs, some of which write files where they stand.
_RUNS_PROGRAMS = frozenset({"codeio"})
# Draws per question that is wanted, and errors before the first one, until there are no more.
_DRAWS, _ERRORS = 4, 100
_LONGEST_S = 0.7  # for each question that is asked for
_KINDS: Fields = {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}


class GymName(NamedTuple):
    """A task's name in the library, and its level; None: the library's default settings."""

    task: str
    level: int | None

    def __str__(self) -> str:
        at = "" if self.level is None else f"@{self.level}"
        return f"{GYM}{self.task}{at}"


def _library() -> Any:
    try:
        importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TaskError(
            f"task {GYM}...: reasoning-gym is not installed",
            rule="its tasks come with the extra `tasks`",
            remedy="`pip install reasoning-gym==0.1.25`, or `uv sync --extra tasks`",
        ) from error
    return importlib.import_module("reasoning_gym.factory")


def names() -> list[str]:
    """All tasks of the installed library."""
    return sorted(name for name in _library().DATASETS if name != "composite")


def parsed(text: str) -> GymName:
    """What a task's name stands for; TaskError for an unknown task or level."""
    name, _, level = text.removeprefix(GYM).partition("@")
    if name not in names():
        raise TaskError(
            f"task {text!r}: reasoning-gym has no {name!r}",
            rule=f"{GYM}NAME, with one of its {len(names())} names",
            remedy=nearest(name, names(), f"for example {', '.join(names()[5:12])}"),
        )
    if "@" not in text:
        return GymName(name, None)
    known = levels(name)
    if not level.isdecimal() or int(level) not in known:
        remedy = f"leave @{level} out"
        if known:
            remedy = f"{GYM}{name}@{known[0]} to @{known[-1]}; `difficulty: auto` finds one"
        raise TaskError(
            f"task {text!r}: level {level!r}",
            rule=f"{name} has {len(known)} levels of difficulty"
            if known
            else f"{name} has one level",
            remedy=remedy,
        )
    return GymName(name, int(level))


@functools.cache
def levels(name: str) -> tuple[int, ...]:
    """The levels of a task's curriculum, the easiest first; empty: it has one difficulty."""
    library = _library()
    if not library.has_curriculum(name):
        return ()
    attributes = library.create_curriculum(name).attributes.values()
    top = max((len(attribute.levels) for attribute in attributes), default=0)
    valid = []
    for level in range(top):
        # some are beyond what the task itself can make
        with contextlib.suppress(AssertionError, ValueError):
            getattr(_config(GymName(name, level)), "validate", bool)()
            valid.append(level)
    return tuple(valid) if len(valid) > 1 else ()


def _config(named: GymName, seed: int = 0, size: int = 500) -> Any:
    library, given = _library(), {"seed": seed, "size": size}
    if named.level is None:
        return library.DATASETS[named.task][1](**given)
    coaching = importlib.import_module("reasoning_gym.coaching.base_curriculum")
    curriculum = library.create_curriculum(named.task)
    curriculum.set_global_level(named.level)
    modes = coaching.RangeAttributeMode
    mode = modes.INCLUSIVE if named.task in _WITH_EASIER else modes.UPPER_BOUND
    return curriculum.generate_configuration(given, coaching.DefaultCurriculumContext(mode))


@functools.lru_cache(maxsize=16)
def dataset(named: GymName, seed: int = 0, size: int = 500) -> Any:
    """The library's dataset: `dataset[index]` is an entry, `score_answer(answer, entry)` scores."""
    return _library().DATASETS[named.task][0](_config(named, seed, size))


@functools.lru_cache(maxsize=64)
def _questions(named: GymName, count: int, seed: int) -> tuple[Row, ...]:
    # Different questions; fewer than `count` where the task has no more.
    rows: dict[str, Row] = {}
    failure: Exception | None = None
    began = time.monotonic()
    with _apart(named):
        made = dataset(named, seed, _DRAWS * count)
        for index in range(_DRAWS * count):
            random.seed(seed + index)
            np.random.seed((seed + index) % 2**32)
            try:
                row = _row(named, made[index])
                rows.setdefault(row["question"], row)
            except Exception as error:  # it found no question for this number
                failure = error
            spent_s, longest_s = time.monotonic() - began, _LONGEST_S * count
            none = failure is not None and index > _ERRORS and not rows
            if none or spent_s > longest_s:
                why = f" ({type(failure).__name__}: {failure})" if failure else ""
                raise TaskError(
                    f"task {str(named)!r}: {len(rows)} questions in {spent_s:.0f} s{why}",
                    rule=f"reasoning-gym makes {count} of them within {longest_s:.0f} s",
                    remedy="choose an easier level, or another task",
                )
            if len(rows) == count:
                break
    return tuple(rows.values())


@contextlib.contextmanager
def _apart(named: GymName) -> Generator[None]:
    # Some generators draw from the global random state, which is given back, some print, and some
    # write files: in an empty folder, which goes with what was written there.
    before, theirs = random.getstate(), np.random.get_state()
    with contextlib.ExitStack() as entered:
        entered.callback(np.random.set_state, theirs)
        entered.callback(random.setstate, before)
        entered.enter_context(contextlib.redirect_stdout(io.StringIO()))
        entered.enter_context(warnings.catch_warnings(action="ignore"))
        if named.task in _RUNS_PROGRAMS:
            folder = entered.enter_context(tempfile.TemporaryDirectory())
            entered.enter_context(contextlib.chdir(folder))
        yield


def _row(named: GymName, entry: Fields) -> Row:
    answer = entry["answer"]
    return {
        "question": entry["question"],
        "answer": "" if answer is None else str(answer),
        "entry": entry_text(named, entry),
    }


def entry_text(named: GymName, entry: Fields) -> str:
    """An entry as JSON text that `entry_of` turns back into the same objects: tuples, sets and keys
    that are no text too, which a column of a table would change.
    """
    return json.dumps({"task": str(named), "entry": _plain(entry)}, ensure_ascii=False)


def entry_of(text: str) -> tuple[GymName, Fields]:
    """What `entry_text` was given."""
    content = json.loads(text)
    name, _, level = content["task"].removeprefix(GYM).partition("@")
    return GymName(name, int(level) if level else None), _whole(content["entry"])


def _plain(value: Any) -> Any:
    kind: type = type(value)
    if kind is dict and all(type(key) is str and key[:1] != "$" for key in value):
        return {key: _plain(each) for key, each in value.items()}
    if kind is dict:
        return {"$dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if kind is list:
        return [*map(_plain, value)]
    if kind in _KINDS.values():
        # of a set in an order that is the same in every process
        items = value if kind is tuple else sorted(value, key=repr)
        return {f"${kind.__name__}": [*map(_plain, items)]}
    if kind.__module__ == "datetime":
        return {f"${kind.__name__}": value.isoformat()}
    if isinstance(value, str) or value is None or kind is bool:
        return value
    if isinstance(value, numbers.Integral):  # numpy's and sympy's, too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TaskError(
        f"an entry holds a {kind.__module__}.{kind.__qualname__}",
        rule="a row is kept as JSON",
        remedy="this task of reasoning-gym cannot be used",
    )


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_whole, value)]
    if not isinstance(value, dict) or not value:
        return value
    kind, *more = value
    if more or kind[:1] != "$":
        return {key: _whole(each) for key, each in value.items()}
    content = value[kind]
    if isinstance(content, str):
        return getattr(importlib.import_module("datetime"), kind[1:]).fromisoformat(content)
    return _KINDS[kind[1:]](map(_whole, content))


def answer_in(text: str, right: str) -> str | None:
    """What a completion answers: the `<answer>` block, else what reads like an answer such as the
    right one; where that has several lines or is not known, the whole text.
    """
    if tagged := find_answer(text, "tag"):
        return tagged
    return answer_like(text, right) if right and "\n" not in right else text.strip()


@max_score(1.0)
def score_reward(
    completions: Column, answer: Column, entry: Sequence[str], **kwargs: object
) -> Scores:
    """What reasoning-gym's own scorer pays for the answer, 0 to 1; below 1 is partial credit.

    Some scorers fail on an answer that nobody foresaw. It earns 0 where the same scorer takes the
    right answer; else the error is raised.
    """
    return [
        _score(answer_in(completion_text(completion), str(right)), *entry_of(text))
        for completion, right, text in zip(completions, answer, entry, strict=True)
    ]


# Some scorers eval() the answer: in a process that can be ended, though not in a sandbox.
vars(score_reward)["runs_in_worker"] = True


def _score(answer: str | None, named: GymName, entry: Fields) -> float:
    scorer = dataset(named)
    try:
        return float(scorer.score_answer(answer, entry))
    except Exception:
        if not _takes_right(scorer, entry):
            raise
        return 0.0


def _takes_right(scorer: Any, entry: Fields) -> bool:
    with contextlib.suppress(Exception):
        scorer.score_answer(entry["answer"], entry)
        return True
    return False


def source(name: str, limit: int | None = None, seed: int = 0) -> Source:
    """A task's questions: columns `question`, `answer` and `entry`, what its scorer needs."""
    named = parsed(name)
    count = _FEWER if named.task in _SLOW else QUESTIONS
    return Source(str(named), lambda: iter(_questions(named, limit or count, seed)), salt=GYM)


def task(name: str, seed: int = 0, questions: int | None = None) -> Task:
    """A task by its name, a fifth of its questions held out; `questions` None: as many as are
    usual. TaskError: it has fewer than 20.
    """
    questions_of = source(name, questions, seed)
    asked = questions_of.first(sys.maxsize)
    if len(asked) < _FEWEST:
        raise TaskError(
            f"task {name!r}: {len(asked)} different questions",
            rule=f"training and held-out rows take at least {_FEWEST}",
            remedy="choose a harder level, or another task",
        )
    rows = [
        {
            "prompt": to_messages(row["question"], SYSTEM_PROMPT),
            "answer": row["answer"],
            "entry": row["entry"],
        }
        for row in asked
    ]
    halves = split(rows, PERCENT, source=questions_of)
    return Task(
        str(parsed(name)),
        halves.train,
        (score_reward, strict_format_reward),
        held_out=halves.held_out,
        right_by=("score_reward", 1.0),
        format_by="strict_format_reward",
    )
