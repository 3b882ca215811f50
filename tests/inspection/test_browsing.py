"""Pages of the record, with a filter and an order; the widget over them; two runs side by side; and the report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from planted import ASKED, healthy, kept, planted

from workbench import inspection
from workbench.base.errors import RunError
from workbench.base.printable import printable


def broken(step, row, draw):
    return f"<answer>{row['answer']}</answer>" if draw.random() < 0.5 and step % 3 else f"no {step}…"


def test_a_page_is_filtered_sorted_and_turned(home):
    run = planted("r", broken, steps=6)
    everything = inspection.browse(run, size=1000)
    assert (len(everything), everything.numbers["more"]) == (6 * 32, False)
    cut = inspection.browse(run, "finish_reason = 'length'", size=50)
    assert set(cut.frame["finish_reason"]) == {"length"}
    assert cut.numbers["more"] == (int((everything.frame["finish_reason"] == "length").sum()) > 50)
    assert cut.verdict.startswith("completions 1 to 50 where finish_reason = 'length'")
    second = inspection.browse(run, page=1, size=50)
    assert second.frame["completion"].tolist() == everything.frame["completion"][50:100].tolist()
    best = inspection.browse(run, sort='"score.correctness_reward" desc, step', size=5)
    assert best.frame["score.correctness_reward"].tolist() == [1.0] * 5
    dead = inspection.browse(run, "dead", size=1000).frame
    assert set(dead["step"][dead["step"].isin([1, 4])]) == {1, 4}  # none is right at steps 0 and 3 of the draw
    assert len(inspection.browse(run, "error is not null")) == 0
    assert inspection.browse(run, "step = 99").verdict == "no completions where step = 99"


def test_sorted_pages_hold_every_completion_once(home):
    run = planted("r", broken, steps=20)
    pages = [inspection.browse(run, sort="total desc", page=page, size=40).frame for page in range(16)]
    rows_ = {(own.step, own.group, own.generation) for page in pages for own in page.itertuples()}
    assert len(rows_) == 20 * 32
    with pytest.raises(RunError, match="page = -1"):
        inspection.browse(run, page=-1)


@pytest.mark.parametrize(
    ("where", "sort", "said"),
    [
        ("totl < 0", "", "totl < 0: .*totl.*rule:.*over the record's columns: step.*remedy: for example: step > 100"),
        ("total <", "", "syntax error"),
        ("", "nothing", "sorted by nothing|nothing: "),
        ("true); drop view rollouts; select (1", "", "more than one statement|syntax error"),
    ],
)
def test_an_expression_that_cannot_be_read_is_an_error_that_names_the_columns(home, where, sort, said):
    run = planted("r", broken, steps=2)
    with pytest.raises(RunError) as failed:
        inspection.browse(run, where, sort)
    assert re.search(said, str(failed.value), re.DOTALL)


def test_the_widget_turns_pages_follows_the_slider_and_keeps_the_page_where_a_filter_is_wrong(home):
    browser = inspection.Browser(planted("r", broken, steps=6), size=10)
    bundle = browser._repr_mimebundle_()
    assert {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} <= bundle.keys()
    assert browser.parts["back"].disabled
    assert "step 1, group 1 of 8" in browser.parts["group"].value
    browser.parts["next"].click()
    assert browser.page == 1
    assert not browser.parts["back"].disabled
    browser.parts["chosen"].value = 9  # the arrow key, nine times: the twentieth completion is of the fifth group
    assert "step 1, group 5 of 8" in browser.parts["group"].value
    before = browser.listing
    browser.parts["where"].value = "totl < 0"
    assert "over the record&#x27;s columns" in browser.parts["rows"].value
    assert browser.listing is before
    browser.parts["where"].value = "step = 5"
    assert (browser.page, set(browser.listing.frame["step"])) == (0, {5})
    assert "step 5, group 1 of 8" in browser.parts["group"].value
    browser.parts["where"].value = "step = 99"
    assert (browser.parts["group"].value, browser.parts["next"].disabled) == ("", True)


def test_a_filter_means_by_a_prompt_what_it_asks(home):
    run = planted("r", broken, steps=2)
    asked = inspection.browse(run, size=1).frame["prompt"][0]
    found = inspection.browse(run, f"prompt = '{asked}'", size=1000).frame
    assert set(found["prompt"]) == {asked}
    assert len(found) == (inspection.browse(run, size=1000).frame["prompt"] == asked).sum()
    assert len(inspection.browse(run, "starts_with(prompt, 'no such')")) == 0


@pytest.mark.parametrize(
    ("where", "said"),
    [("totl < 0", 'Candidate bindings: "total"'), ("score.correctness_reward > 1", '"score.correctness_reward", ')],
)
def test_a_filter_that_cannot_be_read_says_what_could(home, where, said):
    with pytest.raises(RunError, match=re.escape(said)):
        inspection.browse(planted("r", broken, steps=2), where)


def test_something_else_than_a_run_is_said(home):
    run = planted("r", healthy, steps=2)
    for call in (
        lambda: inspection.regressions(run),
        lambda: inspection.hacking("r"),
        lambda: inspection.failures("r"),
        lambda: inspection.never_mixed("r"),
    ):
        with pytest.raises(RunError, match="this view reads (RunDirectory|Evaluation)"):
            call()
    with pytest.raises(RunError, match=r"(?s)no column 'anser'; there are .*answer.*did you mean 'answer'"):
        inspection.failures(run, "anser")


def test_the_arrow_keys_go_over_the_ends_of_a_page(home):
    browser = inspection.Browser(planted("r", broken, steps=2), sort="total desc", size=10)
    chosen = browser.parts["chosen"]
    assert (chosen.min, chosen.max) == (0, 10)  # the tenth place is the next page's first
    chosen.value = 9
    shown = browser.parts["group"].value
    chosen.value += 1
    assert (browser.page, chosen.value, chosen.min) == (1, 0, -1)
    chosen.value -= 1
    assert (browser.page, chosen.value, browser.parts["group"].value) == (0, 9, shown)
    while browser.listing.numbers["more"]:
        browser.show(browser.page + 1)
    assert chosen.max == len(browser.listing.frame) - 1


def test_without_widgets_it_is_a_table(home, monkeypatch):
    monkeypatch.setenv("WORKBENCH_WIDGETS", "0")
    browser = inspection.Browser(planted("r", broken, steps=2))
    assert browser.widget is None
    assert set(browser._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert "completions 1 to 20; there are more" in str(browser)


class Page(HTMLParser):
    """Tags, attributes that fetch, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.fetched, self.text = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.fetched += [own for name, own in attrs if name in ("src", "href") and not own.startswith("data:image/png;base64,")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text += data


def test_the_report_begins_with_the_answer_and_holds_all_that_it_shows(home):
    evil = "```` <script>window.hacked=1</script><img src=http://e.vil/x onerror=window.hacked=1> $x$ \u202e"
    run = planted("r", lambda step, row, draw: f"{evil} <answer>{row['answer'] if draw.random() < 0.5 else 0}</answer>", steps=8)
    page = Page(inspection.write_report(run).read_text())
    assert "not evaluated yet: `workbench eval r`" in page.text
    run.update_manifest(policy={"source": str(home / "mine" / "model"), "device": "cpu"})
    before = np.zeros((40, 4), bool)
    before[:4] = True
    kept(run, before, ~before)
    text = inspection.write_report(run).read_text()
    page = Page(text)
    assert not page.tags & {"script", "iframe", "link", "object", "form"}
    assert page.fetched == []
    assert "default-src 'none'" in text
    assert str(home) not in text  # it may be handed on
    answer, _, rest = page.text.partition("Prompts that became worse")
    assert "gain +80 points" in answer
    assert "fixed 36, broken 4, neither 0 of 40 prompts" in answer
    assert rest.index("4 prompts") < rest.index("Prompts that became better") < rest.index("Step by step")
    assert answer.index("Health") < answer.index("Curves") < answer.index("Base against trained")
    assert printable(evil) in page.text
    assert ASKED[:10] not in page.text.partition("A group of the last step")[0]
    written = inspection.write_report(run, markdown=True).read_text()
    assert written.startswith("# r: gain +80 points, 95 % interval +61 to +99\n\n## In short\n\n```text\nright 10% -> 90%, ")
    assert "## Curves" not in written
    assert "## Step by step" in written
    fences = re.findall(r"^(`{3,})(?:text)?$", written, re.MULTILINE)
    assert len(fences) % 2 == 0
    assert "`````" in fences  # longer than what the completion holds
    assert json.loads((run.path / "evaluation.json").read_text())["gain"]["correct"] == 0.8
