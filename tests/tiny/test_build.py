"""The script that makes the embedded policy, shortened, and the policy that travels with the package."""

import itertools
import json
import math
import re
import struct

import pytest

from tools.tiny import habits
from workbench.tiny import MODEL_DIR
from workbench.tiny import task as arithmetic

SHORT_STEPS = 200
LOSS_AFTER_SHORT = 0.8  # nats per completion token; an untrained model has about ln(640) = 6.5
DIGITS_AFTER_SHORT = 0.32  # share of digits foreseen in held-out sums; the best constant digit reaches 0.25


@pytest.fixture(scope="module")
def tokenizer():
    from tools.tiny.vocabulary import to_tokenizer, train_sentencepiece, vocabulary_text

    return to_tokenizer(train_sentencepiece(vocabulary_text()))


@pytest.mark.slow
def test_a_shortened_build_learns_and_an_untrained_model_does_not(tokenizer):
    from tools.tiny.learning import completion_loss, new_model, to_batch, train, training_texts
    from tools.tiny.measuring import digits_foreseen

    problems = arithmetic.sample_problems("held_out", 200)
    model = new_model(tokenizer, seed=0)
    texts = training_texts(0, skill_rows=96)
    batch = to_batch([next(texts) for _ in range(96)], tokenizer)
    assert completion_loss(model, batch).item() > LOSS_AFTER_SHORT
    assert digits_foreseen(model, tokenizer, problems) < DIGITS_AFTER_SHORT

    losses = train(model, tokenizer, SHORT_STEPS, seed=0, progress=False, skill_share=1.0)
    assert len(losses) == SHORT_STEPS
    assert sum(losses[-10:]) / 10 < LOSS_AFTER_SHORT
    assert digits_foreseen(model, tokenizer, problems) > DIGITS_AFTER_SHORT


@pytest.mark.slow
def test_a_build_writes_a_folder_that_loads_and_the_same_seed_writes_it_again(tmp_path):
    from tools.tiny.build import build
    from tools.tiny.measuring import load

    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        measured = build(tmp_path / name, steps=2, seed=seed, progress=False, prompts=2)
        assert set(measured) == {"16-bit", "NF4"}
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]  # nothing half-built stays behind
    assert {path.name for path in (tmp_path / "a").iterdir()} == {path.name for path in MODEL_DIR.iterdir()}
    model, loaded = load(tmp_path / "a", nf4=True)
    assert model.config.vocab_size == len(loaded)


@pytest.mark.slow
def test_a_build_replaces_a_folder_whole(tmp_path):
    from tools.tiny.build import build

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("left over")
    build(tmp_path / "model", steps=1, progress=False, prompts=2)
    assert not (tmp_path / "model" / "old").exists()


# --- the training text ------------------------------------------------------------------------------------------


def test_held_out_pairs_never_enter_the_training_text():
    from tools.tiny.learning import training_texts

    held_out = {problem.key for problem in arithmetic.problems("held_out")}
    assert 0.08 < len(held_out) / 5050 < 0.12
    for problem, messages, completion in itertools.islice(training_texts(0, skill_rows=5_000), 30_000):
        assert not arithmetic.is_held_out(problem)
        for text in (messages[-1]["content"], completion):
            for a, b in re.findall(r"(\d+) [+-] (\d+)", text):
                assert f"{min(int(a), int(b))},{max(int(a), int(b))}" not in held_out


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_is_held_out_in_both_orders_and_for_both_operations(seed):
    for problem in arithmetic.sample_problems("held_out", 300, seed):
        a, b = sorted((problem.a, problem.b))
        same = [arithmetic.Problem(a, "+", b), arithmetic.Problem(b, "+", a), arithmetic.Problem(b, "-", a)]
        assert all(arithmetic.is_held_out(other) for other in same)


def test_rows_are_deterministic_and_splits_do_not_meet():
    rows = arithmetic.rows("held_out", 50, seed=1)
    assert rows == arithmetic.rows("held_out", 50, seed=1) != arithmetic.rows("held_out", 50, seed=2)
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert not set(arithmetic.problems("train")) & set(arithmetic.problems("held_out"))
    assert len(arithmetic.problems("train")) + len(arithmetic.problems("held_out")) == 15_050
    for n in (0, -1, 10**6):
        with pytest.raises(ValueError, match="ask for fewer"):
            arithmetic.rows("held_out", n)
    with pytest.raises(ValueError, match="held_out"):
        arithmetic.rows("test", 1)


