"""Rollouts of several turns as people see them: transcripts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from recording import record

from workbench.commands.reporting import write_report
from workbench.inspection.reading import RecordedGroup, best_first, explain_group
from workbench.rewards.groups import batch_of, explain_in
from workbench.run.turns import ENVIRONMENT, POLICY, TOOL, ToolCall, Turn
from workbench.task import Task
from workbench.training.recorder import Recorder
from workbench.views.browser import Browser
from workbench.views.groups import group_html, group_of, group_text
from workbench.views.results import group_view
from workbench.views.run_view import FollowedRun
from workbench.views.turns import call_text, transcript, transcript_lines
from workbench.views.watch import snapshot_text


def guess(number, answer="lower", **more):
    return Turn(POLICY, f"<tool>{number}</tool>", 5, True, (ToolCall("guess", {"number": number}, answer, **more),))


def says(text):
    return Turn(TOOL, text, 4, False)


HOSTILE = "<script>alert(1)</script> $x^2$ \x1b[31mred ‮ \ud800"


def test_what_the_policy_wrote_is_told_from_what_it_read():
    page = transcript([guess(8), says("lower"), Turn(POLICY, "so 3", 2, True)]).page
    assert page.count("border-left") == 3
    own, read, last = (block.split(";")[0] for block in page.split("border-left:")[1:])
    assert own == last
    assert "solid" in own
    assert "dashed" in read  # so that they are told apart without colours, too
    assert "guess(number=8) -&gt; lower" in page
    assert "2 tool, 4 tokens" in page
    assert "loss" not in page  # said only where it is not as it should be


def test_tokens_on_the_wrong_side_of_the_loss_are_named():
    assert "although the policy did not write it" in transcript([Turn(ENVIRONMENT, "wall", 1, True)]).page
    assert "not in the loss" in transcript([Turn(POLICY, "go", 1, False)]).page


def test_failures_and_calls_that_are_none_are_shown():
    failed = Turn(POLICY, "", 3, True, (ToolCall("guess", {}, None, "TypeError: number is missing", 0.25),))
    shown = transcript([failed, Turn(POLICY, "{'name': 'guess'}", 3, True, (), "single quotes")])
    for part in ("guess() failed: TypeError: number is missing (0.2 s)", "no call: single quotes"):
        assert part in shown.page
        assert part.replace("no call", "[no call") in shown.text or part in shown.text


def test_hostile_text_is_text():
    turns = [Turn(POLICY, HOSTILE, 1, True, (ToolCall(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE),), HOSTILE), says(HOSTILE)]
    page = transcript(turns).page
    assert "<script" not in page
    assert "\x1b" not in page
    assert "‮" not in page
    page.encode()
    line = group_text(group_of(batch([turns] * 4), 0))
    assert "\x1b" not in line
    assert "\ud800" not in line


def test_a_long_rollout_is_cut_in_the_middle():
    page = transcript([guess(number) for number in range(40)]).page
    assert "… (28 turns) …" in page
    assert "number=0)" in page
    assert "number=39)" in page
    assert "number=20)" not in page


def test_a_long_rollout_is_folded_and_its_summary_counts_what_went_wrong():
    failed, none = guess("a", None, error="ValueError: no"), Turn(POLICY, "{}", 1, True, (), "no JSON")
    turns = [guess(8), says("lower"), failed, says("no"), failed, says("no"), none]
    page = transcript(turns).page
    assert page.startswith("<details><summary>7 turns, 3 calls, ")
    assert [what in page for what in (">2 failed<", ">1 not parsed<")] == [True, True]
    assert page.endswith("</details>")
    assert transcript(turns, folded=False).page in page
    assert "<details" not in transcript(turns[:6]).page


def batch(turns, totals=(1.0, 0.0, 0.0, 1.0)):
    scores = np.array(totals)[:, None]
    made = batch_of(["won"], [1.0], scores, ["own words"] * 4, scores[:, 0] > 0, 4, prompts=["Guess."] * 4, lengths=np.arange(4))
    return replace(made, turns=turns)


GAMES = [
    [guess(8), says("lower"), guess(4, "right")],
    [guess(8), says("lower"), guess(12)],
    [guess(8), says("lower"), guess(12)],
    [guess(8), says("lower"), guess(4, "right")],
]


def test_a_group_shows_its_transcripts():
    page = group_html(group_of(batch(GAMES), 0))
    assert page.count("guess(number=8)") == 4
    text = group_text(group_of(batch(GAMES), 0))
    lines = [line.strip() for line in text.splitlines()]
    assert lines.count("1 policy: guess(number=8) -> lower") == 3  # of the three that are shown
    assert lines[lines.index("3 policy: guess(number=4) -> right") - 2].endswith("3 turns, 2 calls")
    long = [guess(number) for number in range(20)]
    shown = transcript_lines([*long, Turn(POLICY, "{", 1, True, (), "single quotes")])
    assert shown[0] == "21 turns, 20 calls, 1 not parsed"
    assert shown[4] == "… (turns 4 to 18) …"
    assert shown[-1] == "21 policy: {; [no call: single quotes]"


def test_an_explained_group_of_a_record_shows_them_best_first():
    explained = best_first(explain_in(batch(GAMES), 0))
    order = [0, 3, 1, 2]
    shown = group_view(RecordedGroup(1, "Guess.", None, explained, [GAMES[place] for place in order]))
    for form in (shown.html, shown.text):
        places = [at for at in range(len(form)) if form.startswith("guess(number=", at)]
        made = [form[at:].partition(")")[0].removeprefix("guess(number=") for at in places]
        assert made == ["8", "4", "8", "4", "8", "12", "8", "12"]
    without = group_view(RecordedGroup(1, "Guess.", None, explained))
    assert "guess" not in without.html
    assert without.text.count("own words") == 4


def test_a_group_of_one_turn_is_as_it_was():
    page = group_html(group_of(batch([]), 0))
    assert page.count("own words") == 4
    assert "border-left" not in page


def test_a_call_in_a_line():
    assert call_text(ToolCall("add", {"a": 1, "b": "x"}, "3", None, 0.04)) == "add(a=1, b='x') -> 3"
    assert call_text(ToolCall("add", {}, None, "ValueError: no", 1.26)) == "add() failed: ValueError: no (1.3 s)"


def won_reward(completions, **columns):
    return [float(words == "right") for words in completions]


def test_wherever_a_record_shows_a_group_it_shows_transcripts(home, monkeypatch):
    """The explained group, the report, the browser and `workbench watch`, of a run that was recorded and read again."""
    row, kept = {"prompt": "Guess.", "prompt_id": "p"}, Recorder.batch
    monkeypatch.setattr(Recorder, "batch", lambda self, made: kept(self, replace(made, turns=[*GAMES[1:], GAMES[0]])))
    run = record(Task("t", [row], [won_reward]), [[(row, ["no", "nor", "right", "right"])]])
    made = explain_group(run)
    assert [own[-1].calls[0].arguments["number"] for own in made.turns] == [4, 4, 12, 12]
    followed = FollowedRun(run)
    followed.look()
    page = write_report(run).read_text()
    pages = [page, write_report(run, markdown=True).read_text(), snapshot_text(followed), Browser(run).parts["group"].value]
    for shown in pages:
        assert "guess(number=12)" in shown
    assert page.count("border-left:") == sum(map(len, GAMES))
