"""`algorithm` in a recipe: what each word sets, held against the papers as TRL's page on them has them, written out by hand."""

from __future__ import annotations

import typing

import pytest

import workbench as wb
from workbench.base.errors import RecipeError
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_advantages
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.tiny.task import task
from workbench.training.changes import changed_since_begun
from workbench.training.plan.script import read_script
from workbench.training.plan.settings import check_values, field_kinds, field_names, normalised, overridden
from workbench.training.plan.settings.algorithms import ALGORITHMS
from workbench.training.plan.stages import planned_stages
from workbench.training.policy import trainer_classes
from workbench.training.resuming import Point
from workbench.training.trainer import train

PAPERS = {
    "grpo": ("2402.03300", {"loss_type": "grpo", "scale_rewards": "group", "importance_sampling_level": "token"}),
    "dr_grpo": ("2503.20783", {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0}),
    "dapo": (
        "2503.14476",
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "mask_truncated_completions": True, "beta": 0.0},
    ),
    "gspo": (
        "2507.18071",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.0003, "epsilon_high": 0.0004, "beta": 0.0},
    ),
    "gdpo": ("2601.05242", {"multi_objective_aggregation": "normalize_then_sum"}),
    "cispo": ("2506.13585", {"loss_type": "cispo", "epsilon_high": 5.0}),
}


@pytest.fixture(scope="module")
def fields():
    return field_names(trainer_classes()[0])


def made(fields, algorithm, **grpo):
    """(settings, lines)."""
    _, settings, lines = normalised(Recipe(algorithm=algorithm, grpo=grpo), fields)
    return settings, lines


def test_the_table_and_the_recipe_have_the_same_words():
    annotation = Recipe.model_fields["algorithm"].annotation
    words = {word for part in typing.get_args(annotation) for word in typing.get_args(part)}
    assert words == set(ALGORITHMS) == set(PAPERS)


@pytest.mark.parametrize("algorithm", PAPERS)
def test_an_algorithm_sets_the_fields_of_its_paper_and_no_other(fields, algorithm):
    source, expected = PAPERS[algorithm]
    settings, lines = made(fields, algorithm)
    plain, _ = made(fields, None)
    assert {name: value for name, value in settings.items() if name in expected} == expected
    assert {name: value for name, value in settings.items() if name not in expected} == {
        name: value for name, value in plain.items() if name not in expected
    }
    assert source in lines[0]
    assert all(f"{name} = {value!r}" in lines[0] for name, value in expected.items())


@pytest.mark.parametrize("algorithm", PAPERS)
def test_the_plan_says_whose_each_field_is(algorithm):
    source, expected = PAPERS[algorithm]
    found = wb.plan(Recipe(algorithm=algorithm), task=task(16, 2))
    rows = {row.name: row for row in found.rows}
    for name, value in expected.items():
        assert (rows[name].in_force, rows[name].by.startswith(f"{algorithm} (arXiv {source}")) == (value, True)
    assert {name for name, row in rows.items() if "arXiv" in row.by} == set(expected)
    assert any(source in note for note in found.notes)


def test_what_grpo_asks_for_by_name_wins_and_that_is_said(fields):
    settings, lines = made(fields, "dapo", beta=0.001, epsilon_high=0.28)
    assert (settings["beta"], settings["epsilon_high"]) == (0.001, 0.28)
    assert "beta = 0.001, as grpo says by name; dapo has 0.0" in lines
    assert not any("epsilon_high" in line and "by name" in line for line in lines), "the paper's own value is no difference"
    assert "beta" not in lines[0].partition(" sets ")[2].partition(":")[0]
    # False is TRL's older word for "none".
    assert len(made(fields, "dr_grpo", scale_rewards=False)[1]) == 1


def test_a_loss_by_name_is_of_the_same_table_and_brings_less(fields):
    for loss in ("dr_grpo", "cispo"):
        by_loss, by_word = made(fields, None, loss_type=loss)[0], made(fields, loss)[0]
        assert by_loss == by_word
    assert made(fields, None, loss_type="dapo")[0]["mask_truncated_completions"] is False
    assert made(fields, None, loss_type="dapo", epsilon=0.1)[0]["epsilon_high"] == 0.1
    # Both words: the algorithm's fields, and the loss that grpo names.
    settings, lines = made(fields, "gspo", loss_type="dapo")
    assert (settings["loss_type"], settings["epsilon_high"]) == ("dapo", 0.0004)
    assert "loss_type = 'dapo', as grpo says by name; gspo has 'grpo'" in lines


@pytest.mark.parametrize(
    ("algorithm", "grpo", "inert"),
    [
        ("gspo", {}, ["epsilon, epsilon_high do nothing", "importance_sampling_level does nothing"]),
        ("cispo", {}, ["epsilon_high does nothing", "loss_type does nothing"]),
        ("dapo", {"beta": 0.01}, ["epsilon_high does nothing"]),
        ("gspo", {"num_iterations": 2}, []),
        ("cispo", {"steps_per_generation": 2}, []),
        ("cispo", {"steps_per_generation": 2, "gradient_accumulation_steps": 2},
         ["epsilon_high does nothing", "loss_type does nothing"]),
        ("gspo", {"beta": 0.01}, ["epsilon, epsilon_high do nothing"]),  # the ratio is in its KL term, which has a gradient
        ("gspo", {"top_entropy_quantile": 0.2}, ["epsilon, epsilon_high do nothing"]),
        ("cispo", {"epsilon_high": 0.5}, []),  # which halves every gradient
        ("grpo", {}, []),
        ("dr_grpo", {}, []),
        ("gdpo", {}, []),
        ("gdpo", {"scale_rewards": "none"}, ["scale_rewards does nothing"]),
    ],
)  # fmt: skip
def test_what_is_inert_at_one_update_per_generation_is_said(fields, algorithm, grpo, inert):
    lines = [line for line in made(fields, algorithm, **grpo)[1] if "nothing here" in line]
    assert [line.partition(" here")[0] for line in lines] == inert


