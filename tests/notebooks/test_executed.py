"""The five notebooks, executed in order in real kernels, on the embedded policy: the demo with fewer steps."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from workbench.base.errors import RunError
from workbench.base.notebook import NOTEBOOKS, execute, notebooks_folder
from workbench.commands.demo import result_table, run_notebooks
from workbench.health import examine_run
from workbench.run.directory import open_run
from workbench.run.held_out import held_out
from workbench.run.rollouts import query

PARAMETERS = {
    "01_dataset": {"rows_wanted": 600, "profile_prompts": 8},
    "03_train": {"max_steps": 12},
    "04_inspect": {"held_out": 60, "samples": 2},
    "05_export": {"prompts_to_prove": 4},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(what `workbench demo --json` prints, its run, the cells that reported progress)."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        cells = []
        result = run_notebooks("demo", parameters=PARAMETERS, on_cell=lambda *progress: cells.append(progress))
        yield result, open_run("demo"), cells


def outputs(run, stem):
    cells = json.loads((run.path / "notebooks" / f"{stem}.ipynb").read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


@pytest.mark.slow
def test_all_five_ran_and_kept_their_outputs(demo):
    _, run, cells = demo
    assert list(dict.fromkeys(stem for stem, _, _ in cells)) == list(NOTEBOOKS)
    for stem in NOTEBOOKS:
        assert outputs(run, stem)
        assert not [output for output in outputs(run, stem) if output["output_type"] == "error"]
        texts = ["".join(output["text"]) for output in outputs(run, stem) if output.get("name") == "stdout"]
        assert not [text for text in texts if text.endswith("\n\n")], "a line that says nothing"


@pytest.mark.slow
def test_the_result_has_the_documented_shape(demo):
    result, run, _ = demo
    assert set(result) == {"before", "after", "gain", "content", "verdict", "steps", "minutes", "run"}
    assert set(result["before"]) == set(result["after"]) == {"correct", "format"}
    assert set(result["gain"]) == {"correct", "low", "high"}
    assert result["steps"] == 12
    assert result["run"] == str(run.path)
    gain = result["after"]["correct"] - result["before"]["correct"]
    assert result["gain"]["correct"] == pytest.approx(gain, abs=1e-9)
    assert result["gain"]["low"] <= gain <= result["gain"]["high"]
    table = result_table(result)
    assert all(words in table for words in ("correct, of those in it", "cannot be told", "What is ", "--base"))


@pytest.mark.slow
def test_the_policy_had_begun_to_learn(demo):
    result, _, _ = demo
    assert 0.1 <= result["before"]["correct"] <= 0.5
    assert result["gain"]["correct"] > 0


@pytest.mark.slow
def test_it_names_its_inert_settings_and_measured_held_out_prompts(demo):
    _, run, _ = demo
    [found] = [each for each in examine_run(run) if each.name == "inert_settings"]
    assert "epsilon, epsilon_high, delta: inert (ratio 1 in 12 of 12 steps)" in found.line
    assert [own["step"] for own in held_out(run.events())] == [0, 12]


@pytest.mark.slow
def test_it_trained_4_bit_layers_through_unsloth(demo):
    _, run, _ = demo
    policy = run.manifest()["policy"]
    assert policy["linear4bit"] > 0
    assert policy["precision"] == "nf4"
    assert policy["backend"].startswith("Unsloth")


@pytest.mark.slow
def test_the_record_holds_every_completion(demo):
    _, run, _ = demo
    counts = query(run.rollouts, 'select step, count(*) as n, count(distinct "group") as g from rollouts group by step')
    in_force = run.manifest()["settings"]["in_force"]
    assert len(counts) == 12
    assert counts["n"].eq(in_force["per_device_train_batch_size"]).all()
    assert counts["g"].eq(in_force["per_device_train_batch_size"] // in_force["num_generations"]).all()


@pytest.mark.slow
def test_the_live_plot_is_one_picture_of_a_bounded_size(demo):
    _, run, _ = demo
    found = [output for output in outputs(run, "03_train") if "image/png" in output.get("data", {})]
    # The memory estimate is a picture, too.
    pictures = [output for output in found if "picture of step" in "".join(output["data"]["text/plain"])]
    assert (len(found), len(pictures)) == (2, 1)
    assert len(pictures[0]["data"]["image/png"]) < 300_000
    assert "picture of step 12 of 12" in "".join(pictures[0]["data"]["text/plain"])
    result = run.manifest()["result"]
    assert result["drawing_s"] > 0


@pytest.mark.slow
def test_the_export_was_proved(demo):
    _, run, _ = demo
    for format in ("adapter", "merged_16bit"):
        proof = run.read_json(f"export/{format}/proof.json")
        assert proof["passed"], format
        assert proof["measured"]["of_the_run"]["share"] == pytest.approx(1, abs=0.05)
    assert (run.export / "merged_16bit" / "model.safetensors").is_file()
    text = "".join(
        output.get("text", "") if isinstance(output.get("text"), str) else "".join(output.get("text", []))
        for output in outputs(run, "05_export")
    )
    assert "What is 15 + 27?" in text


@pytest.mark.slow
def test_05_shows_the_risk_the_card_and_an_exchange_without_widgets(demo):
    _, run, _ = demo
    shown = json.dumps(outputs(run, "05_export"), ensure_ascii=False)
    for words in ("shift of the base / what training added", "## Load it", "vllm serve", "[base: ", "[trained: ", "passed, "):
        assert words in shown, words
    assert "widget-view" not in shown
    assert '"stderr"' not in shown


@pytest.mark.slow
def test_the_report_is_one_file_to_hand_on(demo):
    result, run, _ = demo
    page = (run.path / "report.html").read_text()
    gain = f"demo: gain {100 * result['gain']['correct']:+.0f} points, 95 % interval"
    assert f"<title>{gain}" in page
    assert f"<h1>{gain}" in page
    assert page.count("data:image/png;base64") == 4
    assert len(re.findall("alt='(demo: 12 steps|gain [+]|[^']*pass@2|step 12: [^']* decided this group)", page)) == 4
    assert "<script" not in page
    assert page.index("fixed ") < page.index("Curves") < page.index("Prompts that became worse") < page.index("Settings")
    for code in ("RunDirectory", "load_policy", "You will", "05_export"):
        assert code not in page


@pytest.mark.slow
def test_04_names_a_group_by_its_question_and_a_run_by_its_state(demo):
    _, run, _ = demo
    shown = json.dumps(outputs(run, "04_inspect"))
    assert "(right answer: " in shown
    assert "step 12: What is " in shown
    assert "demo (finished after 12 steps)" in shown
    assert "chunked CE" not in shown


@pytest.mark.slow
def test_04_of_a_run_that_could_not_learn_says_so_first_and_shows_no_gain(demo, tmp_path):
    _, run, _ = demo
    ill = run.path.with_name("ill")
    shutil.copytree(run.path, ill)
    task = "import dataclasses\nfrom workbench.tiny.task import task as arithmetic\n\n"
    task += "def right_number(completions, **kwargs):\n    return [0.0] * len(completions)\n\n"
    task += "made = arithmetic(32, 20)\n"
    task += "task = dataclasses.replace(made, reward_funcs=[*made.reward_funcs, right_number], right_by='right_number')\n"
    (ill / "task.py").write_text(task)
    recipe = open_run(ill).recipe()
    recipe.model_copy(update={"task": str(ill / "task.py"), "reward_weights": {}}).save(ill / "recipe.yaml")
    execute(
        notebooks_folder() / "04_inspect.ipynb", tmp_path / "04.ipynb",
        {"run_name": str(ill), "held_out": 4, "samples": 2},
    )  # fmt: skip
    shown = (tmp_path / "04.ipynb").read_text()
    assert "no completion was right, before or after: right_number paid nothing anywhere" in shown
    assert "gain +0" not in shown


@pytest.mark.slow
def test_01_shows_how_hard_the_prompts_are(demo):
    _, run, _ = demo
    card = json.loads((run.path / "task" / "card.json").read_text())
    assert card["difficulty"]["never"] + card["difficulty"]["sometimes"] + card["difficulty"]["always"] == pytest.approx(1)
    assert card["difficulty"]["sometimes"] > 0
    assert len((run.path / "task" / "difficulty.jsonl").read_text().splitlines()) == 1 + 8
    assert "8 prompts, 8 completions each: solved" in json.dumps(outputs(run, "01_dataset"))
    # What the dataset was made of travels with the run.
    assert run.manifest()["task"]["card"] == card


@pytest.mark.slow
def test_01_runs_on_a_file_in_gsm8ks_schema_by_changing_its_parameters_only(gsm8k_file, home):
    parameters = {
        "source": str(gsm8k_file), "task_dir": "tasks/gsm8k", "profile_prompts": 0, "max_prompt_length": 95,
    }  # fmt: skip
    execute(notebooks_folder() / "01_dataset.ipynb", home / "out.ipynb", parameters)
    folder = home / "tasks" / "gsm8k"
    card = json.loads((folder / "card.json").read_text())
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert card["rows"]["train"] == len(rows) >= 200
    assert sum(card["rows"].values()) == 298
    assert rows[0]["answer"].isdigit()
    assert rows[0]["rationale"].endswith(f"#### {int(rows[0]['answer']):,}")


OWN_TASK = """
import json
from pathlib import Path

