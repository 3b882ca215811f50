"""A rollout played by hand: what a tool answers, what a policy would read, and what it earns; the panel driven by hand."""

from __future__ import annotations

import re

import pytest
from hostile import formulas, obeyed
from samples import EVIL, PRINTED

from workbench import inspection
from workbench.base.errors import TaskError
from workbench.run.turns import POLICY, TOOL
from workbench.task import Task

ASKED = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Guess."}]


class Guess:
    """A number from 1 to 10, which the seed says."""

    def reset(self, seed: int = 0, **row) -> str:
        self.secret, self.won = seed % 10 + 1, False
        return f" It is from 1 to {row.get('most', 10)}."

    def guess(self, number: int) -> str:
        """Guess it.

        Args:
            number: the guess
        """
        self.won = number == self.secret
        return "right" if self.won else "higher" if number < self.secret else "lower"

    async def late(self, word: str = "none") -> str:
        return f"late {word!r}"

    def _own(self) -> None:
        """No tool."""

    def get_reward(self) -> float:
        return float(self.won)


class Other(Guess):
    pass


def brevity_reward(completions, **columns):
    return [1.0 / len(messages) for messages in completions]


def task(environment=Guess, row=None, **more):
    return Task("g", [{"prompt": ASKED, **(row or {})}], [brevity_reward], environment=environment, **more)


@pytest.fixture
def game():
    return inspection.ByHand(task(), seed=6)


def test_a_rollout_is_what_trl_makes_of_it(game):
    assert [*game.tools] == ["guess", "late"]
    assert game.prompt == [ASKED[0], {"role": "user", "content": "Guess. It is from 1 to 10."}]
    assert ASKED[1]["content"] == "Guess."  # the row is left alone
    assert [game.call("guess", number=5), game.call("late", word="1"), game.call("guess", number=7)] == [
        "higher", "late '1'", "right"
    ]  # fmt: skip
    scored = game.say("It is 7.")
    assert scored.names == ["brevity_reward", "Guess"]
    # Of three calls, three answers and the last words.
    assert scored.scores.tolist() == [[1 / 7, 1.0]]
    assert scored.totals.tolist() == [1 + 1 / 7]
    assert [turn.author for turn in scored.turns[0]] == [POLICY, TOOL] * 3 + [POLICY]
    assert [turn.in_loss for turn in scored.turns[0]] == [True, False] * 3 + [True]
    assert "guess(number=7) -> right" in str(game)
    assert re.search(r"total +1\.14", str(game))
    with pytest.raises(TaskError, match="has ended"):
        game.call("guess", number=1)
    game.begin()
    assert game.turns == []
    assert game.call("guess", number=7) == "right"


def test_what_fails_is_what_the_policy_would_read(game):
    assert game.call("look") == "{'error': 'Tool look not found.'}"
    assert "str" in game.call("guess", number="a")
    assert "number" in game.call("guess")
    assert [turn.calls[0].error.split(":")[0] for turn in game.turns[::2]] == ["ValueError", "TypeError", "TypeError"]
    assert [turn.calls[0].result for turn in game.turns[::2]] == [None] * 3
    assert game.say("I give up").scores[0, 1] == 0.0


def test_a_row_chooses_its_environment_and_its_seed_is_its_own():
    row = {"environment": "b", "seed": 2, "most": 5}
    game = inspection.ByHand(task({"a": Guess, "b": Other}, row), seed=6)
    assert type(game.environment) is Other
    assert game.prompt[-1]["content"] == "Guess. It is from 1 to 5."
    game.call("guess", number=3)
    scored = game.say("")
    assert dict(zip(scored.names, map(str, scored.scores[0]))) == {"brevity_reward": str(1 / 3), "Guess": "nan", "Other": "1.0"}


def test_tools_alone_are_enough_and_a_reward_that_fails_is_named():
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    def broken_reward(completions, **columns):
        raise KeyError("what")

    game = inspection.ByHand(Task("t", [{"prompt": ASKED}], [broken_reward, brevity_reward], tools=[double]))
    assert game.call("double", number=21) == "42"
    scored = game.say("42")
    assert scored.totals.tolist() == [1 / 3]
    assert "KeyError" in str(game)


class Never(Guess):
    def reset(self, **row) -> str:
        raise RuntimeError("no board")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Task("t", [{"prompt": "x"}], [brevity_reward]), "neither tools nor an environment"),
        (lambda: task(Never), "row 0: RuntimeError: no board"),
        (lambda: task({"a": Guess}, {"environment": "c"}), "row 0: KeyError: 'c'"),
    ],
)
def test_what_cannot_begin_says_why(made, said):
    with pytest.raises(TaskError, match=said):
        inspection.ByHand(made())


def test_the_panel_sends_what_is_typed(game):
    parts = game.parts
    assert parts["tool"].value == "guess"
    assert "the guess" in parts["about"].value
    parts["text"].value = "The middle."
    parts["argument number"].value = "5"
    parts["send"].click()
    assert game.turns[0].text == "The middle."
    assert game.turns[0].calls[0].arguments == {"number": 5}
    assert "higher" in parts["seen"].value
    assert parts["text"].value == ""
    parts["tool"].value = "late"
    parts["argument word"].value = "12"  # a text, as its type says
    parts["send"].click()
    assert game.turns[2].calls[0].result == "late '12'"
    parts["tool"].value = ""
    assert parts["arguments"].children == ()
    parts["send"].click()
    assert game.batch is not None
    assert "total" in parts["seen"].value
    assert parts["send"].disabled
    parts["again"].click()
    assert (game.turns, parts["send"].disabled) == ([], False)


def test_a_task_whose_code_breaks_leaves_the_panel_usable(game, monkeypatch):
    def broken(self, **row):
        raise RuntimeError("<b>no board</b>")

    monkeypatch.setattr(Guess, "reset", broken)
    game.parts["again"].click()
    assert "&lt;b&gt;no board" in game.parts["seen"].value


def test_hostile_text_is_text():
    class Evil:
        def reset(self, **row):
            return EVIL

        def look(self, at: str = "") -> str:
            """PLACE"""
            return EVIL

    Evil.look.__doc__ = EVIL
    game = inspection.ByHand(task(Evil))
    game.call("look", at=EVIL)
    game.say(PRINTED)
    game._look(EVIL)
    bundle = game._repr_mimebundle_()
    pages = [bundle["text/html"], game.parts["seen"].value, game.parts["about"].value]
    for page in pages:
        assert not re.search(r"<script|<img src=x", page)
        assert not formulas(page)
    for text in [*pages, bundle["text/plain"]]:
        assert obeyed(text) == []
        text.encode()
        assert "costs $5 and then $6" in text


def test_without_widgets_it_is_a_page(monkeypatch):
    monkeypatch.setenv("WORKBENCH_WIDGETS", "0")
    game = inspection.ByHand(task())
    game.call("guess", number=1)
    assert game.widget is None
    assert {*game._repr_mimebundle_()} == {"text/plain", "text/html"}