def test_an_algorithm_warns_as_its_settings_do(fields):
    assert any("caps every weight below 1" in line for line in made(fields, "cispo", epsilon_high=0.5)[1])


def test_where_the_word_may_stand(fields):
    assert overridden(Recipe(), ["algorithm=gspo"]).algorithm == "gspo"
    recipe, _, lines = normalised(Recipe(grpo={"algorithm": "gspo"}), fields)
    assert (recipe.algorithm, "algorithm" in recipe.grpo) == ("gspo", False)
    assert any("algorithm belongs to the recipe" in line for line in lines)
    with pytest.raises(RecipeError, match=r"algorithm = 'gspoo'[\s\S]*did you mean 'gspo'"):
        Recipe(algorithm="gspoo")
    assert Recipe(algorithm="Dr-GRPO").algorithm == "dr_grpo"
    with pytest.raises(RecipeError, match="set algorithm: gspo in the recipe"):
        check_values({"loss_type": "gspo"}, field_kinds(trainer_classes()[0]))
    with pytest.raises(RecipeError, match="a stage changes settings of GRPOConfig"):
        normalised(Recipe.of({"stages": [{"name": "a", "steps": 1, "grpo": {"algorithm": "gspo"}}]}), fields)
    with pytest.raises(RecipeError, match="algorithm"):
        Recipe.of({"stages": [{"name": "a", "steps": 1, "algorithm": "gspo"}]})


def test_a_stage_may_say_a_single_setting_otherwise(fields):
    stages = [{"name": "a", "steps": 1}, {"name": "b", "steps": 1, "grpo": {"epsilon": 0.1}}]
    first, second = planned_stages(Recipe.of({"algorithm": "gspo", "stages": stages}), None, trainer_classes()[0])
    assert (first.settings["epsilon"], second.settings["epsilon"]) == (0.0003, 0.1)
    assert first.settings["importance_sampling_level"] == second.settings["importance_sampling_level"] == "sequence"
    assert any("epsilon = 0.1, as grpo says by name; gspo has 0.0003" in note for note in second.notes)


def test_a_constant_of_a_pasted_script_is_no_algorithm(fields):
    script = 'ALGORITHM = "PPO"\nargs = GRPOConfig(loss_type="dapo", epsilon_high=0.28)\n'
    found = read_script(script, fields=fields)
    assert (found.recipe.algorithm, found.recipe.grpo["epsilon_high"]) == (None, 0.28)


def test_going_on_with_another_algorithm_names_the_settings_that_it_changes(home):
    begun = Recipe(algorithm="grpo")
    run = RunDirectory.create("r", begun, {"recipe": begun.model_dump(mode="json")})

    def refused(**recipe):
        return changed_since_begun(run, Recipe(**recipe), [], Point(run.path, 0, 0, 0, {"recorded": {}})).refused

    assert refused(algorithm="gspo") == [
        "grpo.beta: 'not set' -> 0.0",
        "grpo.epsilon: 'not set' -> 0.0003",
        "grpo.epsilon_high: 'not set' -> 0.0004",
        "grpo.importance_sampling_level: 'token' -> 'sequence'",
        "grpo.scale_rewards: 'group' -> 'not set'",
    ]
    # The same settings, by whatever word.
    assert refused(grpo=PAPERS["grpo"][1]) == []
    assert refused(algorithm="grpo") == []


@pytest.mark.parametrize("name", ["entropy_coef", "entropy_coef_max"])
@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_entropy_settings_are_shares(name, value):
    kinds = field_kinds(trainer_classes()[0])
    check_values({name: 0.2}, kinds)
    with pytest.raises(RecipeError, match=rf"{name} = {value}[\s\S]*from 0 to 1"):
        check_values({name: value}, kinds)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PAPERS)
def test_a_run_has_the_papers_fields_in_force(home, algorithm):
    grpo = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24}
    recipe = Recipe.of({"algorithm": algorithm, "policy": {"load_in_4bit": False}, "grpo": grpo})
    run = train(recipe, task=task(8, 4))
    in_force = run.manifest()["settings"]["in_force"]
    assert {name: in_force[name] for name in PAPERS[algorithm][1]} == PAPERS[algorithm][1]
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert run.recipe().algorithm == algorithm
    batch = next(read_batches(run))
    assert batch.aggregation == in_force["multi_objective_aggregation"]
    again = batch_advantages(batch.scores, batch.weights, 4, in_force["scale_rewards"], batch.aggregation)
    assert batch.advantages == pytest.approx(again.advantages, abs=1e-4)
