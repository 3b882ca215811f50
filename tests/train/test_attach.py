"""Attached to trainers that were written without the workbench: record, figure and health are there, the numbers untouched."""

from __future__ import annotations

import base64
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import make_vision
from typer.testing import CliRunner

from workbench import inspection
from workbench.base.errors import RecipeError, RunError, TaskError
from workbench.commands.cli import app
from workbench.commands.reporting import write_report
from workbench.health import examine_run
from workbench.inspection.evaluation import evaluate
from workbench.inspection.reading import by_step, explain_group
from workbench.recipe import Recipe
from workbench.run.control_file import RunState, send
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query, read_batches
from workbench.task import prompt_key
from workbench.teaching.glossary import explain
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.attach import attach
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.theirs import _in_words as in_words
from workbench.training.theirs import _row_key as row_key
from workbench.training.trainer import continue_run, make_trainer
from workbench.views.live import LivePlot
from workbench.views.run_view import FollowedRun

trainer_classes()  # unsloth first, as in a process that uses it; on a CPU it leaves TRL's trainer as it is
STEPS = 3


# -- trainers as strangers write them ----------------------------------------------------------------------------------
def rows(chat=True):
    found = [{"prompt": row["prompt"], "answer": row["answer"]} for row in arithmetic(16, 2).rows]
    return found if chat else [{"prompt": f"Q: {row['prompt'][-1]['content']}\nA:", "answer": row["answer"]} for row in found]


def has_answer(completions, answer, **kwargs):
    return [1.0 if right in text[0]["content"] else 0.0 for text, right in zip(completions, answer)]


def digits(completions, **kwargs):
    return [sum(letter.isdigit() for letter in text) / 10 for text in completions]


def short(prompts, completions, completion_ids, log_metric, **kwargs):
    log_metric("shortest", float(min(map(len, completion_ids))))
    return [-len(ids) / 10 if len(ids) > 2 else None for ids in completion_ids]


async def awaited(completions, answer, **kwargs):
    return [float(text[0]["content"].count("<")) for text in completions]


def config(folder, **more):
    from trl import GRPOConfig

    own = {
        "max_steps": STEPS, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 24,
        "learning_rate": 1e-3, "report_to": "none", "logging_steps": 1, "seed": 3, "save_strategy": "no",
    }  # fmt: skip
    return GRPOConfig(output_dir=str(folder / "out"), **{**own, **more})


def lora():
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def trl_chat(folder):
    from datasets import Dataset
    from trl import GRPOTrainer

    return GRPOTrainer(
        model=str(MODEL_DIR), reward_funcs=has_answer, args=config(folder, beta=0.01, logging_steps=2),
        train_dataset=Dataset.from_list(rows()), peft_config=lora(),
    )  # fmt: skip


def trl_text_two_functions(folder):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL_DIR), processing_class=AutoTokenizer.from_pretrained(MODEL_DIR),
        reward_funcs=[digits, short], train_dataset=Dataset.from_list(rows(chat=False)),
        args=config(folder, reward_weights=[1.0, 0.5], gradient_accumulation_steps=2, scale_rewards="batch"),
    )  # fmt: skip


def unsloth_4bit(folder):
    from datasets import Dataset
    from trl import GRPOTrainer
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(str(MODEL_DIR), max_seq_length=256, load_in_4bit=True)
    model = FastLanguageModel.get_peft_model(
        model, r=8, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing=False, random_state=3
    )
    return GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[has_answer], args=config(folder),
        train_dataset=Dataset.from_list(rows()),
    )  # fmt: skip


def reward_model(folder):
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from trl import GRPOTrainer

    judge = folder.parent / "judge"
    if not judge.exists():
        shape = AutoConfig.from_pretrained(MODEL_DIR, num_labels=1)
        with torch.random.fork_rng():
            AutoModelForSequenceClassification.from_config(shape).save_pretrained(judge)
        AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(judge)
    return GRPOTrainer(
        model=str(MODEL_DIR), reward_funcs=[str(judge), has_answer], args=config(folder), peft_config=lora(),
        train_dataset=Dataset.from_list(rows()),
    )  # fmt: skip


