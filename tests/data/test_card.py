"""What notebook 01 shows and leaves: the results display themselves, and the card records them."""

from __future__ import annotations

import json

import pytest

import workbench as wb
from workbench.base.progress import clock, count_line, progress_line
from workbench.views.display import view_of


def test_from_rows_to_a_folder_through_the_face(home):
    rows = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(40)] + [{"question": "", "answer": 1}]
    source = wb.open_source(rows)
    table = view_of(source.first(2))
    shown = [line.split() for line in str(table).splitlines()]
    assert shown[1:3] == [["question", "answer"], ["What", "is", "0", "+", "1?", "1"]]
    report = wb.check(source, system="tags", worked_example=True)
    assert repr(report) == str(report)
    assert "Tom has 3 boxes" in report.kept[0]["prompt"][0]["content"]
    card = view_of(wb.preview(report.kept[0], "tiny"))
    assert "tags that survive decoding" in card._repr_html_()
    lengths = wb.prompt_lengths(report.require(), "tiny")
    assert set(view_of(lengths)._repr_mimebundle_()) == {"image/png", "text/html", "text/plain"}
    halves = wb.split(report.kept, 20)
    profile = wb.profile_difficulty("tiny", halves.train, "d.jsonl", prompts=0)
    assert "not measured" in str(view_of(profile))
    band = profile.within()
    aside = {"too long": halves.held_out[:1]}
    made = wb.write_dataset(
        "tasks/mine",
        band.kept,
        halves.held_out,
        report,
        filtered_out=aside,
        lengths=lengths,
        split=halves,
        difficulty=band,
    )
    names = ["card.json", "checks.json", "filtered_out.jsonl", "held_out.jsonl", "train.jsonl"]
    assert str(made).split() == ["written", "to", "tasks/mine", *names]
    card = json.loads((home / "tasks" / "mine" / "card.json").read_text())
    assert card["rows"] == {"train": len(band.kept), "held_out": len(halves.held_out), "filtered_out": 1}
    assert (card["split"], card["difficulty"], card["left_out"]) == (halves.by, None, {"prompt is empty": 1})
    assert wb.load_rows("tasks/mine/train.jsonl") == band.kept
    wb.write_dataset("tasks/mine", band.kept, halves.held_out, report)
    assert not (home / "tasks" / "mine" / "filtered_out.jsonl").exists(), "nothing of an earlier dataset stays"


def test_progress_shows_nothing_outside_a_notebook(capfd):
    count_line("rows")(1000)
    progress_line("difficulty")(1, 2)
    assert capfd.readouterr() == ("", "")
    with pytest.MonkeyPatch.context() as patched:
        shown: list = []
        patched.setattr("workbench.base.progress._line", lambda: shown.append)
        progress_line("adapter")(0, 0)
        progress_line("adapter")(1, 2)
    assert [bundle["text/plain"] for bundle in shown] == ["adapter: loading, 0:00", "adapter: 1 of 2, 0:00"]
    assert [bundle["text/html"].partition(">")[0] for bundle in shown] == ["<progress", "<progress value=1 max=2"]
    assert [clock(5), clock(65), clock(3725)] == ["0:05", "1:05", "1:02:05"]
