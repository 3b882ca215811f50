"""The face: `import workbench as wb` is all that a notebook, the README or a user's file needs."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from workbench.base.errors import WorkbenchError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SETUP = "setup"  # the cell that fetches the package: it runs before there is a face


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and SETUP not in cell["metadata"].get("tags", [])
    ]


def imports_of(code: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [f"{alias.name} as {alias.asname}" for alias in node.names if alias.name.split(".")[0] == "workbench"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "workbench":
            found.append(node.module)
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_the_face_alone(notebook):
    cells = [re.sub(r"^%%write_unless_edited .*\n", "", code) for code in code_of(notebook)]
    python = [code for code in cells if not code.startswith(("{", "%%"))]
    assert {name for code in python for name in imports_of(code)} == {"workbench as wb"}
    used = {
        node.attr
        for code in python
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "wb"
    }
    assert used <= set(wb.FACE)


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_what_a_notebook_takes_from_a_part_of_the_face_is_there(notebook):
    parts = {"rewards": wb.rewards.__all__, "inspection": wb.inspection.__all__}
    taken = re.findall(r"\bwb\.(rewards|inspection)\.(\w+)", "".join(map(str, code_of(notebook))))
    assert [name for part, name in taken if name not in parts[part]] == []


def test_python_in_the_readme_imports_the_face_alone():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert {name for block in blocks for name in imports_of(block)} == {"workbench as wb"}


def test_the_face_is_small_and_complete():
    assert 25 <= len(wb.FACE) <= 40
    assert set(wb.FACE) == set(wb.__all__) == set(dir(wb))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wb.no_such_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [("regressions", "wb.inspection.regressions"), ("same_answer", "wb.rewards.same_answer"), ("evaluat", "wb.evaluate")],
)
def test_a_name_that_lives_elsewhere_is_named(name, meant):
    with pytest.raises(AttributeError, match=re.escape(meant)):
        getattr(wb, name)


@pytest.mark.parametrize("name", [name for name in wb.FACE if name not in ("rewards", "inspection")])
def test_each_name_has_a_docstring_with_an_example(name):
    value = getattr(wb, name)
    assert callable(value)
    assert len(inspect.getdoc(value).splitlines()) > 3
    assert doctest.DocTestParser().get_examples(inspect.getdoc(value)), f"wb.{name}: no example (>>> ...)"


class ResultsAlone(doctest.OutputChecker):
    """Looks at what an example says that it gives, after whatever libraries print on the way."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or any(super(ResultsAlone, self).check_output(text, got, optionflags) for text in (want, "...\n" + want))


@pytest.mark.slow
def test_the_examples_of_the_face_are_one_story_that_runs(tmp_path, monkeypatch):
    """In the order of the face, in one namespace and one workspace, on the embedded policy."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    told = {"wb": wb}
    runner = doctest.DocTestRunner(ResultsAlone(), verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for name in wb.FACE:
        if name == "attach":
            told |= anyones_trainer(told["policy"])
        text = inspect.getdoc(getattr(wb, name)) if name != "rewards" else ""
        example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
        example.globs = told
        said: list[str] = []
        failed = runner.run(example, clear_globs=False, out=said.append).failed
        assert not failed, "".join(said)


def anyones_trainer(policy) -> dict[str, object]:
    """What stands above `wb.attach(trainer)` in somebody's notebook."""
    from trl import GRPOConfig, GRPOTrainer

    def my_reward(completions, **columns):
        return [float(len(text)) for text in completions]

    config = GRPOConfig(
        output_dir="theirs", max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=16,
        report_to="none", save_strategy="no", bf16=False,
    )  # fmt: skip
    import datasets

    rows = datasets.Dataset.from_list([{"prompt": f"What is {n} + 1?"} for n in range(16)])
    return {"GRPOTrainer": GRPOTrainer, "model": policy.model, "my_reward": my_reward, "config": config, "rows": rows}


def one_reward(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: wb.Recipe(run_nme="x"), "run_nme = 'x'.*did you mean 'run_name'"),
        (lambda: wb.Recipe(policy={"nam": "tiny"}), "policy.nam = 'tiny'.*did you mean 'name'"),
        (lambda: wb.plan({"gpro": {"max_steps": 3}}), "gpro = .*did you mean 'grpo'"),
        (lambda: wb.plan(None), "content = None.*a recipe is"),
        (lambda: wb.train("cpuu"), "'cpuu'.*did you mean 'cpu'"),
        (lambda: wb.audit_rewards([one_reward]), "task = .*one_reward.*wb.Task"),
        (lambda: wb.Lab(one_reward), "task = .*one_reward.*wb.Task"),
        (lambda: wb.replay("nowhere", 3), "no run 'nowhere'"),
        (lambda: wb.advantages([]), r"rewards of shape \[0\]"),
        (lambda: wb.advantages([[1, 0], [0, 1]]), r"rewards of shape \[2, 2\].*each group"),
    ],
)
def test_what_is_given_by_mistake_is_named_with_a_remedy(call, said, home):
    with pytest.raises(WorkbenchError, match=f"(?s){said}"):
        call()


def test_a_recipe_may_be_a_mapping_wherever_one_is_planned():
    content = {"run_name": "small", "grpo": {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}}
    assert wb.plan(content).words == wb.plan(wb.Recipe(**content)).words


def test_importing_the_face_imports_no_library():
    script = "import sys, workbench; print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    out = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert ast.literal_eval(out) in (["workbench"], ["__main__", "workbench"])