def async_function(folder):
    from datasets import Dataset
    from trl import GRPOTrainer

    return GRPOTrainer(
        model=str(MODEL_DIR), reward_funcs=[awaited], args=config(folder, num_iterations=2), peft_config=lora(),
        train_dataset=Dataset.from_list(rows()),
    )  # fmt: skip


def vision(folder):
    from datasets import Dataset
    from PIL import Image
    from trl import GRPOTrainer

    if not (model := folder.parent / "vision").exists():
        make_vision(model)
    asked = [{"role": "user", "content": "What colour?"}]
    pictured = [
        {"prompt": asked, "solution": str(n), "image": Image.new("RGB", (16 + 8 * (n % 2), 16), (n, 0, 0))} for n in range(8)
    ]
    return GRPOTrainer(
        model=str(model), reward_funcs=[wordy], args=config(folder, max_completion_length=8),
        train_dataset=Dataset.from_list([{**row, "thumbnail": Image.new("RGB", (8, 4))} for row in pictured]),
    )  # fmt: skip


def wordy(completions, **kwargs):
    return [len(text[0]["content"]) / 10 for text in completions]


class Theirs:
    """A callback of the user's own, with what it was shown."""

    @staticmethod
    def added_to(trainer):
        from transformers import TrainerCallback

        class Noted(TrainerCallback):
            def __init__(self):
                self.logs = []

            def on_log(self, args, state, control, logs=None, **_):
                self.logs.append(dict(logs))

        trainer.add_callback(noted := Noted())
        return noted


# -- what is compared --------------------------------------------------------------------------------------------------
def without_times(logs):
    times = ("step_time", "_runtime", "_per_second")
    return [{key: value for key, value in row.items() if not key.endswith(times)} for row in logs]


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.named_parameters() if value.requires_grad}


def trained(make, folder, attached):
    """(the trainer, its run or None, what its own callback was shown)."""
    folder.mkdir(parents=True)
    torch.manual_seed(5)
    trainer = make(folder)
    noted = Theirs.added_to(trainer)
    run = attach(trainer, watchers=[LivePlot()], run_name="theirs") if attached else None
    trainer.train()
    return trainer, run, noted.logs


@pytest.mark.parametrize(
    "make",
    [
        trl_chat,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (trl_text_two_functions, unsloth_4bit, reward_model)),
        async_function,
        pytest.param(vision, marks=pytest.mark.slow),
    ],
    ids=lambda make: make.__name__,
)
def test_the_numbers_are_theirs_and_the_record_is_there(home, tmp_path, make, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: Handle(shown))
    alone, _, alone_logs = trained(make, tmp_path / "alone", attached=False)
    with_us, run, logs = trained(make, tmp_path / "with", attached=True)

    assert without_times(with_us.state.log_history) == without_times(alone.state.log_history)
    assert without_times(logs) == without_times(alone_logs)
    before, after = weights(alone), weights(with_us)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)

    # The record: every completion, each function's scores, a row for every step, and how it ended.
    frame = query(run.rollouts)
    names = run.manifest()["rewards"]["weights"]
    batches = frame["step"].nunique()
    assert len(frame) == 8 * batches * with_us.args.gradient_accumulation_steps
    assert {f"score.{name}" for name in with_us.reward_func_names} <= set(frame.columns)
    means = frame.groupby("step")["total"].mean()
    assert means.tolist() == pytest.approx([run.metrics()[step - 1]["reward"] for step in means.index], abs=1e-5)
    logged = {entry["step"]: entry["learning_rate"] for entry in with_us.state.log_history if "learning_rate" in entry}
    rates = {row["step"]: row["learning_rate"] for row in run.metrics()}
    assert logged
    assert {step: rates[step] for step in logged} == pytest.approx(logged)
    assert [row["step"] for row in run.metrics()] == list(range(1, STEPS + 1))
    assert {f"rewards/{name}/mean" for name in names} <= run.metrics()[0].keys()
    assert {"group_reward_std", "groups/dead", "learning_rate", "completions/mean_length"} <= run.metrics()[0].keys()
    kinds = [event["event"] for event in run.events()]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert run.result()["status"] == "finished"
    assert not run.live
    assert (run.final / "adapter_config.json").is_file() == hasattr(with_us.model, "peft_config")
    # The live figure, and the health.
    pictures = [data["image/png"] for data in shown if "image/png" in data]
    assert pictures
    assert base64.b64decode(pictures[-1]).startswith(b"\x89PNG") or isinstance(pictures[-1], bytes)
    assert {verdict.name for verdict in examine_run(run)} >= {"dead_groups", "kl_runaway"}
    said = capsys.readouterr().out
    assert "without a recipe" in said
    assert re.search(r"finished after \d+ steps.*to record another train\(\), attach again", said)
    assert Recipe.load(run.path / "recipe.yaml").grpo["per_device_train_batch_size"] == 8
    with pytest.raises(RunError, match="resume_from_checkpoint"):
        continue_run(run)


