"""The lab without a browser: the same numbers as tables, and a panel whose widgets are driven by hand."""

from __future__ import annotations

import asyncio
import os
import re
import sys

import pytest

from workbench.base.errors import RecipeError, TaskError
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards.library import correctness_reward
from workbench.task import Task
from workbench.views.bench import Bench
from workbench.views.lab import Lab, highlighted
from workbench.views.look import MORE

SYSTEM = "Answer as <answer>\n[answer]\n</answer>"
ROWS = [
    {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], "answer": answer}
    for question, answer in (("What is 15 + 27?", "42"), ("What is 9 - 4?", "5"))
]
FILE = """
from workbench.task import Task
from workbench.rewards.library import correctness_reward

def bonus_reward(completions, **kwargs):
    return [BONUS for completion in completions]

task = Task("mine", ROWS, [correctness_reward, bonus_reward])
"""


def write(file, bonus: str, rows=ROWS) -> None:
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(FILE.replace("BONUS", bonus).replace("ROWS", repr(rows)))
    # Two saves within one tick of the file system's clock have to differ all the same.
    stamp = max(before + 1_000_000, file.stat().st_mtime_ns)
    os.utime(file, ns=(stamp, stamp))


@pytest.fixture
def file(home):
    path = home / "task.py"
    write(path, "0.25")
    return path


@pytest.fixture
def lab(file):
    opened = Lab(file)
    yield opened
    opened.close()


def seen(lab, index) -> str:
    return lab.parts[f"seen-{index}"].value


def test_the_first_completions_are_an_honest_one_and_three_cheats(lab):
    assert lab.texts[:2] == ["<answer>\n42\n</answer>", "<answer>\n43\n</answer>"]
    assert len(lab.texts) == 4
    assert "total <b>2.25</b>" in seen(lab, 0)
    assert "total <b>0.25</b>" in seen(lab, 1)


@pytest.mark.parametrize(
    ("system", "first"),
    [("Be brief.", [""]), ('Reply as {"sum": 1}.', ['{"sum": 42}', '{"sum": 43}'])],
)
def test_a_guess_is_not_filled_in_and_json_is_json(system, first):
    rows = [{"prompt": to_messages("What is 15 + 27?", system), "answer": "42"}]
    opened = Lab(Task("t", rows, [correctness_reward]))
    assert opened.texts[:2] == first
    opened.close()


def test_a_weight_stands_beside_its_score_so_that_the_total_adds_up():
    opened = Lab(Task("t", ROWS, [correctness_reward], [0.5]))
    assert "total <b>1</b>" in seen(opened, 0)
    assert "<b>2</b> × 0.5" in seen(opened, 0)
    opened.close()


def test_typing_scores_again(lab):
    lab.type(1, "I say <answer>42</answer>")
    assert lab.texts[1] == "I say <answer>42</answer>"
    assert "total <b>2.25</b>" in seen(lab, 1)
    assert ">42</mark>" in seen(lab, 1)


def test_typing_inside_a_running_loop_waits_for_a_pause(lab):
    async def typed() -> tuple[str, str, str]:
        before = seen(lab, 1)
        for text in ("<answer>4", "<answer>42", "<answer>42</answer>"):
            lab.type(1, text)
        at_once = seen(lab, 1)
        while seen(lab, 1) == before:
            await asyncio.sleep(0.05)
        return before, at_once, seen(lab, 1)

    before, at_once, after = asyncio.run(typed())
    assert "total <b>0.25</b>" in before
    assert at_once == before
    assert "total <b>2.25</b>" in after


def test_advantages_are_of_the_group_and_follow_the_scaling(lab):
    # Totals 2.25, 0.25, 0.25, 0.25: mean 0.75, std 1.
    lab.type(3, "")
    assert f"advantage <b style='color:{MORE}'>+1.50" in seen(lab, 0)
    assert "-0.50" in seen(lab, 1)
    assert "correctness_reward decided this group" in lab.parts["verdict"].value
    # 2.25 twice: mean 1.25, and without scaling the advantage is the distance from it.
    lab.type(1, "<answer>42</answer>")
    lab.parts["scale"].value = "none"
    assert "+1.00" in seen(lab, 0)


