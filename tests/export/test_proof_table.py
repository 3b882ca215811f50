"""A proof in a cell: what failed is said where it failed, and several proofs begin with a line each."""

from __future__ import annotations

import re

from workbench.exporting.checks import Check, Proof, Proofs
from workbench.views import look
from workbench.views.results import proof_table

PAIR = {"policy": 0.75, "artefact": 0.5, "base": 0.25, "low": -0.5, "high": 0.0}
MEASURED = {"reward": PAIR, "pass@1": PAIR, "kl_per_token": {"artefact": 0.01, "low": 0.0, "high": 0.02, "base": 0.5}}
MEASURED["of_the_run"] = {"share": 0.975, "low": 0.9, "high": 1.05}
FILES, EOS = Check("files", "sums", True, "5 files"), Check("tokens", "EOS", None, "no template")
GOOD = Proof("runs/r/export/adapter", "adapter", (FILES, EOS), measured=MEASURED)
WORSE = Check("behaviour", "greedy answers", False, "reward 1", "worse", "export again: `workbench export r`")
BAD = Proof("runs/r/export/merged_16bit", "merged_16bit", (FILES, WORSE), ("see `merged_16bit`",), into="the 16-bit base")
CAUSE = "greedy answers: it earns less than the policy that was trained, by more than chance; export again: "


def test_one_proof_has_cause_and_remedy_only_where_it_failed():
    good, bad = proof_table(GOOD), proof_table(BAD)
    assert "cause" not in good.html + good.text
    assert "; export again" not in good.text
    assert f"{CAUSE}`workbench export r`" in bad.text
    assert f"{CAUSE}workbench export r" in bad.html
    assert "`" not in bad.html
    assert "merged_16bit, merged into the 16-bit base: FAILED" in bad.html


def test_marks_have_a_colour_and_are_words():
    html = proof_table(GOOD).html + proof_table(BAD).html
    colours = dict(re.findall(r"<b style='color:([^']+)'>([\w ]+)</b>", html))
    assert {mark: colour for colour, mark in colours.items()} == {
        "passed": look.GOOD, "FAILED": look.BAD, "cannot be told": look.WARNING,
    }  # fmt: skip
    assert "EOS    cannot be told  no template" in proof_table(GOOD).text


def test_several_proofs_begin_with_a_line_each_and_what_passed_is_folded():
    view = proof_table(Proofs([GOOD, BAD]))
    assert [line.split() for line in view.text.splitlines()[:5]] == [
        [
            "verdict", "share", "of", "the", "run's", "change", "greedy", "reward", "greedy", "pass@1", "ended", "by", "EOS",
            "KL", "per", "token",
        ],
        ["policy", "100%", "0.75", "75%", "-", "0"],
        ["base", "0%", "0.25", "25%", "-", "0.5"],
        ["adapter", "passed", "98%", "(90%", "to", "105%)", "0.50", "50%", "-", "0.01"],
        ["merged_16bit", "FAILED", "-", "-", "-", "-", "-"],
    ]  # fmt: skip
    for form in (view.text, view.html):
        assert form.count("Greedy: the likeliest token every time.") == 1  # why the base may be as good here
    assert "Greedy" not in proof_table(Proof("x", "adapter", (FILES,))).text
    assert re.findall(r"<details( open)?>", view.html) == ["", " open"]
    assert GOOD.verdict in view.text
    assert GOOD.verdict in view.html


def test_several_proofs_end_with_a_line_that_counts():
    assert str(Proofs([GOOD, GOOD])).splitlines()[-1] == "2 artefacts: 2 passed (adapter, adapter)"
    assert str(Proofs([GOOD, BAD])).splitlines()[-1] == "1 of 2 FAILED: merged_16bit"
    assert str(Proofs([GOOD])) == str(GOOD)


def test_an_artefact_that_keeps_little_of_the_run_is_named_in_the_last_line():
    measured = {**MEASURED, "of_the_run": {"share": 0.29, "low": 0.2, "high": 0.38}}
    little = Proof("runs/r/export/merged_16bit", "merged_16bit", (FILES, EOS), measured=measured)
    last = str(Proofs([GOOD, little])).splitlines()[-1]
    assert last.startswith("2 artefacts: 2 passed (adapter, merged_16bit); merged_16bit keeps only 29% of the run's change")