class Handle:
    def __init__(self, shown):
        self.update = lambda data, **_: shown.append(data)


# -- one trainer -------------------------------------------------------------------------------------------------------
@pytest.fixture
def trainer(home, tmp_path):
    return async_function(tmp_path)


def test_what_cannot_be_attached_is_named(home, trainer):
    for what in (arithmetic(2, 2), type(trainer), None):
        with pytest.raises(RunError, match="GRPOTrainer"):
            attach(what)
    run = attach(trainer, run_name="once")
    with pytest.raises(RunError, match="attached already, as once"):
        attach(trainer)
    with pytest.raises(RunError, match="not made from that plan"):
        attach(async_function(run.path), prepare(Recipe(), arithmetic(16, 2)))


def test_a_session_that_cannot_begin_leaves_the_trainer_as_it_was(home, monkeypatch):
    recipe = Recipe.of({"policy": {"load_in_4bit": False}, "grpo": {"num_generations": 4, "max_steps": 1}})
    plan = prepare(recipe, arithmetic(16, 2))
    trainer = make_trainer(plan, load_policy("tiny", load_in_4bit=False))
    with monkeypatch.context() as broken:
        broken.setattr("workbench.training.features.trackers.check_trackers", unwritable)
        with pytest.raises(OSError, match="disk full"):
            attach(trainer)
    assert not any((home / "runs").iterdir())
    assert "train" not in vars(trainer)
    assert attach(trainer).live


def unwritable(*_):
    raise OSError("disk full")


def test_it_is_steered_and_stopped_like_any_run(home, trainer):
    class Asks:
        def begin(self, run, total_steps, settings):
            self.run = run

        def update(self, step, values):
            if step == 1:
                send(self.run, "weight", function="awaited", value=2.0)
                send(self.run, "reload")
                send(self.run, "sample")
                os.kill(os.getpid(), signal.SIGINT)

        def end(self, message):
            self.message = message

    asks = Asks()
    run = attach(trainer, watchers=[asks], run_name="steered")
    trainer.train()
    assert (run.result()["status"], run.result()["steps"]) == ("stopped", 2)
    assert RunState.of(run).weights == {"awaited": 2.0}
    assert trainer.reward_weights.tolist() == [2.0]
    refused = [event["action"] for event in run.events() if event["event"] == "control" and not event["applied"]]
    assert refused == ["reload", "sample"]
    assert "stopped after 2 steps" in asks.message
    assert FollowedRun(run).message() == "stopped after 2 steps; only its own trainer's resume_from_checkpoint can resume it"