def test_another_prompt_brings_its_own_honest_answer_and_keeps_what_was_typed(lab):
    lab.type(2, "mine")
    lab.choose(1)
    assert "9 - 4" in lab.parts["prompt"].value
    assert lab.texts[0] == "<answer>\n5\n</answer>"
    assert lab.texts[2] == "mine"


def test_the_list_of_prompts_shows_the_one_that_is_chosen(lab, file):
    prompts = lab.parts["prompts"]
    assert prompts.label == "0: What is 15 + 27?"
    lab.choose(1)
    assert (prompts.label, prompts.index) == ("1: What is 9 - 4?", 1)
    write(file, "0.5", ROWS[::-1])
    lab.look()
    assert (prompts.label, prompts.index) == ("1: What is 15 + 27?", 1)
    prompts.index = 0  # what a click sends
    assert "9 - 4" in lab.parts["prompt"].value


def test_a_saved_file_is_loaded_again_and_a_broken_one_keeps_the_last(lab, file):
    write(file, "0.5")
    lab.look()
    assert "total <b>2.5</b>" in seen(lab, 0)
    write(file, "[0.5")
    lab.look()
    assert "SyntaxError" in lab.parts["status"].value
    assert "total <b>2.5</b>" in seen(lab, 0)
    write(file, "0.75")
    lab.look()
    assert "SyntaxError" not in lab.parts["status"].value
    assert "total <b>2.75</b>" in seen(lab, 0)


def test_a_file_with_fewer_rows_moves_to_one_that_is_there(lab, file):
    lab.choose(1)
    write(file, "0.5", ROWS[:1])
    lab.look()
    assert lab.number == 0
    assert "15 + 27" in lab.parts["prompt"].value


