"""Two processes that train together: one run, which every reader reads; the configurations for more than one GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from driving import waited_for
from safetensors.torch import load_file

import workbench as wb
from tests.train.in_two_processes import recipe, task
from workbench.base.errors import RecipeError, RewardError, RunError
from workbench.base.processes import check_processes, in_main
from workbench.rewards.calls import call_of
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory, open_run
from workbench.run.metrics import STEP_S
from workbench.run.rollouts import query, read_batches
from workbench.training.trainer import continue_run, train
from workbench.views.run_view import FollowedRun
from workbench.views.watch import snapshot_text

CONFIGS = Path(wb.__file__).parent / "training" / "distributed"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
ONLY_ONE = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_USE_CPU")


def launched(home: Path, *words: str | Path, seconds: float = 900) -> subprocess.CompletedProcess:
    """The end of an `accelerate launch` in two processes; nothing of it is left."""
    own = {name: value for name, value in os.environ.items() if name not in ONLY_ONE}
    own |= {"WORKBENCH_HOME": str(home), "PYTHONPATH": str(Path(wb.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    command = [*LAUNCH, "--config_file", str(CONFIGS / "data_parallel.yaml"), *map(str, words)]
    with subprocess.Popen(
        command, cwd=home, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    waited_for(lambda: not members_of(process.pid))
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def members_of(session: int) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = file.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append((file.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    ended = launched(home, Path(__file__).with_name("in_two_processes.py"))
    assert ended.returncode == 0, ended.stderr[-5000:]
    return home


@pytest.fixture(scope="module")
def found(home):
    return json.loads((home / "found.json").read_text(encoding="utf-8"))


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    return open_run("whole", home / "runs")


@pytest.mark.slow
def test_two_processes_leave_one_run_with_the_completions_of_both(home, run, found):
    assert {folder.name for folder in (home / "runs").iterdir()} == {"whole", "stopped", "asked"}
    assert (run.result()["status"], run.manifest()["processes"]) == ("finished", 2)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6]
    batches = list(read_batches(run))
    assert [(batch.step, len(batch.completions), batch.group_count) for batch in batches] == [(n, 8, 1) for n in range(1, 7)]
    assert all(len({prompt[-1]["content"] for prompt in batch.prompts}) == 1 for batch in batches)
    assert "a forward pass takes 4 in each of 2 processes" in found["whole"]["words"]
    one, two = found["whole"]["weights"]
    assert one == two


@pytest.mark.slow
def test_the_recorded_advantages_are_those_that_trl_made_of_all_completions(run, found):
    recorded = np.concatenate([batch.advantages for batch in read_batches(run)])
    assert len(recorded) == 48
    assert np.allclose(recorded, found["whole"]["advantages"], atol=1e-4)
    rewards = [row["reward"] for row in run.metrics()]
    assert np.allclose(rewards, [batch.totals.mean() for batch in read_batches(run)], atol=1e-5)


@pytest.mark.slow
def test_every_reader_reads_it(run):
    assert len(query(run.rollouts)) == 48
    assert wb.by_step(run).frame["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert "6" in snapshot_text(FollowedRun(run))
    assert len(wb.examine_run(run))
    again = wb.replay(run, task())
    assert (again.completions, again.turned_up, again.turned_down) == (48, 0, 0)
    assert (run.final / "adapter_model.safetensors").is_file()


def timeless(run: RunDirectory) -> list[dict]:
    return [{k: v for k, v in row.items() if k != STEP_S and not k.startswith("time/")} for row in run.metrics()]


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_two_processes_to_the_last_bit(home, run, found):
    stopped = open_run("stopped", home / "runs")
    assert (found["stopped"]["status"], found["stopped"]["steps"]) == ("stopped", 4)
    assert stopped.result()["status"] == "finished"
    assert "inexact" not in next(event for event in stopped.events() if event["event"] == "continued")
    assert timeless(stopped) == timeless(run)
    columns = 'select step, "group", generation, completion, total, advantage from rollouts order by all'
    assert query(stopped.rollouts, columns).equals(query(run.rollouts, columns))
    mine, theirs = (load_file(each.final / "adapter_model.safetensors") for each in (stopped, run))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_requests_and_a_signal_to_one_process_are_in_force_in_both_after_the_same_step(home, found):
    asked = open_run("asked", home / "runs")
    answers = {event["action"]: event for event in asked.events() if event["event"] == "control" and event["applied"]}
    assert {"weight", "pause", "resume"} <= answers.keys()
    assert answers["weight"]["after"] == {"awaited_reward": 1.0, "counted_reward": 0.5}
    assert (asked.result()["status"], asked.events()[-1]["by"]) == ("stopped", "SIGTERM")
    assert found["asked"]["steps"] == [5, 5]
    one, two = found["asked"]["weights"]
    assert one == two
    recorded = np.concatenate([batch.advantages for batch in read_batches(asked)])
    assert np.allclose(recorded, found["asked"]["advantages"], atol=1e-4)
    assert [row["seen"] for row in asked.metrics()] == [4.0] * 5


@pytest.mark.slow
def test_the_prompts_are_those_of_one_process_with_the_same_global_batch(run, tmp_path):
    alone = train(recipe("alone", per_device_train_batch_size=8), task=task(), watchers=[], runs=tmp_path)
    columns = 'select step, "group", generation, prompt_id from rollouts order by all'
    assert query(alone.rollouts, columns).equals(query(run.rollouts, columns))
    learnt = [row["learning_rate"] for row in alone.metrics()]
    assert learnt == [row["learning_rate"] for row in run.metrics()]


@pytest.mark.slow
def test_another_number_of_processes_is_another_run(run, tmp_path):
    with pytest.raises(RunError, match=r"processes: 2 -> 1"):
        continue_run(run, task=task(), watchers=[], steps=2)
    assert run.result()["status"] == "finished"
    copied = RunDirectory(shutil.copytree(run.path, tmp_path / "whole"))
    continue_run(copied, task=task(), watchers=[], steps=1, accept_changes=True)
    assert (copied.result()["steps"], copied.manifest()["processes"]) == (7, 1)
    continued = next(event for event in copied.events() if event["event"] == "continued")
    assert "trained in 2 processes before" in continued["inexact"]


FAILING = """
import os
import workbench as wb
from workbench.tiny.task import task as arithmetic