def test_a_record_that_cannot_be_written_does_not_end_their_training(home, trainer, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    run = attach(trainer)
    monkeypatch.setattr("workbench.training.recorder.columns_of", full)
    with pytest.warns(UserWarning, match="training continues: OSError: No space") as warned:
        trainer.train()
    assert len([each for each in warned if "OSError: No space" in str(each.message)]) == 1  # and an event for each step
    assert [event["step"] for event in run.events() if event["event"] == "not_recorded"] == [1, 3]  # num_iterations = 2
    assert trainer.state.global_step == STEPS
    assert run.result()["status"] == "finished"
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


@pytest.mark.parametrize("where", ["write_part", "columns_of"])  # on the thread that writes, and before
def test_a_batch_that_cannot_be_recorded_is_one_batch(home, tmp_path, monkeypatch, where, capsys):
    from workbench.training import recorder

    real, asks = getattr(recorder, where), Steers("weight", function="wordy", value=2.0)

    def second_fails(*args):
        step = args[1] if where == "write_part" else args[0].step
        if step == 2:
            raise OSError("Input/output error")
        return real(*args)

    run = attach(trainer := vision(tmp_path), watchers=[asks], run_name="r")
    monkeypatch.setattr(recorder, where, second_fails)
    with pytest.warns(UserWarning, match="r: step 2: .*OSError: Input/output error"):
        trainer.train()
    assert sorted(query(run.rollouts)["step"].unique()) == [1, 3]
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    assert [event["step"] for event in run.events() if event["event"] == "not_recorded"] == [2]
    assert trainer.reward_weights.tolist() == [2.0]
    assert "WARNING: a batch of completions was not recorded (1 times)" in capsys.readouterr().out
    assert len(examine_run(run)) > 5


class Steers:
    """Asks for one thing after the first step."""

    def __init__(self, action, **details):
        self.asked = action, details

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        if step == 1:
            send(self.run, self.asked[0], **self.asked[1])

    def end(self, message):
        self.message = message


def test_an_adapter_of_another_name_is_saved_and_a_full_disk_is_a_warning(home, tmp_path, monkeypatch):
    from datasets import Dataset
    from peft import IA3Config, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    def made():
        shape = IA3Config(target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM")
        return GRPOTrainer(
            model=get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL_DIR), shape, adapter_name="mine"),
            processing_class=AutoTokenizer.from_pretrained(MODEL_DIR), reward_funcs=[has_answer],
            args=config(tmp_path, max_steps=1, bf16=False), train_dataset=Dataset.from_list(rows()),
        )  # fmt: skip

    run = attach(trainer := made(), run_name="named")
    trainer.train()
    assert run.adapter == run.final
    with pytest.raises(RunError, match="task="):
        evaluate(run)
    assert evaluate(run, arithmetic(4, 2), held_out=2, samples=1).found["prompts"] == 2

    def full(*_, **__):
        raise OSError("No space left on device")

    run = attach(trainer := made(), run_name="full")
    monkeypatch.setattr(trainer.model, "save_pretrained", full)
    monkeypatch.setattr(RunDirectory, "update_manifest", full)
    with pytest.warns(UserWarning, match="No space") as warned:
        trainer.train()
    said = [str(each.message) for each in warned if "No space" in str(each.message)]
    assert [("adapter" in line, "record" in line) for line in said] == [(True, False), (False, True)]
    assert not run.live
    with pytest.raises(RunError, match="save_model"):
        run.adapter  # noqa: B018


def test_a_model_trained_whole_without_reference_refuses_beta(home, tmp_path):
    run = attach(trainer := trl_text_two_functions(tmp_path), watchers=[Steers("beta", value=0.1)])
    trainer.train()
    answered = [event for event in run.events() if event["event"] == "control"]
    assert [(event["action"], event["applied"]) for event in answered] == [("beta", False)]
    assert "no reference model" in answered[0]["why"]
    assert run.result()["status"] == "finished"


def test_a_reward_of_theirs_that_raises_is_their_error(home, trainer):
    async def broken(completions, **kwargs):
        raise ZeroDivisionError("mine")

    run = attach(trainer, run_name="broken")
    trainer.reward_funcs[0] = broken
    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer.train()
    assert not run.path.exists()  # it took no step
    assert "train" not in vars(trainer)


