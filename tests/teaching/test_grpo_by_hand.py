"""The lesson as a learner has it: each blank fails loudly with its own hint, and with its solutions it runs to its end."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from workbench.demo import execute
from workbench.teaching._lib.cells import blanks, filled
from workbench.teaching._lib.lessons import passed

LESSON = Path(__file__).parents[2] / "notebooks" / "teaching" / "grpo_by_hand.ipynb"


# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("per_device_train_batch_size = 4", "per_device_train_batch_size = 1"),
    (" - logits.logsumexp(-1)", ""),
    ("rewards.std()", "rewards.std(correction=0)"),
    ("-(A * lengths).sum() / N", "-A.mean()"),
    ("/ (G * lengths[:, None])", "/ N"),
    ('"dr_grpo": torch.ones(G) / (G * L)', '"dr_grpo": torch.ones(G) / L'),
    ("-torch.min(", "-torch.max("),
    ('"update 1": True', '"update 1": False'),
    ("torch.exp(reference - now) - (reference - now) - 1", "now - reference"),
    ('"lora_B"\n', '"lora_A"\n'),
    ("v.sqrt() / (1 - beta2) ** 0.5", "v.sqrt()"),
    ('("dapo", "bnpo"): True', '("dapo", "bnpo"): False'),
    ("error = (V - R) ** 2", "error = V - R"),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The lesson run in a kernel, every blank as it stands, then with a mistake, then filled: its cells."""
    home = tmp_path_factory.mktemp("home")
    lesson = nbformat.read(LESSON, as_version=4)
    done, places = filled(lesson), blanks(lesson)
    for place, (right, wrong) in reversed(list(zip(places, MISTAKES, strict=True))):
        assert done.cells[place].source.count(right) == 1, right
        tries = {"empty": lesson.cells[place].source, "wrong": done.cells[place].source.replace(right, wrong)}
        for name, source in reversed(tries.items()):
            cell = nbformat.v4.new_code_cell(source, id=f"{name}-{place}", metadata={"tags": ["raises-exception"]})
            done.cells.insert(place, cell)
    nbformat.write(done, home / "lesson.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        execute(home / "lesson.ipynb", home / "out.ipynb", {})
        assert len(passed("grpo_by_hand")) == len(MISTAKES)
    return [cell for cell in nbformat.read(home / "out.ipynb", as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    hints = {"empty": [], "wrong": []}
    for cell in executed:
        if (name := cell["id"].partition("-")[0]) in hints:
            [error] = [output for output in cell.outputs if output.output_type == "error"]
            assert error.ename == "AssertionError", (cell.source, error.evalue)
            hints[name].append(error.evalue)
    for said in hints.values():
        assert len(set(said)) == len(said) == len(MISTAKES)
        assert all(len(hint) > 25 for hint in said), said


@pytest.mark.slow
def test_filled_it_runs_to_its_end_and_the_adapters_are_equal(executed):
    rest = [cell for cell in executed if "raises-exception" not in cell.metadata.get("tags", [])]
    assert all(cell.execution_count for cell in rest)
    outputs = [output for cell in rest for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    shown = "\n".join(output.get("text") or output["data"].get("text/plain", "") for output in outputs)
    assert "equal in every bit" in shown
    # What the last words on loss types say: five of the seven are one adapter, grpo and dr_grpo are not.
    left = dict(re.findall(r"^(dapo|dapo, epsilon 1e-6|bnpo|grpo|dr_grpo|cispo|vespo) +([0-9a-f]{12}) ", shown, re.MULTILINE))
    assert len(left) == 7
    assert len({left.pop("grpo"), left.pop("dr_grpo"), *left.values()}) == 3
    assert len(set(left.values())) == 1