def test_right_completions_are_right_and_taught_errors_are_wrong():
    import random

    rng = random.Random(0)
    for problem in arithmetic.all_problems():
        assert problem.answer == str(eval(f"{problem.a}{problem.op}{problem.b}"))
        ideal = habits.ideal_completion(problem)
        assert habits.is_strict_correct(ideal, problem.answer)
        for part in habits.strict_blocks(ideal)[0].split(", "):
            left, right = part.split("=")
            assert eval(left) == int(right)
        wrong = habits.wrong_sum(problem, rng)
        assert habits.strict_blocks(wrong)
        assert not habits.is_strict_correct(wrong, problem.answer)
        assert habits.is_deliberate_error(wrong, problem)
        assert not habits.is_deliberate_error(ideal, problem)


def test_habits_are_what_their_names_say():
    import random

    rng = random.Random(0)
    assert math.isclose(sum(habit.share for habit in habits.HABITS), 1.0)
    for habit in habits.HABITS:
        for problem in arithmetic.sample_problems("train", 200):
            assert habits.classify(habit.write(problem, rng), problem.answer) == habit.name


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "42",
        "<answer>42</answer>",
        "<reasoning></reasoning><answer>42</answer>",
        "<reasoning>x</reasoning><answer> </answer>",
        "<reasoning>x</reasoning>and<answer>42</answer>",
        "<reasoning>x</reasoning>\n<answer>42</answer> done",
        "<reasoning>x<reasoning>y</reasoning><answer>42</answer>",
        "<reasoning>x</reasoning><answer>42</answer><answer>42</answer>",
        "<answer>42</answer><reasoning>x</reasoning>",
    ],
)
def test_the_strict_format_is_strict(completion):
    assert habits.strict_blocks(completion) is None


# --- the policy in the package ----------------------------------------------------------------------------------


def _header() -> dict:
    raw = (MODEL_DIR / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return {key: value for key, value in json.loads(raw[8 : 8 + length]).items() if key != "__metadata__"}


def test_the_shipped_policy_is_small_and_wide_enough_for_nf4():
    header = _header()
    assert sum(math.prod(tensor["shape"]) for tensor in header.values()) <= 4_000_000
    assert sum(path.stat().st_size for path in MODEL_DIR.rglob("*") if path.is_file()) <= 8_000_000
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}
    inputs = [tensor["shape"][1] for name, tensor in header.items() if "_proj" in name]
    assert len(inputs) % 7 == 0
    assert all(width >= 64 and width % 64 == 0 for width in inputs)


def test_the_shipped_projections_lie_on_the_nf4_grid():
    import torch

    from tools.tiny.learning import ThroughNF4, projections
    from tools.tiny.measuring import load

    model, _ = load(MODEL_DIR)
    moved = [(ThroughNF4()(layer.weight) - layer.weight).norm() / layer.weight.norm() for layer in projections(model)]
    assert max(moved) < 0.02
    unsettled = torch.randn(256, 256)
    assert (ThroughNF4()(unsettled) - unsettled).norm() / unsettled.norm() > 0.05  # the bound above can fail


@pytest.mark.slow
def test_the_shipped_policy_begins_where_grpo_has_something_to_teach():
    from tools.tiny.measuring import load, measure

    model, tokenizer = load(MODEL_DIR, nf4=True)
    kinds = {type(module).__name__ for name, module in model.named_modules() if name.endswith("_proj")}
    assert kinds == {"Linear4bit"}
    shares = measure(model, tokenizer, prompts=200, samples=4, seed=1)
    error = 2 * math.sqrt(0.3 * 0.7 / 800)  # two standard errors of a share of 800 completions
    assert 0.20 - error <= shares["strict_correct"] <= 0.35 + error, shares
    assert all(shares[name] >= 0.05 for name in habits.HABIT_NAMES), shares
    assert shares["skill"] >= 0.95, shares
