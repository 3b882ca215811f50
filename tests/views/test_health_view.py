"""What verdicts look like: the worst first, the well in one line, and nothing that a completion holds can run."""

from __future__ import annotations

import re

from workbench.health import ALARM, NOTE, OK, SKIPPED, WARNING, RunConfig, Verdict, diagnose
from workbench.health.verdicts import NAMES
from workbench.views.health import health_view, verdict_lines

HOSTILE = "<script>alert(1)</script> $x$ \u202egnp \x1b[31m\nnext"
VERDICTS = [
    Verdict("truncation", OK, "0 % were cut"),
    Verdict("kl_not_measured", NOTE, "beta = 0", first_step=1, last_step=9, remedy="set grpo.beta"),
    Verdict("length_drift", SKIPPED, "too early to say: 4 of 10 batches", {"needs": 10, "has": 4, "of": "batches"}),
    Verdict("format_without_right", SKIPPED, "not examined: none is named", {"missing": "format_by"}),
    Verdict("dead_groups", WARNING, "30 % teach nothing", first_step=5, last_step=5, prompts=("a", "b", "c", "d")),
    Verdict("collapse", ALARM, f"the commonest begins {HOSTILE}", {}, 1, 9, (HOSTILE,), "<b>f</b>", HOSTILE, "cool it"),
    Verdict("kl_runaway", OK, "KL is 0"),
]


def test_as_text_the_worst_comes_first_and_the_well_in_one_line():
    lines = verdict_lines(VERDICTS).splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        "alarm", "warning", "note", "no sign of", "too early to say", "not checked",
    ]  # fmt: skip
    assert lines[-3:] == [
        "no sign of: clipped completions, runaway KL",
        "too early to say: length drift",
        "not checked: format without correctness (no format_by: none is named)",
    ]
    assert "warning: dead groups: 30 % teach nothing (step 5)" in lines
    assert "  prompts: a, b, c and 1 more" in lines
    assert "note: unmeasured KL: beta = 0 (steps 1 to 9)" in lines
    assert "  -> set grpo.beta" in lines


def test_every_illness_has_a_name_for_people():
    found = diagnose([], [], RunConfig())
    assert {verdict.name for verdict in found} == set(NAMES)
    assert not [verdict.title for verdict in found if "_" in verdict.title]


def test_as_text_nothing_of_a_completion_reaches_the_terminal_as_a_command():
    text = str(health_view(VERDICTS))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "⏎next" in text


def test_as_html_everything_is_escaped_and_stands_in_pre():
    page = health_view(VERDICTS)._repr_html_()
    assert str(health_view(VERDICTS)) == verdict_lines(VERDICTS)
    assert "<script" not in page
    assert "\u202e" not in page
    for place in (match.start() for match in re.finditer(r"alert\(1\)|\$x\$", page)):
        assert page.rfind("<pre", 0, place) > page.rfind("</pre>", 0, place)
    assert page.index("alarm: ") < page.index("warning: ") < page.index("note: ") < page.index("no sign of: clipped")


def test_dead_groups_that_are_no_matter_say_of_which_groups_they_are():
    line = "12 % of the latest 160 groups are dead without being all right"
    few, none = (Verdict("dead_groups", OK, line, {"groups": 160, "share": share}) for share in (0.12, 0.0))
    assert verdict_lines([few]) == f"no sign of: dead groups ({line})"
    assert verdict_lines([none]) == "no sign of: dead groups"
    other = Verdict("one_function", OK, "a makes 55 %", {"groups": 160, "share": 0.5})
    assert verdict_lines([other]) == "no sign of: one reward dominating"


def test_a_healthy_run_takes_one_line():
    assert verdict_lines([Verdict("truncation", OK, "0 % were cut")]) == "no sign of: clipped completions"
    page = health_view([Verdict("truncation", OK, "0 % were cut")])._repr_html_()
    assert "<ul" not in page
    assert "no alarm, no warning" in page
    assert verdict_lines([]) == ""
