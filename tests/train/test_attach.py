"""Attached to trainers that were written without the workbench: record, figure and health are there, the numbers untouched."""

from __future__ import annotations

import base64
import os
import re
import signal
from dataclasses import replace

import pytest
import torch

from workbench.errors import RecipeError, RunError
from workbench.health import examine_run
from workbench.inspection.evaluation import evaluate
from workbench.recipe import Recipe
from workbench.run.control_file import RunState, send
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.attach import attach
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.prepare import prepare
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
        broken.setattr("workbench.training.session.tracker_callbacks", unwritable)
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
    assert FollowedRun(run).message() == "stopped after 2 steps; only its own trainer's resume_from_checkpoint can go on with it"


def test_a_record_that_cannot_be_written_does_not_end_their_training(home, trainer, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    run = attach(trainer)
    monkeypatch.setattr("workbench.training.recorder.columns_of", full)
    with pytest.warns(UserWarning, match="training goes on without it: OSError: No space"):
        trainer.train()
    assert trainer.state.global_step == STEPS
    assert run.result()["status"] == "finished"


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
    class Asks:
        def begin(self, run, total_steps, settings):
            self.run = run

        def update(self, step, values):
            if step == 1:
                send(self.run, "beta", value=0.1)

        def end(self, message):
            pass

    run = attach(trainer := trl_text_two_functions(tmp_path), watchers=[Asks()])
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
    run = attach(trainer, plan)
    with pytest.raises(RunError, match="wb.continue_run"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    assert [event["stage"] for event in run.events() if event["event"] == "stage"] == ["first", "second"]
    assert run.result()["status"] == "finished"
    assert run.adapter == run.final
