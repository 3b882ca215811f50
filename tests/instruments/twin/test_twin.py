"""A twin of a run: what it shares with it to the bit, what it changes, and when a suspect is called the cause."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas
import pytest
from commanding import workbench

import workbench as wb
from workbench.base.errors import RunError
from workbench.instruments.twin.growing import CAUSE, INNOCENT, UNTOLD, Twin, grow, twin
from workbench.instruments.twin.planning import TwinPlan, plan_twin
from workbench.instruments.twin.signs import Sign, _sign
from workbench.run.control_file import RunState, write_request
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query

GRPO = {"num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": 64, "learning_rate": 4e-3}
GRPO |= {"beta": 0.0, "max_steps": 12, "save_steps": 2, "save_total_limit": 9}
TASK = """
import dataclasses
import workbench as wb

def brief_reward(completions, **columns):
    texts = map(wb.rewards.completion_text, completions)
    return [1 - min(len(own), 100) / 100 PATCH for own in texts]

shipped = wb.load_task("arithmetic")
task = dataclasses.replace(shipped, reward_funcs=[*shipped.reward_funcs, brief_reward], reward_weights=[0.25, 0, 0.25, 0, 0, 2])
"""


def write(folder: Path, name: str, patch: str = "") -> str:
    file = folder / name
    file.write_text(TASK.replace("PATCH", patch), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def hacked(tmp_path_factory):
    """A run whose policy learns to write nothing, since short texts are paid."""
    home = tmp_path_factory.mktemp("twin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        patch.chdir(home)
        policy = {"name": "tiny", "backend": "transformers", "load_in_4bit": False}
        content = {"run_name": "hack", "task": write(home, "task.py"), "policy": policy, "grpo": GRPO}
        yield wb.train(wb.Recipe.of(content), watchers=[])


@pytest.fixture(scope="module")
def muted(hacked):
    before = sums(hacked)
    found = twin(hacked, mute="brief_reward")
    assert sums(hacked) == before  # the original is not touched
    return found


def sums(run: RunDirectory) -> dict[str, str]:
    files = [file for file in run.path.rglob("*") if file.is_file()]
    return {str(file.relative_to(run.path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def record(run: RunDirectory) -> pandas.DataFrame:
    frame = query(run.rollouts)
    return frame[[name for name in frame if name in ("step", "completion", "advantage") or name.startswith("score.")]]


def adapter(run: RunDirectory) -> str:
    return hashlib.sha256((run.final / "adapter_model.safetensors").read_bytes()).hexdigest()


# --- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["checkpoint-4", "base"])
def test_with_nothing_changed_it_equals_the_original_to_the_bit(hacked, checkpoint):
    plan = plan_twin(hacked, mute="brief_reward", checkpoint=checkpoint)
    name = f"same-{checkpoint}"
    recipe = hacked.recipe().model_copy(update={"run_name": name})
    same = {"folder": plan.folder.with_name(name), "recipe": recipe, "rewards": hacked.manifest()["rewards"]}
    found = grow(dataclasses.replace(plan, **same, muted=None, suspects=[]))
    again = RunDirectory(found.plan.folder)
    pandas.testing.assert_frame_equal(record(again), record(hacked))
    assert adapter(again) == adapter(hacked)
    assert again.result()["status"] == "finished"
    assert found.equal
    assert found.undone == (0, 0, 0)
    assert found.verdict == INNOCENT


def test_a_muted_cause_is_named_and_the_twin_is_the_original_until_then(hacked, muted):
    plan, run = muted.plan, RunDirectory(muted.plan.folder)
    assert plan.sign.sql == 'not "right"'
    assert 0 < plan.step < plan.sign.last
    both, own = (record(each)[lambda frame: frame["step"] <= plan.step + 1] for each in (hacked, run))
    shared = [name for name in both if name != "advantage"]  # the first new step is paid otherwise
    pandas.testing.assert_frame_equal(both[shared], own[shared])
    assert muted.equal
    assert muted.verdict == CAUSE
    assert muted.undone.low > 0.2
    weights = query(run.rollouts, 'select step, any_value("weight.brief_reward") as own from rollouts group by step')
    assert set(weights[weights["step"] > plan.step]["own"]) == {0.0}
    assert set(weights[weights["step"] <= plan.step]["own"]) == {2.0}


def test_its_manifest_says_what_it_is(hacked, muted):
    run = RunDirectory(muted.plan.folder)
    manifest = run.manifest()
    wanted = {"of": "hack", "run_id": hacked.identity, "from": muted.plan.step, "changed": ["brief_reward"], "patch": None}
    assert manifest["twin"] == wanted
    assert manifest["id"] != hacked.identity
    assert manifest["rewards"]["weights"]["brief_reward"] == run.recipe().reward_weights["brief_reward"] == 0
    assert run.recipe().seed == hacked.recipe().seed
    [change] = RunState.of(run).changes
    assert (change["action"], change["function"], change["from_step"]) == ("mute", "brief_reward", muted.plan.step + 1)
    assert (run.path / "task.py").read_bytes() == (hacked.path / "task.py").read_bytes()


def test_a_twin_that_is_the_latest_run_is_resumed(hacked, muted):
    again = plan_twin(RunDirectory(muted.plan.folder), mute="brief_reward")
    assert (again.folder.name, again.run.identity) == (muted.plan.folder.name, hacked.identity)


def test_an_innocent_is_acquitted(hacked):
    found = twin(hacked, mute="incremental_format_reward", checkpoint="checkpoint-2")
    assert found.verdict == INNOCENT
    assert found.found["verdict"] == "not the cause"


def test_a_patched_branch_is_the_cause_and_another_file_is_another_twin(hacked, tmp_path):
    file = write(tmp_path, "fixed.py", "* 0")
    found = twin(hacked, patch=file)
    assert found.plan.suspects == ["brief_reward"]
    assert found.verdict == CAUSE
    manifest = RunDirectory(found.plan.folder).manifest()
    assert manifest["twin"]["patch"]["sha256"] == hashlib.sha256(Path(file).read_bytes()).hexdigest()
    assert manifest["rewards"]["functions"] != hacked.manifest()["rewards"]["functions"]
    write(tmp_path, "fixed.py", "* 0.1")
    with pytest.raises(RunError, match="not this twin"):
        twin(hacked, patch=file)


def test_stopped_early_and_called_again_it_goes_on(hacked, muted, monkeypatch):
    plan = dataclasses.replace(muted.plan, folder=muted.plan.folder.with_name("early"))
    short = dataclasses.replace(plan, end=plan.step + 3)
    assert not len(grow(short).groups[lambda frame: frame["step"] > short.end])
    assert RunDirectory(plan.folder).result()["status"] == "stopped"
    again = grow(plan)
    assert again.found["undone"] == muted.found["undone"]
    assert adapter(RunDirectory(plan.folder)) == adapter(RunDirectory(muted.plan.folder))


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_killed_and_called_again_it_is_the_same(hacked, home):
    write(home, "task.py")
    hacked.recipe().model_copy(update={"task": "task.py"}).save(home / "recipe.yaml")
    command = [sys.executable, "-m", "workbench"]
    where = {"cwd": home, "env": {**os.environ, "WORKBENCH_HOME": str(home)}, "stdout": subprocess.DEVNULL}
    subprocess.run([*command, "train", "recipe.yaml"], **where, check=True)
    command += ["twin", "hack", "--mute", "brief_reward"]
    subprocess.run(command, **where, check=True)
    [folder] = (home / "runs").glob("hack-without-*")
    whole = adapter(RunDirectory(folder))
    for wanted in ("recipe.yaml", "checkpoints/checkpoint-6"):  # before its first step, and later
        shutil.rmtree(folder)
        process = subprocess.Popen(command, **where)
        while not (folder / wanted).exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert RunDirectory(folder).result()["status"] == "killed"
        subprocess.run(command, **where, check=True)
        assert adapter(RunDirectory(folder)) == whole


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "value", "remedy"),
    [
        ({}, "mute = None and patch = None", "name one"),
        ({"mute": "brief_reward", "patch": "task.py"}, "with mute = 'brief_reward'", "name one"),
        ({"mute": "brief"}, "'brief' is no function", "brief_reward"),
        ({"mute": "style_reward"}, "'style_reward' weighs 0", "correctness_reward"),
        ({"patch": "task.py"}, "no reward functions", "edit one"),
        ({"patch": "other.py"}, "not the training rows", "copy the run's task file"),
        ({"mute": "brief_reward", "checkpoint": "checkpoint-3"}, "no checkpoint-3", "checkpoint-2"),
        ({"mute": "brief_reward", "steps": 2}, "4 groups", "--steps"),
        ({"mute": "brief_reward", "checkpoint": "checkpoint-10"}, "4 groups", "--from"),
        ({"mute": "brief_reward", "sign": '"score.brief_reward" > 0.9'}, "suspect's own score", "another function"),
        ({"mute": "brief_reward", "sign": "total"}, "suspect's own score", "a length"),
        ({"mute": "correctness_reward", "sign": 'not "right"'}, "suspect's own score", "name a text"),
        ({"mute": "brief_reward", "sign": "lenth_tokens"}, "lenth_tokens", "length_tokens > 60"),
        ({"mute": "brief_reward", "sign": "length_tokens"}, "'length_tokens' did not grow", "--sign"),  # they became shorter
    ],
)
def test_what_no_twin_can_tell_is_refused(hacked, options, value, remedy):
    Path("other.py").write_text(TASK.replace("PATCH", "") + "task = dataclasses.replace(task, rows=task.rows[::-1])\n")
    with pytest.raises(RunError) as met:
        plan_twin(hacked, **options)
    assert value in met.value.value
    assert remedy in met.value.remedy


def test_what_was_steered_by_hand_later_is_another_change(hacked, tmp_path):
    run = RunDirectory(shutil.copytree(hacked.path, tmp_path / "steered"))
    weights = RunState.of(run).weights
    change = {"action": "weight", "function": "correctness_reward", "applied": True, "from_step": 7, "by": "python"}
    run.log_event("control", 6, **change, before=weights, after={**weights, "correctness_reward": 0.4})
    with pytest.raises(RunError, match="steered by hand"):
        plan_twin(run, mute="brief_reward")


def test_what_was_steered_before_the_checkpoint_stays_in_force(hacked):
    class Hand:
        def begin(self, run, total_steps, settings):
            self.run = run

        def batch(self, scored, summary):
            if scored.step == 1:
                write_request(self.run, "weight", "python", {"function": "correctness_reward", "value": 0.4})

        def update(self, step, values): ...
        def end(self, message): ...

    run = wb.train(hacked.recipe().model_copy(update={"run_name": "by-hand"}), watchers=[Hand()])
    found = twin(run, mute="brief_reward", checkpoint="checkpoint-2", sign="length_tokens < 8")
    weights = query(RunDirectory(found.plan.folder).rollouts, "select * from rollouts where step > 2")
    assert set(weights["weight.correctness_reward"]) == {0.4}
    assert set(weights["weight.brief_reward"]) == {0.0}
    assert found.equal
    assert found.verdict == CAUSE


def test_who_decides_what_is_right_is_judged_by_what_weighs_nothing(hacked):
    plan = plan_twin(hacked, mute="correctness_reward")
    assert plan.sign.sql == '-"score.strict_format_reward"'
    assert not plan.sign.share


# --- the verdict -----------------------------------------------------------------------------------------------------


def made_up(before: float, late: float, without: float, steps: int = 60, seed: int = 0) -> Twin:
    """A twin from step 20 of 60, 4 groups a step; the sign, of all of 8 completions, in both."""
    draw = np.random.default_rng(seed)
    at = np.repeat(np.arange(1, steps + 1), 4)

    def groups(level: float) -> pandas.DataFrame:
        rates = np.where(at <= 20, before, level)
        return pandas.DataFrame({"step": at, "group": np.tile(range(4), steps), "value": draw.binomial(8, rates) / 8})

    sign = Sign('not "right"', True, groups(late), 10, 20)
    run = RunDirectory(Path("runs/made"))
    plan = TwinPlan(run, Path("runs/t"), wb.Recipe(), None, {}, ["a_reward"], "a_reward", None, sign, 20, steps)
    return Twin(plan, groups(without))


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((0.2, 0.8, 0.2), CAUSE),
        ((0.2, 0.8, 0.1), CAUSE),
        ((0.2, 0.8, 0.8), INNOCENT),
        ((0.2, 0.8, 0.9), INNOCENT),
        ((0.2, 0.8, 0.5), UNTOLD),  # half of it
        ((0.2, 0.2, 0.1), UNTOLD),  # nothing grew
    ],
)
def test_more_than_half_of_what_grew_is_undone_or_less_or_it_cannot_be_told(rates, verdict):
    assert [made_up(*rates, seed=seed).verdict for seed in range(20)] == [verdict] * 20


def test_how_many_steps_would_tell():
    close = made_up(0.2, 0.8, 0.42, steps=40)
    assert close.verdict == UNTOLD
    assert 20 < close.more < 400
    assert f"about {close.more} steps" in str(close)
    half = made_up(0.2, 0.8, 0.5)
    assert half.more is None
    assert "another function may share the blame" in str(half)


def test_clean_steps_are_those_where_the_sign_was_lowest():
    run = RunDirectory(Path("runs/made"))

    def window(values: list[float]) -> tuple[int, int]:
        steps = np.repeat(np.arange(1, len(values) + 1), 4)
        groups = pandas.DataFrame({"step": steps, "group": 0, "value": np.repeat(values, 4), "kind": "DOUBLE"})
        found = _sign(run, "length_tokens", groups)
        return found.first, found.last

    assert window([0.8, 0.6, 0.4, 0.2, 0.2, 0.3, 0.6, 0.9, 0.9]) == (4, 5)  # learnt first, then hacked
    assert window([0.2, 0.2, 0.2, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9]) == (4, 5)  # of equals, the latest
    assert window([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) == (1, 2)  # from the start
    with pytest.raises(RunError, match="6 steps or more"):
        window([0.1, 0.2, 0.3])


# --- around it -------------------------------------------------------------------------------------------------------


def test_what_next_names_the_suspect_and_the_command_first(hacked):
    assert wb.inspection.hacking(hacked).verdict.endswith("was it brief_reward?")
    [first, *_] = wb.inspection.what_next(hacked).frame.itertuples(index=False)
    assert tuple(first[::2]) == ("was the reward hacked?", "workbench twin hack --mute brief_reward")


def test_it_answers_a_script(hacked, muted):
    home = hacked.path.parents[1]
    ended = workbench("twin", "hack", "--mute", "brief_reward", "--json", home=home)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads(json.dumps(muted.found))
    assert (muted.plan.folder / "twin.png").read_bytes()[:4] == b"\x89PNG"
    planned = workbench("twin", "hack", "--mute", "brief_reward", "--plan", "--json", home=home)
    assert json.loads(planned.stdout)["from"] == muted.plan.step
    refused = workbench("twin", "hack", home=home)
    assert refused.returncode == 2
    assert "rule: " in refused.stderr


def test_the_picture_has_both_runs_and_the_steps_that_are_compared(muted):
    from workbench.instruments.twin.picture import twin_picture

    [axis] = twin_picture(muted).figure.axes
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["hack", "its twin, brief_reward muted", "both"]
    assert len(axis.patches) == 2
    assert min(axis.lines[1].get_xdata()) == muted.plan.step + 1