def test_in_a_notebook_the_live_plot_comes_unasked(home, trainer, monkeypatch):
    seen = []
    monkeypatch.setattr("workbench.training.session.unasked", [lambda: seen.append(plot := LivePlot()) or plot])
    attach(trainer)
    trainer.train()
    assert len(seen[0].view.history) == STEPS


def test_a_plan_without_a_task_makes_no_trainer():
    plan = prepare(Recipe(), arithmetic(16, 2))
    without = replace(plan, stages=tuple(replace(stage, task=None, suite=None) for stage in plan.stages))
    with pytest.raises(RecipeError, match="no task"):
        make_trainer(without, None)


def test_the_spine_in_the_open(home):
    """What notebook 03 shows; `train` is these lines."""
    recipe = Recipe.of(
        {
            "run_name": "open",
            "grpo": {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16},
            "stages": [{"name": "first", "steps": 1}, {"name": "second", "steps": 2}],
        }
    )
    plan = prepare(recipe, arithmetic(16, 2))
    policy = load_policy(plan)
    trainer = make_trainer(plan, policy)
    with pytest.raises(RunError, match=r"task[\s\S]*Task\(right_by=\.\.\., answer_column=\.\.\.\)"):
        attach(trainer, plan, right_by="correctness_reward")
    run = attach(trainer, plan)
    with pytest.raises(RunError, match="wb.continue_run"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    assert [event["stage"] for event in run.events() if event["event"] == "stage"] == ["first", "second"]
    assert run.result()["status"] == "finished"
    assert run.adapter == run.final


# -- what a record must not say ----------------------------------------------------------------------------------------
def test_pictures_are_named_and_tell_prompts_apart(home, tmp_path):
    run = attach(trainer := vision(tmp_path), run_name="r")
    trainer.train()
    frame = query(run.rollouts)
    assert set(frame["prompt"]) == {f'[{{"role": "user", "content": "[image {wide}x16]What colour?"}}]' for wide in (16, 24)}
    assert frame["columns"].str.contains('"thumbnail": "[image 8x4]"', regex=False).all()
    assert (frame.groupby(["step", "group"])["prompt_id"].nunique() == 1).all()
    asked = frame.groupby("prompt_id")["columns"].nunique()
    assert (asked == 1).all()  # one text for all rows, and each has its own picture
    assert len(asked) == frame["columns"].nunique() > 1
    assert not frame.astype(str).apply(lambda column: column.str.contains("0x")).any(axis=None)


def test_several_pictures_stand_where_they_were_and_make_the_prompt():
    from PIL import Image

    first, second = (Image.new("RGB", (size, 4), (size, 0, 0)) for size in (8, 12))
    parts = [
        {"type": "image", "image": first},
        {"type": "text", "text": " or "},
        {"type": "image", "image": second},
        {"type": "audio"},
    ]
    asked = [{"role": "system", "content": "Choose."}, {"role": "user", "content": parts}]
    assert in_words(asked)[1] == {"role": "user", "content": "[image 8x4] or [image 12x4][audio]"}
    assert (in_words("Q: 1\n"), in_words(asked[:1])) == ("Q: 1\n", asked[:1])
    plain = [{"role": "user", "content": "Choose."}]
    keys = [row_key({"prompt": plain, **pictures}) for pictures in ({}, {"images": [first, second]}, {"images": [second, first]})]
    assert keys[0] == prompt_key(plain)[:12]
    assert len({*keys, row_key({"prompt": asked})}) == 4
    assert keys[1] == row_key({"images": [first.copy(), second.copy()], "prompt": plain})


def test_what_json_does_not_know_is_its_type_and_never_an_address():
    from workbench.base.workspace import to_json

    class Environment:
        pass

    known = {"a": Environment(), "b": [Environment], "c": b"raw", "d": Path("x"), "e": {1: float("nan")}, "f": len}
    assert to_json(known)["a"] == "<Environment>"
    assert "0x" not in str(to_json(known))
    assert [to_json(known)[name] for name in "cde"] == ["<bytes>", "x", {"1": None}]


def test_a_trainer_without_such_attributes_is_attached(home, trainer):
    for name in ("tools", "environment_factories", "rollout_func"):
        vars(trainer).pop(name, None)
    assert attach(trainer).live


@pytest.mark.parametrize("name", ["RLOO", "SFT", "DPO"])
def test_another_trainer_is_told_what_it_is(home, tmp_path, name):
    from trl import DPOTrainer, RLOOTrainer, SFTTrainer

    made = {"RLOO": RLOOTrainer, "SFT": SFTTrainer, "DPO": DPOTrainer}[name]
    with pytest.raises(RunError, match=f"{name}Trainer, which is not GRPO") as refused:
        attach(made.__new__(made))
    assert refused.value.remedy.startswith("train without attach")
    assert "wb.attach(trainer)" not in refused.value.remedy


def replaying(folder, how):
    """A trainer that learns from other completions in the place of group 1, weighs or orders them otherwise, or tries twice."""
    from datasets import Dataset
    from trl import GRPOTrainer

    class Replaying(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            made = super()._generate_and_score_completions(inputs)
            if how == "tried again" and not hasattr(self, "first"):
                self.first = made["advantages"]
                return self._generate_and_score_completions(inputs)
            self.original = made["advantages"].clone()
            if how == "other order":
                made |= {name: own.roll(4, 0) for name, own in made.items() if own is not None and own.dim() and len(own) == 8}
            if how == "buffer":
                made["completion_ids"][4:8] = made["completion_ids"][4:8].flip(1)
                made["advantages"][4:8] = torch.tensor([-1.0, 1.0, 0.5, -0.5])
            if how == "weighed":
                made["advantages"] *= 2
            return made

    return Replaying(
        model=str(MODEL_DIR), reward_funcs=[has_tags], args=config(folder, max_steps=1), train_dataset=Dataset.from_list(rows())
    )


def has_tags(completions, **kwargs):
    return [float(len(text[0]["content"])) for text in completions]


@pytest.mark.parametrize(
    ("how", "groups"), [("buffer", [1]), ("weighed", None), ("other order", None), ("tried again", [0, 1]), ("as it is", None)]
)
def test_the_advantages_on_record_are_those_trained_on_or_said_not_to_be(home, tmp_path, how, groups, capsys):
    run = attach(trainer := replaying(tmp_path, how), run_name="r")
    trainer.train()
    recorded = np.concatenate([batch.advantages for batch in read_batches(run)])
    factor = 2.0 if how == "weighed" else 1.0
    assert recorded[-8:] == pytest.approx(factor * trainer.original.numpy(), abs=1e-3)
    assert recorded[:-8] == pytest.approx(trainer.first.numpy() if how == "tried again" else [], abs=1e-3)
    events = [event for event in run.events() if event["event"] == "not_trained_on"]
    assert [(event["step"], event["groups"]) for event in events] == ([(1, groups)] if groups else [])
    assert (f"{len(groups or [])} of 2 groups: the trainer learns from other completions" in capsys.readouterr().out) == bool(
        groups
    )


def test_one_row_is_one_prompt_whatever_was_made_of_it(home, trainer):
    run = attach(trainer, run_name="r")
    given = [rows()[0]] * 4 + [rows()[1]] * 4
    observed = [[{"role": "user", "content": f"observation {n}"}] for n in range(8)]
    trainer.model.train()
    trainer._calculate_rewards(given, observed, [[{"role": "assistant", "content": "<"}]] * 8, [[5, 2]] * 8)
    trainer.train()
    first = query(run.rollouts, "select * from rollouts where prompt like '%observation%' order by \"group\", generation")
    assert first.groupby("group")["prompt_id"].nunique().tolist() == [1, 1]
    assert first["prompt_id"].nunique() == 2


def test_the_weights_in_force_are_recorded(home, trainer):
    trainer.reward_weights = torch.tensor([0.25])
    assert trainer.args.reward_weights is None
    assert attach(trainer).manifest()["rewards"]["weights"] == {"awaited": 0.25}


# -- what is right, and where the answer is ----------------------------------------------------------------------------
def parts_of(completions, **kwargs):
    return [min(1.0, len(text[0]["content"]) / 40) for text in completions]


def partial(folder, functions=None, steps=2):
    from datasets import Dataset
    from trl import GRPOTrainer

    solved = [{"prompt": row["prompt"], "solution": row["answer"], "target_words": 3} for row in rows()]
    return GRPOTrainer(
        model=str(MODEL_DIR), reward_funcs=functions or [has_tags, parts_of], args=config(folder, max_steps=steps),
        train_dataset=Dataset.from_list(solved), peft_config=lora(),
    )  # fmt: skip


SAID = [(("parts_of", 0.5), "parts_of >= 0.5"), (None, "has_tags > 0 (the first"), ("parts_of", "parts_of > 0")]


@pytest.mark.parametrize("said", [SAID[:1], pytest.param(SAID[1:], marks=pytest.mark.slow)], ids=["threshold", "others"])
def test_what_is_right_can_be_said_with_a_threshold(home, tmp_path, capsys, said):
    for asked, words in said:
        run = attach(trainer := partial(tmp_path), run_name=f"r{len(words)}", right_by=asked)
        assert words in capsys.readouterr().out
        trainer.train()
        frame, about = query(run.rollouts), run.manifest()["task"]
        least = 0.5 if isinstance(asked, tuple) else 1e-9
        assert frame["right"].tolist() == (frame["score.parts_of" if asked else "score.has_tags"] >= least).tolist()
        assert (about["right_at"], about["right_by_default"]) == (0.5 if isinstance(asked, tuple) else None, asked is None)
        shares = [name for name in by_step(run).frame.columns if name.startswith("share")]
        assert shares == ["share_right" if asked else "share of has_tags > 0"]
        assert ("'right' here: has_tags > 0" in inspection.failures(run).verdict) == (asked is None)
        assert ("'right' here" in write_report(run, markdown=True).read_text()) == (asked is None)
        title = FollowedRun(run).figure.charts["groups"].title
        assert ("right: has_tags > 0" in title) == (not asked)
        spoken = [each.line for each in examine_run(run) if re.search(r"\b(right|wrong)\b", each.line)]
        assert all(("'right' here" in line) == (asked is None) for line in spoken)
        assert "GRPOConfig" in FollowedRun(run).figure.unmeasured
    with pytest.raises(TaskError, match="right_by = 'nothing'"):
        attach(partial(tmp_path), right_by="nothing")


@pytest.mark.parametrize(
    ("score", "right_by"),
    [(0.0, None), pytest.param(0.0, "equal", marks=pytest.mark.slow), pytest.param(1.0, None, marks=pytest.mark.slow)],
)
def test_a_run_of_theirs_that_learns_nothing_is_sent_to_no_recipe(home, tmp_path, capsys, score, right_by):
    def equal(completions, **kwargs):
        return [score] * len(completions)

    run = attach(trainer := partial(tmp_path, [equal], steps=12), right_by=right_by)
    trainer.train()
    [ended] = [line for line in capsys.readouterr().out.splitlines() if "NOTHING LEARNT" in line]
    assert ("no completion was right" in ended, "('right' here: equal > 0)" in ended) == (not score, not score and not right_by)
    assert "workbench probe" in ended
    said = [ended, *(each.remedy for each in examine_run(run) if each.remedy)]
    assert "dead groups" in str(examine_run(run))
    assert not [line for line in said if "warm_start" in line or "in 02" in line]


def test_the_column_of_the_answer_is_recognised_or_said(home, tmp_path, capsys):
    run = attach(trainer := partial(tmp_path), run_name="solved")
    trainer.train()
    assert run.manifest()["task"]["answer_column"] == "solution"
    assert "the right answers are in the column 'solution'" in capsys.readouterr().out
    assert "right answer:" in explain_group(run).title
    assert "completions are wrong" in write_report(run, markdown=True).read_text()
    with pytest.raises(RunError, match="answer_column='solutoin'.*\n.*\n.*did you mean 'solution'"):
        attach(partial(tmp_path), answer_column="solutoin")
    run.update_manifest(task={**run.manifest()["task"], "answer_column": "answer"})  # as by an earlier version
    assert "right answer:" in explain_group(run).title
    with pytest.raises(RunError, match="no column 'target'"):
        write_report(run, answer_column="target")


def test_a_model_trained_whole_is_not_sent_from_the_report_to_evaluate(home, tmp_path):
    run = attach(trainer := trl_text_two_functions(tmp_path), run_name="whole")
    trainer.train()
    page = write_report(run, markdown=True).read_text()
    assert "not evaluated yet: the run keeps no adapter" in page
    assert "wb.evaluate" not in page
    with pytest.raises(RunError, match="trainer.save_model"):
        evaluate(run)


def test_a_report_on_somebodys_trainer_requests_nothing(home, tmp_path):
    run = attach(trainer := trl_text_two_functions(tmp_path), run_name="theirs")
    trainer.train()
    settings = write_report(run, markdown=True).read_text().partition("## Settings")[2].partition("## ")[0]
    assert "effective" in settings
    assert "requested" not in settings


@pytest.mark.slow
def test_a_report_without_a_known_answer_goes_without_its_causes(home, tmp_path):
    from datasets import Dataset

    trainer = partial(tmp_path)
    trainer.train_dataset = Dataset.from_list([{**row, "target": "1", "solution": "2"} for row in rows()]).remove_columns(
        "answer"
    )
    run = attach(trainer, run_name="r")
    trainer.train()
    page = write_report(run, markdown=True).read_text()
    assert "no column 'answer'; there are solution, target" in page
    assert "--answer-column NAME" in page
    assert "completions are wrong" in write_report(run, markdown=True, answer_column="target").read_text()
    assert CliRunner().invoke(app, ["report", "r", "--answer-column", "solution"]).exit_code == 0


def test_the_trainers_own_evaluation_is_kept(home, tmp_path):
    from datasets import Dataset
    from trl import GRPOTrainer

    asked = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_steps": 4, "logging_steps": 2}

    def made(folder):
        return GRPOTrainer(
            model=str(MODEL_DIR), reward_funcs=has_answer, args=config(folder, **asked, eval_on_start=True), peft_config=lora(),
            train_dataset=Dataset.from_list(rows()), eval_dataset=Dataset.from_list(rows()[:4]),
        )  # fmt: skip

    run = attach(trainer := made(tmp_path), run_name="r", watchers=[plot := LivePlot()])
    trainer.train()
    logged = {row["step"]: row for row in trainer.state.log_history if "eval_reward" in row}
    assert sorted(logged) == [0, 1, 2, 3, 4]
    kept = {row["step"]: row for row in run.metrics()}
    for step, row in logged.items():
        assert {key: kept[step][key] for key in row if key.startswith("eval_")} == {
            key: value for key, value in row.items() if key.startswith("eval_")
        }
        assert all(explain(key)["name"] == key for key in row if key.startswith("eval_"))
    # The steps' own rows are what they are without an evaluation between them.
    completions = query(run.rollouts).groupby("step")["total"].mean()
    assert [kept[step]["reward"] for step in (1, 2, 3, 4)] == pytest.approx(completions.tolist(), abs=1e-5)
    assert not [each for each in examine_run(run) if "evaluates nothing" in each.line or "eval_steps" in each.line]
    assert plot.view.history.steps.tolist() == FollowedRun(run).history.steps.tolist() == [1, 2, 3, 4]
    assert len(examine_run(run)) > 5
