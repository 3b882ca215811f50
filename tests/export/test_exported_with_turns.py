"""A run whose rollouts have turns, afterwards: read, asked, described and refused for what it is."""

from __future__ import annotations

import json
import os

import pytest
from playing_models import make_player

from workbench import inspection
from workbench.base.errors import DataError
from workbench.base.instruments import TABLE
from workbench.exporting.artefacts import Artefact
from workbench.exporting.card import write_card
from workbench.exporting.chat import Exchange
from workbench.exporting.passport import about
from workbench.exporting.reference import suite_of_run
from workbench.inspection.causes import ANSWERED, NO_CALL, failures
from workbench.inspection.compared import regressions
from workbench.inspection.evaluation import evaluate
from workbench.inspection.measured import Evaluation
from workbench.recipe import Recipe
from workbench.run.rollouts import read_batches
from workbench.training.trainer import train

pytestmark = pytest.mark.slow
TASK = """
import workbench as wb
from playing_models import Game, row_of, said_done

rows = [row_of(secret) for secret in (1, 2, 3, 4)]
task = wb.Task("game", rows, [said_done], environment=Game, right_by="Game", held_out=rows)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("played")
    make_player(home / "player")
    (home / "game.py").write_text(TASK)
    grpo = {"max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 48}
    asked = {"run_name": "g", "task": str(home / "game.py"), "policy": {"name": str(home / "player"), "load_in_4bit": False}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        yield train(Recipe.of({**asked, "grpo": {**grpo, "temperature": 1.2, "max_tool_calling_iterations": 2}}))


@pytest.fixture
def artefact(run):
    """The policy as it stands: what is asked here is not what training did to it."""
    player = os.environ["WORKBENCH_HOME"] + "/player"
    return Artefact(run.path.parents[1] / "player", "merged_16bit", player, run=run)


def test_a_question_gets_one_turn(artefact):
    answer = Exchange(artefact).answer("Guess.")
    assert (answer.ended, answer.text.count("</tool_call>")) == ("ended by EOS", 1)  # a call, which nobody answers


def test_a_card_names_the_tools_and_the_passport_has_them(artefact, tmp_path):
    known = about(artefact)
    json.dumps(known)
    [schema] = known["turns"]["tools"]
    assert schema["function"]["name"] == "guess"
    write_card(tmp_path, artefact, known)
    card = (tmp_path / "README.md").read_text()
    assert "with the tools `guess`: the chat template adds them" in card
    assert "(2 rounds at most)" in card
    assert "environment `Game` says" in card
    write_card(tmp_path, artefact, {**known, "turns": None})
    assert "turns" not in (tmp_path / "README.md").read_text()


def test_a_proof_is_refused_by_name(run):
    with pytest.raises(DataError, match="several turns"):
        suite_of_run(run, None)


def test_why_rollouts_fail_is_read_off_their_calls(run):
    found = failures(run)
    causes = found.numbers["causes"]
    wrong = {ANSWERED: 0, NO_CALL: 0}
    for batch in read_batches(run):
        for turns, right, ended in zip(batch.turns, batch.right, batch.finished, strict=True):
            if right or not ended or any(turn.unparsed for turn in turns):
                continue
            if not any(call.error for turn in turns for call in turn.calls) and turns[-1].text.strip():
                wrong[ANSWERED if any(turn.calls for turn in turns) else NO_CALL] += 1
    assert wrong[ANSWERED] > 0
    assert {name: causes.get(name, 0) for name in wrong} == wrong
    assert any(name.startswith("a call that nobody parsed: cut off") for name in causes)
    assert not any("wrong number" in name for name in causes)


def test_an_evaluation_is_read_alike_and_compared(run):
    evaluation = evaluate(run, samples=2)
    assert isinstance(evaluation, Evaluation)
    found = failures(evaluation)
    assert found.numbers["wrong"] == (~evaluation.after.correct).sum()
    assert found.numbers["causes"]
    assert not {"no answer in it", "other", "wrong number"} & found.numbers["causes"].keys()
    kept = evaluation.after.some([1, 2])
    assert kept.turns == evaluation.after.turns[1:3]
    if "several" in TABLE:
        assert str(inspection.compare_runs(run, run)).startswith("0 settings differ")
    # four starts, one prompt
    assert " of 4 prompts" in regressions(evaluation, evaluation).verdict
    assert {len({own["prompt_id"] for own in batch.rows}) for batch in read_batches(run)} == {2}
