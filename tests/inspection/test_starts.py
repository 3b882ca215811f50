"""Fair starts: three kinds of environments told apart, in an audit and in a record."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass, field
from decimal import Decimal

import commanding
import numpy as np
import pytest
from playing_models import Game, row_of
from starting import MESSAGES, TASK, Drawn, Entropic, Fixed, Locked, Seeded, task_of

from workbench.audit.examination import audit_rewards
from workbench.audit.starts import start_findings
from workbench.base.environments import checked_tools, copies, started, where_they_part
from workbench.base.errors import TaskError
from workbench.health.rules.turns import unequal_starts
from workbench.health.summary import summarise
from workbench.health.verdicts import NOTE, OK, WARNING, ExaminedRun, RunConfig
from workbench.rewards.groups import batch_of
from workbench.run.turns import POLICY, TOOL, ToolCall, Turn
from workbench.task import Task
from workbench.training.transcribing import NOT_READ

# --- three kinds of environments --------------------------------------------------------------------------------
SAME_WORDS = "the members of the latest 24 groups begin with the same words"
KINDS = [(Fixed, "starts"), (Seeded, "starts"), (Drawn, "starts.unequal"), (Entropic, "starts.unequal")]
SAID = {"starts": "begins in the same state, as far as", "starts.unequal": "different states: secret differs: "}


@pytest.mark.parametrize(("kind", "rule"), KINDS)
def test_three_kinds_are_told_apart_by_their_starts_in_20_of_20(kind, rule):
    task = task_of(kind)
    for repeat in range(20):
        [found] = start_findings(task, task.rows[repeat % 8 :])
        assert SAID[rule] in found.text
        assert found.severity == ("note" if rule == "starts" else "warning")


# --- starts, compared -------------------------------------------------------------------------------------------
@dataclass
class Board:
    """A state in another object."""

    cells: dict = field(default_factory=lambda: {"a": [0, random.random()]})


class Nested(Fixed):
    def reset(self, **row):
        self.board = Board()


class Told(Fixed):
    def reset(self, **row):
        return f" The number lies between 1 and {random.randrange(10**9)}, so guess."


class Reseeded(Fixed):
    def reset(self, seed=0, **row):
        self.secret = random.random()


class Later(Fixed):
    def reset(self, **row):
        self.chance = random.Random()


class Refusing(Fixed):
    def reset(self, **row):
        raise KeyError("board")


class Slotted:
    __slots__ = ("secret",)


class Slots(Fixed):
    def reset(self, **row):
        self.board = Slotted()
        self.board.secret = random.random()


class Dict(dict):
    """Equal to another where the items are, whatever its attributes."""


class Attributes(Fixed):
    def reset(self, **row):
        self.board = Dict(a=1)
        self.board.secret = random.random()


class Plain:
    def __init__(self, same):
        # Two of one, or one twice: pickles differ, and nothing else does.
        self.words = ["".join("ab")] * 2 if same else ["".join("ab"), "".join("ab")]


class Array(Fixed):
    made = 0

    def reset(self, level=5, **row):
        self.board, self.twice, self.call = np.arange(level), [np.zeros(2), math.nan], lambda: level
        Array.made += 1
        self.plain = Plain(Array.made % 2)


@pytest.mark.parametrize(
    ("kind", "kind_of", "words"),
    [
        (Nested, "warning", "board.cells['a'][1] differs: 0."),
        (Told, "warning", "what reset returns differs: The number lies between 1 and "),
        (Reseeded, "warning", "different states: secret differs: 0."),
        (Slots, "warning", "board.secret differs: 0."),
        (Attributes, "warning", "board.secret differs: 0."),
        (Later, "warning", "different states: chance differs"),
        (Locked, "note", "cannot be told whether each member of a group begins in the same state: lock cannot be compared"),
        (Refusing, "error", "reset raises KeyError: 'board', on the prompt"),
        (Array, "note", "each member of a group begins in the same state"),
    ],
)
def test_what_differs_is_named(kind, kind_of, words):
    before = random.getstate(), np.random.get_state()[1].tolist()
    [found] = start_findings(task_of(kind), task_of(kind).rows[:3])
    assert (found.kind, found.severity) == ("starts", kind_of)
    assert words in found.text
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_task_without_an_environment_has_no_starts_and_a_late_one_is_cut():
    assert [*start_findings(Task("t", [row_of(1)], [lambda completions, **_: [1.0]]), [row_of(1)])] == []
    [found] = start_findings(task_of(Fixed), task_of(Fixed).rows, deadline_s=0)
    assert "8 starts of each of 1 prompts" in found.text


class Lost(Fixed):
    def get_reward(self):
        raise AttributeError("last")


class Worded(Fixed):
    def get_reward(self):
        return "won"


class Exact(Fixed):
    def get_reward(self):
        return Decimal("0.5")


class Arrayed(Fixed):
    def get_reward(self):
        return np.array(1.0)


class Tensor(Fixed):
    def get_reward(self):
        import torch

        return torch.tensor(1.0)


class Undefined(Fixed):
    def get_reward(self):
        return math.nan


class Endless(Fixed):
    def get_reward(self):
        return math.inf


class Ending(Fixed):
    def get_reward(self):
        raise SystemExit(3)


class Sleeping(Fixed):
    def get_reward(self):
        time.sleep(60)


class EndingAtOnce(Fixed):
    def reset(self, **row):
        raise SystemExit(3)


class SleepingAtOnce(Fixed):
    def reset(self, **row):
        time.sleep(60)


class Unplayed(Fixed):
    def get_reward(self):
        self.secret += 1  # in what is asked for its reward, and in no other start


class Untyped(Fixed):
    def open(self, lid):
        """Open it."""


@pytest.mark.parametrize(
    ("kind", "severity", "words"),
    [
        (Lost, "error", "get_reward raised AttributeError: last"),
        (Worded, "error", "get_reward returned 'won'"),
        (Exact, "note", "each member of a group begins in the same state"),
        (Arrayed, "note", "each member of a group begins in the same state"),
        (Tensor, "note", "each member of a group begins in the same state"),
        (Undefined, "error", "get_reward returned nan"),
        (Endless, "error", "get_reward returned inf"),
        (Ending, "error", "SystemExit: 3"),
        (Sleeping, "error", "get_reward raised TimeoutError: was not back after 0.5 s"),
        (EndingAtOnce, "error", "SystemExit: 3"),
        (SleepingAtOnce, "error", "was not back after 0.5 s"),
        (Unplayed, "note", "each member of a group begins in the same state"),
        (Untyped, "error", "the tool open: "),
    ],
)
def test_tools_that_cannot_be_told_and_rewards_that_training_would_stop_at_are_named(kind, severity, words, capsys):
    found = next(start_findings(task_of(kind), task_of(kind).rows[:2], deadline_s=0.5))
    assert found.severity == severity
    assert words in found.text
    assert capsys.readouterr().out == "", "the finding says it"


def fine(a: int, b: str = "") -> str:
    """Do it.

    Args:
        a: the first,
            in two lines
        b: the second

    Returns:
        what was done
    """


def bare() -> str:
    """Do it."""


def silent(a: int) -> str:
    pass


def untyped(a) -> str:
    """Do it.

    Args:
        a: the first
    """


def undescribed(a: int) -> str:
    """Do it with a: the first."""


def of_a_strange_type(a: Nowhere) -> str:  # noqa: F821
    """Do it.

    Args:
        a: the first
    """


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        (fine, ""),
        (bare, ""),
        (silent, "no docstring"),
        (untyped, "its parameter a has no type"),
        (undescribed, "no line on a under `Args:`"),
        (of_a_strange_type, "name 'Nowhere' is not defined"),
    ],
)
def test_a_tool_that_transformers_would_refuse_is_refused_without_it(tool, why):
    from transformers.utils import get_json_schema

    if not why:
        assert checked_tools([tool], None) == {None: [tool]}
        assert get_json_schema(tool)["function"]["name"] == tool.__name__
        return
    with pytest.raises(TaskError) as caught:
        checked_tools([tool], None)
    assert why in caught.value.value
    with pytest.raises(Exception):  # noqa: B017, PT011
        get_json_schema(tool)


def test_each_environment_of_a_dict_is_reset_for_its_rows():
    rows = [{"prompt": MESSAGES, "environment": name, "level": 3} for name in ("one", "other")]
    task = Task("game", rows, [], environment={"one": Fixed, "other": Drawn})
    assert started(task.environment, rows[0], 7).environment.secret == 3
    [found] = start_findings(task, rows)
    assert "secret differs" in found.text
    assert "2 prompts" in next(start_findings(task, [rows[0], rows[0]])).text
    [found] = start_findings(task, [{"prompt": MESSAGES, "environment": "third"}])
    assert "KeyError: 'third'" in found.text


def test_the_words_around_the_first_difference():
    assert where_they_part("a" * 50 + "b" + "c" * 50, "a" * 50 + "d") == ("a" * 30 + "b" + "c" * 29, "a" * 30 + "d")
    assert where_they_part("", "x") == ("", "x")


# --- copies -----------------------------------------------------------------------------------------------------
def test_copies_go_on_alone_from_one_start():
    begun = started(Game, row_of(2), 5)
    assert (begun.environment.seed, begun.row["seed"]) == (5, 5)
    first, second = copies(begun, 2, "game")
    assert first.reset(secret=9) == " Go."
    first.guess(2)
    assert (first.guesses, second.guesses, begun.environment.guesses) == ([2], [], [])
    assert type(second) is Game


def test_an_environment_that_cannot_be_copied_is_named():
    with pytest.raises(TaskError, match="Locked cannot be split: TypeError: cannot pickle '_thread.lock' object"):
        copies(started(Locked, row_of(1), 0), 2, "game")


# --- in a record ------------------------------------------------------------------------------------------------
def turns_of_guess(answer, number=5):
    return [Turn(POLICY, "", 4, True, (ToolCall("guess", {"number": number}, answer),)), Turn(TOOL, answer, 1, False)]


def batch_with(prompts=("Go.",) * 4, answers=("no",) * 4, numbers=(5,) * 4):
    turns = [turns_of_guess(*own) for own in zip(answers, numbers, strict=True)] * 8
    messages = [[{"role": "user", "content": text}] for text in prompts] * 8
    scores = [[1.0], [0.0]] * 16
    return summarise(batch_of(["Game"], [1.0], scores, ["x"] * 32, [True, False] * 16, 4, prompts=messages, turns=turns))


def verdicts(*batches, environment=True):
    return unequal_starts(ExaminedRun([*batches], [], RunConfig(environment=environment)))


def test_a_record_shows_groups_that_begin_with_different_words():
    fair = batch_with()
    [found] = verdicts(fair, fair, fair)
    assert (found.state, found.line) == (OK, f"{SAME_WORDS}; in 24 the same first call gets the same answer")
    [found] = verdicts(fair, fair, batch_with(["From 1 to 7.", "From 1 to 7.", "From 1 to 9.", "From 1 to 7."]))
    assert (found.state, found.evidence["share"]) == (WARNING, 1 / 3)
    assert found.line == "33 % of the latest 24 groups begin with different words: From 1 to 7. / From 1 to 9."
    assert verdicts(fair, fair, fair, environment=False) == []
    plain = batch_of(["f"], [1.0], np.ones((32, 1)), ["x"] * 32, [True] * 32, 4)
    assert verdicts(*[summarise(plain)] * 3) == []


def test_a_record_shows_first_calls_that_are_answered_differently():
    unlike = batch_with(answers=("no", "yes", "no", "no"))
    [found] = verdicts(unlike, unlike, unlike)
    assert (found.state, found.evidence["example"]) == (NOTE, ['guess({"number": 5})', "no", "yes"])
    cut = [[Turn(POLICY, "", 4, True, (ToolCall("guess", {"number": 5}, None, NOT_READ),))]] * 2 + [turns_of_guess("no")] * 2
    cut = summarise(batch_of(["Game"], [1.0], np.eye(32)[:, :1], ["x"] * 32, [True] * 32, 4, turns=cut * 8))
    assert verdicts(cut, cut, cut)[0].state == OK
    other = batch_with(answers=("no", "yes", "so", "ah"), numbers=(1, 2, 3, 4))  # no two made the same call
    assert verdicts(other, other, other)[0].state == OK


def test_50_groups_that_begin_alike_raise_no_alarm():
    chance = random.Random(0)
    for _ in range(50):
        numbers = [chance.randint(1, 9) for _ in range(4)]
        batches = [batch_with([f"Go {n}."] * 4, [str(own > n) for own in numbers], numbers) for n in range(5)]
        assert [own.state for own in verdicts(*batches)] == [OK]


def test_probe_says_how_a_group_begins(home):
    (home / "guess.py").write_text(TASK)
    told = commanding.workbench("probe", "guess.py", "--json", home=home)
    assert told.returncode == 0, told.stderr
    findings = json.loads(told.stdout)["findings"]
    [starts] = [own for own in findings if own["kind"] == "starts"]
    assert "secret differs" in starts["text"]
    assert "random.Random(seed)" in starts["remedy"]
    assert "constant" not in {own["kind"] for own in findings}
    refused = commanding.workbench("probe", "guess.py", "--rollouts", "2", home=home)
    assert refused.returncode == 2
    assert "--rollouts without --policy" in refused.stderr


def test_an_audit_of_one_turn_says_nothing_of_starts():
    assert not [own for own in audit_rewards("arithmetic", rows=1).findings if own.kind == "starts"]
