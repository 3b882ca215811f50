"""What an examination looks like: findings first, then tables, and nothing that a completion holds can run."""

from __future__ import annotations

import io
import re

import pytest

from workbench.audit.examination import audit_rewards
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards.library import correctness_reward, strict_format_reward
from workbench.rewards.shaping import length_reward
from workbench.task import Task
from workbench.views import audit
from workbench.views.audit import audit_view, functions_table, leaderboard_chart, probes_table

HOSTILE = "<script>alert(1)</script> $x$ \u202egnp"
ROWS = [{"prompt": to_messages(f"What is {n} + 27?", SYSTEM_PROMPT), "answer": str(n + 27)} for n in range(3)]


def tag_reward(completions, **kwargs):
    return [1.0 if "<" in completion[0]["content"] else -1.0 for completion in completions]


@pytest.fixture(scope="module")
def flawed():
    return audit_rewards(Task("<b>flawed</b>", ROWS, [tag_reward, length_reward], probes={"<i>mine</i>": HOSTILE}))


@pytest.fixture(scope="module")
def sound():
    return audit_rewards(Task("sound", ROWS, [correctness_reward, strict_format_reward]))


def test_as_text_the_verdict_comes_first_then_the_findings_then_the_tables(flawed):
    text = str(audit_view(flawed))
    order = [
        flawed.verdict,
        "expected format: <reasoning> <answer>",
        "error: ",
        "What each function pays",
        "What reward hacks earn",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "\n  -> " in text


def test_as_html_everything_is_escaped_and_completions_stand_in_pre(flawed, monkeypatch):
    monkeypatch.setattr(audit, "MOST_PROBES", 40)
    page = audit_view(flawed)._repr_html_()
    assert "<script" not in page
    assert "<i>mine" not in page
    assert "<b>flawed" not in page
    assert "&lt;i&gt;mine&lt;/i&gt; (yours)" in page
    for place in (match.start() for match in re.finditer(r"alert\(1\)|\$x\$", page)):
        assert page.rfind("<pre", 0, place) > page.rfind("</pre>", 0, place)
    assert "\\u202e" in page
    assert "\u202e" not in page


def test_a_cheats_name_with_mathematics_in_it_cannot_run_as_such(monkeypatch):
    monkeypatch.setattr(audit, "MOST_PROBES", 40)
    found = audit_rewards(Task("t", ROWS, [tag_reward], probes={"$y$": "x"}))
    page = audit_view(found)._repr_html_()
    assert "$y$" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_the_functions_and_what_they_pay(sound):
    table = functions_table(sound)
    assert table.rows == [
        ["correctness_reward", 1.0, 2.0, 2.0, 0.0, 2.0, ""],
        ["strict_format_reward", 1.0, 1.0, 1.0, 0.0, 1.0, ""],
    ]


def test_the_cheats_under_the_honest_answer(sound, monkeypatch):
    monkeypatch.setattr(audit, "MOST_PROBES", 3)
    table = probes_table(sound)
    assert table.header == ["completion", "earns", "share", "correctness", "strict_format", "for example"]
    assert table.rows[0][:5] == ["(the reference completion)", 3.0, "100%", 2.0, 1.0]
    assert len(table.rows) == 4
    assert [row[1] for row in table.rows[1:]] == sorted((row[1] for row in table.rows[1:]), reverse=True)
    assert f"(the 3 that earn most, of {len(sound.probes)})" in table.caption
    assert "reasoning repeated (right, padded)" in [row[0] for row in table.rows]


def test_without_scores_there_are_no_tables_of_them_and_no_error():
    def failing_reward(completions, **kwargs):
        raise RuntimeError("never")

    found = audit_rewards(Task("t", ROWS, [failing_reward]))
    report = audit_view(found)
    assert "raised RuntimeError: never" in str(report)
    assert "What reward hacks earn" not in str(report)
    assert "raised RuntimeError: never" in report._repr_html_()


@pytest.mark.parametrize("which", ["sound", "flawed"])
def test_the_chart_has_a_bar_for_each_and_a_line_for_honesty(which, request, monkeypatch):
    monkeypatch.setattr(audit, "MOST_PROBES", 5)
    found = request.getfixturevalue(which)
    figure = leaderboard_chart(found)
    [axis] = figure.axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["the reference completion", *(cheat.name for cheat in found.probes[:5])]
    assert len(axis.patches) == 6 * len(found.functions)
    assert axis.get_lines()[0].get_xdata()[0] == pytest.approx(found.reference_total)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