def test_a_function_that_fails_says_so_beside_its_completion():
    def fragile_reward(completions, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    lab = Lab(Task("t", ROWS, [correctness_reward, fragile_reward]), ["", "some text"])
    assert "ZeroDivisionError" in seen(lab, 0)
    assert "ZeroDivisionError" not in seen(lab, 1)
    assert "fragile <b>-</b>" in seen(lab, 0)
    lab.close()


def test_one_more_completion(lab):
    lab.parts["add"].click()
    assert len(lab.parts["completions"].children) == 5 + 1  # and the button
    lab.type(4, "<answer>42</answer>")
    assert "total <b>2.25</b>" in seen(lab, 4)


def test_a_starter_can_be_chosen(lab):
    lab.parts["starter-3"].value = "refusal"
    assert lab.texts[3] == "I am sorry, but I cannot help with that."


def test_without_widgets_the_same_as_tables(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    lab = Lab(file, ["<answer>42</answer>", "no"])
    assert lab.widget is None
    bundle = lab._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    for words in ("15 + 27", "2.25", "0.25", "What reward hacks earn", "decided this group"):
        assert words in bundle["text/plain"]
        assert words in bundle["text/html"]
    lab.close()


def test_a_saved_notebook_keeps_the_tables_beside_the_widget(lab):
    data = lab._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "What reward hacks earn" in data["text/html"]


def test_a_prompt_that_is_not_there_is_named(file):
    with pytest.raises(IndexError, match="row = 7: the task has 2 rows"):
        Lab(file, row=7)


def test_what_a_completion_says_is_text():
    hostile = "</pre><script>x</script> $x$ \u202e <answer>42</answer>"
    lab = Lab(Task("t", ROWS, [correctness_reward]), [hostile, ""])
    for page in (seen(lab, 0), lab._repr_mimebundle_()["text/html"]):
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        assert "\u202e" not in page
    lab.close()


def test_matches_of_a_pattern_are_found():
    def named_reward(completions, **kwargs):
        matches = [re.search(r"c(d+)", completion[0]["content"]) for completion in completions]
        return [1.0 if match else 0.0 for match in matches]

    bench = Bench(Task("t", ROWS, [correctness_reward, named_reward]))
    assert bench.matched(ROWS[0], "x abb cdd", "named_reward") == {(6, 9), (7, 9)}
    bench.suite.close()


def format_reward(completions, **kwargs):
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    return [0.5 if re.match(pattern, text[0]["content"]) else 0.0 for text in completions]


def short_reward(completions, **kwargs):
    return [1.0 if len(text[0]["content"]) < 60 else 0.0 for text in completions]


@pytest.mark.slow
def test_a_match_in_the_middle_of_an_expression_is_yellow_and_what_cannot_be_seen_is_said():
    text = "<reasoning>40 + 2</reasoning><answer>42</answer>"
    rows = [{"prompt": to_messages("What is 40 + 2?", SYSTEM_PROMPT), "answer": "42"}]
    lab = Lab(Task("t", rows, [format_reward, short_reward]), [text])
    try:
        assert lab.bench.matched(lab.row, text, "format_reward") == {(0, len(text))}
        assert "<mark" in seen(lab, 0)
        assert "yellow: what a function matched (cannot see what short matched)" in lab.parts["status"].value
    finally:
        lab.close()


@pytest.mark.slow
def test_the_examination_is_folded_so_that_it_gives_no_flaw_away():
    rows = [{"prompt": to_messages("What is 40 + 2?", SYSTEM_PROMPT), "answer": "42"}]
    task = Task("t", rows, [format_reward])
    lab = Lab(task, ["x"])
    try:
        bundle = lab._repr_mimebundle_()
        for page in (lab.parts["report"].value, bundle["text/html"]):
            before, _, inside = page.partition("<details><summary>")
            assert "cannot pay" in inside
            assert "cannot pay" not in before + inside.partition("</summary>")[0]
    finally:
        lab.close()


def test_marks_are_escaped_and_overlaps_do_not_nest():
    shown = highlighted("<answer>4\n2</answer>", {(8, 11), (9, 11)}, ["<answer>"])
    assert shown.count("<mark") == 1
    assert "&lt;answer&gt;" in shown
    assert "4↵\n2</mark>" in shown


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("task = Task('mine', ROWS, [correctness_reward], reward_weights=[0])", "RecipeError|all 1 are 0"),
        ("task = Task('mine', ROWS, [3])", "a reward function is a callable"),
        ("task = Task('mine', [{'prompt': None}], [correctness_reward])", "prompt = None"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("task = Task('mine', [], [correctness_reward])", "0 prompts"),
    ],
)
def test_whatever_is_saved_the_panel_goes_on(lab, file, broken, said):
    head = FILE[: FILE.index("task = ")].replace("BONUS", "0.5")
    stamp = file.stat().st_mtime_ns + 1_000_000
    file.write_text(f"{head}\n{broken}\n".replace("ROWS", repr(ROWS)))
    os.utime(file, ns=(stamp, stamp))
    lab.look()
    assert re.search(said, lab.parts["status"].value), lab.parts["status"].value
    assert "total <b>2.25</b>" in seen(lab, 0)
    write(file, "0.75")
    lab.look()
    assert "total <b>2.75</b>" in seen(lab, 0)


def test_odd_arguments_are_named_or_understood(file):
    with pytest.raises(RecipeError, match="scale_rewards = 'bogus'"):
        Lab(file, scale_rewards="bogus")
    with pytest.raises(TaskError, match="a completion is a text"):
        Lab(file, [3])
    with pytest.raises(TaskError, match="0 prompts"):
        Lab(Task("t", [], [correctness_reward]))
    with pytest.raises(TaskError, match="ideal raised KeyError"):
        Lab(Task("t", ROWS, [correctness_reward], ideal=lambda row: row["nothing"]))
    for opened in (Lab(file, []), Lab(file, "one text"), Lab(file, scale_rewards=False)):
        assert opened.texts in ([], ["one text"]) or opened.parts["scale"].value == "none"
        assert "What reward hacks earn" in repr(opened)
        opened.close()


def test_a_save_while_the_panel_looks_changes_nothing_that_is_shown(lab, file):
    from workbench.rewards.hashing import reward_hash

    before = reward_hash(lab.bench.task.reward_funcs[1])
    write(file, "[0.5")  # not looked at yet
    vars(lab.bench).pop("report", None)
    lab.refresh(everything=True)
    assert "Error" not in lab.parts["verdict"].value + lab.parts["status"].value
    assert "What reward hacks earn" in lab.parts["report"].value
    assert reward_hash(lab.bench.task.reward_funcs[1]) == before