def counted_reward(completions, trainer_state, **kwargs):
    if os.environ.get("RANK") == "1" and trainer_state.global_step == 2:
        raise ValueError("nothing to count")
    return [float(completion[0]["content"].count("1")) for completion in completions]

task = wb.Task("of a file", arithmetic(16, 4).rows, [counted_reward])
"""


@pytest.mark.slow
def test_a_reward_that_raises_in_the_second_process_ends_both_with_its_reason(tmp_path):
    (tmp_path / "task.py").write_text(FAILING, encoding="utf-8")
    recipe("failing").model_copy(update={"task": "task.py"}).save(tmp_path / "recipe.yaml")
    ended = launched(tmp_path, "-m", "workbench", "train", "recipe.yaml")
    run = open_run("failing", tmp_path / "runs")
    assert (ended.returncode, run.result()["status"], run.result()["steps"]) == (1, "failed", 2)
    error = run.events()[-1]["error"]
    assert "counted_reward raised ValueError: nothing to count" in error
    assert "nothing to count" in ended.stderr
    assert [folder.name for folder in run.saved()] == ["checkpoint-2"]  # rescued
    assert not run.live
    assert ended.stdout == ""


# -- without a launch --------------------------------------------------------------------------------------------------
@pytest.fixture
def of_two(monkeypatch):
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_unsloth_in_two_processes_is_refused_before_anything_is_loaded(of_two):
    script = """
import sys, workbench as wb
try:
    wb.plan(wb.Recipe())
except Exception as error:
    print(type(error).__name__, error)
print({"torch", "transformers", "unsloth", "trl"} & set(sys.modules))
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True).stdout
    assert re.match(r"RecipeError policy.backend = 'unsloth' in 2 processes", printed)
    assert "backend: transformers" in printed
    assert printed.endswith("set()\n")


def test_the_launcher_that_starts_one_process_instead_of_two_is_named(monkeypatch):
    for name, value in {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match="--multi_gpu instead of --cpu"):
        check_processes("transformers")