import workbench as wb

HERE = Path(__file__).parent

def mood_reward(completions, answer, **kwargs):
    given = [wb.rewards.completion_text(each) for each in completions]
    return [1.0 if text == json.dumps({"mood": right}) else 0.0 for text, right in zip(given, answer)]

schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
task = wb.Task("moods", wb.load_rows(HERE / "train.jsonl"), [mood_reward, wb.rewards.make_json_reward(schema)])
"""


@pytest.mark.slow
def test_a_json_task_of_ones_own_is_measured_as_json_and_never_overwritten(home):
    lines = [f"Day {day} went {how}.,{mood}" for day in range(300) for how, mood in (("well", "good"), ("ill", "bad"))]
    (home / "moods.csv").write_text("\n".join(["prompt,answer", *lines]))
    folder, system = home / "tasks" / "moods", 'Reply with {"mood": "good"} or {"mood": "bad"}.'
    asked = {"task_dir": "tasks/moods", "source": str(home / "moods.csv"), "system_prompt": system, "profile_prompts": 2}
    asked |= {"max_seq_length": 512, "num_generations": 2, "max_completion_length": 8}
    execute(notebooks_folder() / "01_dataset.ipynb", home / "01.ipynb", asked)
    shown = (home / "01.ipynb").read_text()
    assert "a completion is right where shown_json_reward > 0" in shown
    assert "solved 100% never" in shown
    assert "last_line_reward" not in shown
    assert '"right_by": "shown_json_reward ' in (folder / "difficulty.jsonl").read_text()
    (folder / "task.py").write_text(OWN_TASK)
    execute(notebooks_folder() / "02_rewards.ipynb", home / "02.ipynb", {"task_dir": "tasks/moods"})
    shown = (home / "02.ipynb").read_text()
    assert (folder / "task.py").read_text() == OWN_TASK
    assert "was not written by this cell: it stays" in shown
    assert "nothing is wrong" in shown
    assert "no regression cases" in shown
    assert not (folder / "cases.jsonl").exists()


@pytest.mark.skipif(os.name != "posix", reason="only there have kernels sockets that are files")
def test_a_kernel_listens_on_no_port_that_another_may_take(home, tmp_path_factory, monkeypatch):
    import nbformat

    monkeypatch.chdir(elsewhere := tmp_path_factory.mktemp("elsewhere"))

    source = "import ipykernel, json\nprint(json.load(open(ipykernel.get_connection_file()))['transport'])"
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), home / "in.ipynb")
    execute(home / "in.ipynb", home / "out.ipynb", {})
    cells = json.loads((home / "out.ipynb").read_text())["cells"]
    [output] = [output for cell in cells for output in cell.get("outputs", [])]
    assert "".join(output["text"]) == "ipc\n"
    assert not [*elsewhere.iterdir()]


def test_threads_of_a_kernel_are_told_to_sleep_before_it_imports_anything(home):
    import nbformat

    source = "import os, sys\nprint('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), home / "in.ipynb")
    execute(home / "in.ipynb", home / "out.ipynb", {})
    assert "False PASSIVE 1000" in (home / "out.ipynb").read_text()


@pytest.mark.parametrize("stem", ["02_rewards", "03_train", "04_inspect", "05_export"])
def test_alone_each_notebook_says_what_it_needs(stem, home):
    with pytest.raises(RunError, match=stem):
        execute(notebooks_folder() / f"{stem}.ipynb", home / "out.ipynb", {})
    cells = json.loads((home / "out.ipynb").read_text())["cells"]
    [error] = [o for cell in cells for o in cell.get("outputs", []) if o["output_type"] == "error"]
    assert "remedy:" in error["evalue"]
    assert len(error["traceback"]) <= 6, "three lines, not a traceback"


@pytest.mark.slow
def test_02_examines_its_task_and_shows_the_lab_as_tables(demo):
    _, run, _ = demo
    shown = json.dumps(outputs(run, "02_rewards"))
    assert "nothing is wrong" in shown
    assert "4 of 4 regression cases hold" in shown
    assert "cannot pay" in shown  # of the exercise
    assert "decided this group" in shown
    assert "widget-view" not in shown


@pytest.mark.slow
def test_04_replays_the_run_under_other_weights(demo):
    _, run, _ = demo
    assert "not what a new run would reach" in json.dumps(outputs(run, "04_inspect"))
