"""Dead groups that are rescued: the loss by hand, prompts drawn by what the run has seen of them, oversampling counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from workbench.data.difficulty import row_key
from workbench.errors import RecipeError
from workbench.recipe import Recipe, RescuePart
from workbench.rewards.groups import batch_of
from workbench.run.control_file import send
from workbench.run.rollouts import query, read_batches
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.prepare import prepare
from workbench.training.rescue import Rates, drawn, notes
from workbench.training.settings import Batch, overridden
from workbench.training.trainer import continue_run, train

# One update of plain gradient descent: what the adapter moves by is the gradient itself.
GRPO = {
    "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 12, "learning_rate": 1.0,
    "optim": "sgd", "max_grad_norm": 0,
}  # fmt: skip


def recipe(name="r", rescue=None, **grpo) -> Recipe:
    policy = {"load_in_4bit": False, "dtype": "float32"}
    return Recipe.of({"run_name": name, "grpo": {**GRPO, **grpo}, "policy": policy, "rescue": rescue or {}})


def half_dead(completions, prompt_id, **kwargs):
    """Of each prompt the same score for all, or for the first of its four completions another one."""
    return [float(int(own) % 2 and place % 4 == 0) for place, own in enumerate(prompt_id)]


def task(count: int = 4) -> Task:
    rows = [{**row, "prompt_id": str(number)} for number, row in enumerate(arithmetic(count, 2).rows)]
    return Task("half", rows, [half_dead])


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", load_in_4bit=False, dtype="float32")


@pytest.fixture
def fresh(policy):
    """The policy as it was loaded: the adapter that a run left would be another start."""
    first = {name: value.detach().clone() for name, value in policy.model.named_parameters() if value.requires_grad}

    def again():
        with torch.no_grad():
            for name, value in policy.model.named_parameters():
                if name in first:
                    value.copy_(first[name])
        policy.trained_in.clear()
        return policy

    yield again
    again()


def moved(run) -> torch.Tensor:
    """The way that the adapter went, as one vector."""
    after = load_file(run.final / "adapter_model.safetensors")
    # B begins at 0, and A's gradient is 0 as long as B is.
    return torch.cat([after[name].flatten() for name in sorted(after) if "lora_B" in name])


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["dapo", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("grpo", "bnpo"))])
def test_dead_groups_are_left_out_of_what_the_loss_is_divided_by(home, fresh, loss):
    # Scores 1, 0, 0, 0: mean 1/4, std 1/2. Whoever looks at three completions without the fourth finds them equal.
    high, low = 0.75 / 0.5001, -0.25 / 0.5001
    found, ways = {}, {}
    for name, rescue in (("with", {"exclude_zero_variance": True}), ("without", {})):
        run = train(recipe(name, rescue, loss_type=loss), policy=fresh(), task=task())
        frame = query(run.rollouts).sort_values(["group", "generation"])
        lengths, live = frame["length_tokens"].to_numpy(float), (frame["prompt_id"].astype(int) % 2 == 1).to_numpy()
        expected = np.where(live, np.where(frame["generation"] == 0, high, low), 0.0)
        assert frame["advantage"].to_numpy() == pytest.approx(expected, abs=1e-5)  # the record's, without the factor
        assert live.sum() == 8
        sizes = np.ones(16) if loss == "grpo" else lengths
        counted = live if name == "with" else np.ones(16, bool)
        # At the first update the ratio is 1: each token's loss is -advantage. Of a grpo loss the mean over its tokens is.
        by_hand = -(expected * sizes).sum() / (sizes * counted).sum()
        [row] = run.metrics()
        assert row["loss"] == pytest.approx(by_hand, abs=2e-4)
        assert row["groups/dead"] == 0.5  # the record says what was generated
        assert row.get("rescue/factor") == (pytest.approx(sizes.sum() / sizes[live].sum()) if name == "with" else None)
        found[name], ways[name] = sizes.sum() / sizes[live].sum(), moved(run)
    assert ways["without"].abs().max() > 1e-6
    # Where the CPU computes in bfloat16, the two gradients are rounded at other places.
    assert (ways["with"] - ways["without"] * found["with"]).norm() < 0.03 * ways["with"].norm()
    assert found["with"] > 1.5


@pytest.mark.slow
def test_the_kl_term_stays_the_mean_over_all_completions(home, fresh):
    policy, generator = fresh(), torch.Generator().manual_seed(0)
    with torch.no_grad():  # away from the base, so that there is a KL in the first step, where the ratio is still 1
        for name, value in policy.model.named_parameters():
            if "lora_B" in name:
                value.add_(0.3 * torch.randn(value.shape, generator=generator))
    asked = recipe("r", {"exclude_zero_variance": True}, loss_type="dapo", beta=1.0)
    run = train(asked, policy=policy, task=task())
    frame, [row] = query(run.rollouts), run.metrics()
    live = frame["prompt_id"].astype(int) % 2 == 1
    learnt = -(frame["advantage"] * frame["length_tokens"]).sum() / frame[live]["length_tokens"].sum()
    assert row["kl"] > 0.02
    assert row["rescue/factor"] > 1.5
    assert row["loss"] == pytest.approx(learnt + row["kl"], abs=0.1 * row["kl"])


# --- the curriculum ---------------------------------------------------------------------------------------------------


def scored(prompt: str, right: list[bool]):
    size = len(right)
    columns = {"prompt_id": [prompt] * size}
    return batch_of(["f"], [1.0], [[float(own)] for own in right], ["x"] * size, right, size, columns=columns)


def test_weights_are_the_mean_of_p_times_1_minus_p():
    rates = Rates()
    assert rates.weight("new") == pytest.approx(1 / 6)  # Beta(1, 1): 1 * 1 / (2 * 3)
    rates.note(scored("half", [True, False] * 4))
    assert rates.weight("half") == pytest.approx(25 / 110)  # Beta(5, 5): 5 * 5 / (10 * 11)
    rates.note(scored("never", [False] * 8))
    rates.note(scored("always", [True] * 8))
    assert rates.weight("never") == rates.weight("always") == pytest.approx(9 / 110)  # Beta(1, 9)
    rates.note(scored("half", [True] * 8))  # 4 / 2 + 8 right, 4 / 2 wrong: Beta(11, 3)
    assert rates.weight("half") == pytest.approx(33 / (14 * 15))
    for _ in range(20):
        rates.note(scored("never", [False] * 8))
    assert rates.weight("never") > 0.04  # 16 at most are counted, so that no prompt is given up


def test_prompts_are_drawn_by_weight_without_repetition_and_again_the_same():
    weights = np.array([3.0, 1.0, 1.0, 1.0])
    firsts = np.array([drawn(weights, 3, [0, 0, place]) for place in range(3000)])
    assert all(len(set(own)) == 3 for own in firsts.tolist())
    # 3 of 6; four standard errors of 3,000 draws are 0.037.
    assert np.mean(firsts[:, 0] == 0) == pytest.approx(0.5, abs=0.037)
    # The second, once the first is gone: 1/2 * 0 + 3 * 1/6 * 3/5.
    assert np.mean(firsts[:, 1] == 0) == pytest.approx(0.3, abs=0.034)
    assert drawn(weights, 3, [0, 0, 7]).tolist() == firsts[7].tolist()


class StopsAfter:
    def __init__(self, step):
        self.step = step

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        if step == self.step:
            send(self.run, "stop", by="test")

    def end(self, message):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [3, 6])
def test_a_curriculum_goes_on_to_the_last_bit_and_draws_what_can_be_learnt(home, fresh, stop_after):
    asked = {"max_steps": 9, "per_device_train_batch_size": 8, "optim": "adamw_torch", "learning_rate": 1e-3}
    more = {"rescue": {"curriculum": True, "exclude_zero_variance": True}, **asked}
    rows = task(12)
    whole = train(recipe("whole", **more), policy=fresh(), task=rows)
    run = train(recipe("part", **more), policy=fresh(), task=rows, watchers=[StopsAfter(stop_after - 1)])
    assert run.result()["steps"] == stop_after
    continue_run(run, policy=fresh(), task=rows)
    columns = 'select step, "group", generation, prompt_id, completion, advantage from rollouts order by all'
    assert query(run.rollouts, columns).equals(query(whole.rollouts, columns))
    mine, theirs = (load_file(each.final / "adapter_model.safetensors") for each in (run, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    frame, rates, differ = query(whole.rollouts), Rates(), []
    groups = frame.groupby(["step", "group"])["prompt_id"]
    assert groups.nunique().eq(1).all()
    assert groups.size().eq(4).all()
    # What is drawn follows from all that was recorded until then, and not from the order of the rows.
    for batch in read_batches(whole):
        weights = np.array([rates.weight(str(prompt)) for prompt in range(12)])
        places = [drawn(own, 2, [0, 0, batch.step - 1]).tolist() for own in (weights, np.ones(12))]
        assert batch.prompt_ids[::4] == list(map(str, places[0]))
        differ.append(places[0] != places[1])
        rates.note(batch)
    assert any(differ[stop_after:]), "without the record, the rest would have been drawn otherwise"


@pytest.mark.slow
def test_what_notebook_01_measured_decides_the_first_draw(home, fresh):
    folder = home / "tasks" / "half"
    folder.mkdir(parents=True)
    code = "from pathlib import Path\nfrom workbench.data.sources import load_rows\nfrom workbench.task import Task\n\n"
    code += "def scored(completions, **kwargs):\n    return [float(n % 4 == 0) for n, _ in enumerate(completions)]\n\n"
    code += "task = Task('half', load_rows(Path(__file__).parent / 'rows.jsonl'), [scored])\n"
    (folder / "task.py").write_text(code)
    rows = task(40).rows
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # All but two were never solved in 1,000 tries: weight 1001 / (1002 * 1003), and 0.25 for those.
    lines = [{"row": row_key(row), "right": 500 * (n in (11, 29)), "of": 1000, "finished": 0} for n, row in enumerate(rows)]
    profile = folder / "difficulty.jsonl"
    profile.write_text("".join(json.dumps(line) + "\n" for line in [{"settings": {}}, *lines]))
    asked = recipe("r", {"curriculum": True}, per_device_train_batch_size=8, max_steps=2)
    asked = asked.model_copy(update={"task": str(folder / "task.py")})
    run = train(asked, policy=fresh(), watchers=[StopsAfter(0)])
    frame = query(run.rollouts)
    assert set(frame[frame["step"] == 1]["prompt_id"]) == {"11", "29"}
    assert (run.path / "task.difficulty.jsonl").read_bytes() == profile.read_bytes()


# --- oversampling -----------------------------------------------------------------------------------------------------


def test_oversampling_fills_the_batch_with_live_groups_and_counts_the_rest(home, fresh):
    asked = recipe("r", {"oversample": 2}, loss_type="dapo", per_device_train_batch_size=8)
    run = train(asked, policy=fresh(), task=task())
    frame = query(run.rollouts)
    assert len(frame) == 16  # twice the 8 that are learnt from, all on record
    assert sorted(frame["prompt_id"].unique()) == ["0", "1", "2", "3"]
    live = frame["prompt_id"].astype(int) % 2 == 1
    [row] = run.metrics()
    assert (row["groups/dead"], row["rescue/dead"]) == (0.5, 0.0)
    assert row["rescue/left_out_tokens"] == frame[~live]["length_tokens"].sum()
    assert 0 < row["time/left_out_s"] < row["step_time"]
    tokens, advantages = frame["length_tokens"], frame["advantage"]
    assert row["loss"] == pytest.approx(-(tokens * advantages)[live].sum() / tokens[live].sum(), abs=2e-4)


@pytest.mark.slow
def test_where_live_groups_are_too_few_dead_ones_fill_the_batch(home, fresh):
    rows = [row for row in task(16).rows if int(row["prompt_id"]) % 2 == 0 or row["prompt_id"] == "1"][:8]
    asked = recipe("r", {"oversample": 2, "exclude_zero_variance": True}, loss_type="grpo")
    run = train(asked, policy=fresh(), task=Task("one", rows, [half_dead]))
    [row] = run.metrics()
    assert row["groups/dead"] == 7 / 8
    assert row["rescue/dead"] == 3 / 4
    assert row["rescue/factor"] == 4.0


# --- the recipe and the plan --------------------------------------------------------------------------------------------


def test_what_is_refused(monkeypatch, policy):
    with pytest.raises(RecipeError, match="rescue = True"):  # which of them: none has been seen to help everywhere
        Recipe.of({"rescue": True})
    assert overridden(Recipe(), ["rescue.oversample=3"]).rescue == RescuePart(oversample=3)
    with pytest.raises(RecipeError, match=r"rescue.oversample = 0"):
        Recipe.of({"rescue": {"oversample": 0}})
    with pytest.raises(RecipeError, match="exclude_zero_variance"):
        Recipe.of({"rescue": {"exclude_zero_varianc": True}})

    def told(rescue, **settings):
        return notes(recipe("r", rescue), {"scale_rewards": "group", **settings}, Batch(8, 4), [None] * 4)

    for rescue, more, words in (
        ({"oversample": 2}, {"scale_rewards": "batch"}, "made within its group"),
        ({"oversample": 2}, {"multi_objective_aggregation": "normalize_then_sum"}, "made within its group"),
        ({"oversample": 2}, {"use_vllm": True}, "TRL's own path"),
        ({"oversample": 3}, {}, "draws 3 x 2 different prompts; there are 4"),
        ({"curriculum": True}, {"shuffle_dataset": False}, "curriculum with grpo.shuffle_dataset = False"),
    ):
        with pytest.raises(RecipeError, match=words):
            told(rescue, **more)
    fewer = recipe("r", {"oversample": 2}, per_device_train_batch_size=8).model_copy(update={"max_prompt_length": 40})
    rows = [{**row, "prompt": "1" * (2 if n else 200)} for n, row in enumerate(task().rows)]
    with pytest.raises(RecipeError, match="draws 2 x 2 different prompts; there are 3"):
        prepare(fewer, Task("some", rows, [half_dead]), policy=policy)
    monkeypatch.setenv("UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE", "1")
    with pytest.raises(RecipeError, match="left out once"):
        told({"exclude_zero_variance": True})
    assert told({"curriculum": True})
    monkeypatch.setattr("workbench.processes.count", lambda: 2)
    for part in ("exclude_zero_variance", "curriculum"):
        with pytest.raises(RecipeError, match=f"{part} with 2 processes"):
            told({part: True})
    assert told({}) == []


def test_the_plan_says_what_it_does_at_this_batch(policy):
    asked = {"exclude_zero_variance": True, "curriculum": True, "oversample": 2}
    made = prepare(recipe("r", asked, per_device_train_batch_size=8), task(), policy=policy)
    [exclude, curriculum, oversample] = [note for note in made.notes if note.startswith("rescue.")]
    assert "loss_type = 'dapo' is averaged over the tokens of live groups, not of all 2" in exclude
    assert "KL" not in exclude
    assert "p(1 - p)" in curriculum
    assert "oversample = 2: 16 completions of 4 prompts" in oversample
    assert "for each 8" in oversample
    [line] = notes(recipe("r", {"exclude_zero_variance": True}), {"loss_type": "grpo", "beta": 0.01}, Batch(16, 4), [])
    assert "completions of live groups, not of all 4" in line
    assert "the KL term stays the mean over all completions" in line