def test_the_batch_counts_the_completions_of_all_processes(of_two):
    from workbench.training.plan.settings.batches import batch, batch_line, whole_groups

    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "num_generations": 8, "max_steps": 3}
    assert batch(settings).completions == 8
    assert whole_groups(settings, {}) == (settings, [])
    words = batch_line(batch(settings), settings, 10)
    assert "each learns from 8 completions (1 prompt x 8)" in words
    assert "4 in each of 2 processes" in words
    with pytest.raises(RecipeError, match="4 x 2 processes x gradient_accumulation_steps 1 = 8 completions"):
        batch({**settings, "num_generations": 3})
    with pytest.raises(RecipeError, match="set generation_batch_size to 24, or per_device_train_batch_size to 2"):
        batch({**settings, "generation_batch_size": 12, "num_generations": 6})


def doubtful_reward(completions, **kwargs):
    if "?" in "".join(completions):
        raise ValueError("not sure")
    return [float(text) for text in completions]


def scored_by_two(gather, on_error: str = "skip", completions=("1", "?")):
    rows = [{"prompt": "p", "answer": "1"}]
    suite = RewardSuite(wb.Task("two", rows, [doubtful_reward]), 4, on_error=on_error, on_batch=(batches := []).append)
    suite.gather = gather
    call = call_of(rows * 2, list(completions), None)
    try:
        for function in suite.funcs:
            function(**call)
    finally:
        suite.close()
    return batches


def test_a_group_that_lies_across_two_processes_is_one_group():
    [batch] = scored_by_two(lambda piece: [piece, piece])
    assert (batch.completions, batch.group_count) == (["1", "?", "1", "?"], 1)
    assert np.array_equal(batch.scores[:, 0], [1, np.nan, 1, np.nan], equal_nan=True)
    assert set(batch.errors["doubtful_reward"]) == {1, 3}
    assert batch.columns["answer"] == ["1"] * 4


def test_what_fails_in_one_process_is_handed_to_the_others_once():
    handed = []
    with pytest.raises(RewardError, match="not sure"):
        scored_by_two(handed.append, "stop")
    assert [type(each) for each in handed] == [RewardError]


def test_one_process_is_the_main_one_and_errors_pass_through():
    assert in_main(lambda: 3) == 3
    with pytest.raises(RunError, match="gone"):
        in_main(lambda: (_ for _ in ()).throw(RunError("gone", rule="r", remedy="m")))


def test_an_error_is_the_same_in_another_process():
    import pickle

    error = pickle.loads(pickle.dumps(RunError("value", rule="rule", remedy="remedy")))
    assert (type(error), error.value, error.rule, error.remedy) == (RunError, "value", "rule", "remedy")


# -- configurations ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["data_parallel", "fsdp2", "deepspeed_zero2"])
def test_accelerate_accepts_the_configuration(name):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    file = CONFIGS / f"{name}.yaml"
    asked = yaml.safe_load(file.read_text(encoding="utf-8"))
    loaded = load_config_from_file(str(file))
    assert (loaded.distributed_type.value, loaded.num_processes) == (asked["distributed_type"], 2)
    parser = launch_command_parser()
    words, _, _ = _validate_launch_command(parser.parse_args(["--config_file", str(file), "-m", "workbench"]))
    assert (words.multi_gpu, words.use_fsdp, words.use_deepspeed) == tuple(name.startswith(k) for k in ("data", "fsdp", "deep"))
    known = vars(parser.parse_args(["x"]))
    for part in ("fsdp_config", "deepspeed_config"):
        assert set(asked.get(part, {})) <= known.keys()  # what accelerate does not know it passes over in silence
        assert all(str(vars(words)[key]) == str(value) for key, value in asked.get(part, {}).items())


def test_the_plan_takes_trls_vllm_server():
    from workbench.training.plan.settings.device import Machine

    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_host": "10.0.0.2", "vllm_server_port": 8001}
    asked = recipe("server", **server, per_device_train_batch_size=8)
    asked.policy.dtype = "float32"  # the GPU is not here, and transformers would not compute in bfloat16 on it
    with_vllm = Machine(cuda=True, bf16=True, vllm=True, card_gb=80.0, gpus=1)
    planned = wb.plan(asked, task(), machine=with_vllm)
    assert {name: planned.settings[name] for name in server} == server
    assert planned.generation == "vLLM generates"
