"""`workbench plan`: a recipe, a preset or a pasted script, checked as far as can be without loading the policy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.errors import DataError, PolicyError, RecipeError
from workbench.recipe import Recipe
from workbench.task import Task, load_task
from workbench.training import plan
from workbench.training.generation import expected, in_words
from workbench.training.loading import local_model
from workbench.training.presets import find_recipe
from workbench.workspace import find, shown

if TYPE_CHECKING:
    from workbench.training.stages import Stage

Memory = Callable[[Recipe, dict[str, Any], int | None], Any]


@dataclass
class Plan:
    """What a run would be."""

    source: str
    recipe: Recipe  # under today's names
    settings: dict[str, Any]  # what GRPOConfig is built from
    notes: list[str]  # whatever is not exactly as it was asked, and what could not be checked
    words: str  # the batch arithmetic
    generation: str = ""  # who generates, as far as that can be told
    rows: list[plan.Row] = field(default_factory=list)  # asked, default, in force, and whose doing
    prompts: int | None = None
    longest_tokens: int | None = None  # prompt
    memory: Any = None  # an estimate, if one was asked for
    stand_ins: tuple[str, ...] = ()  # "task", "policy": not read from a script, so the workbench's own are named

    @property
    def table(self) -> Any:
        """Asked beside in force, as a table."""
        from workbench.views.tables import Table

        body = [[row.name, *map(_word, (row.asked, row.default, row.in_force)), row.by] for row in self.rows]
        return Table(["setting", "asked", "default", "in force", "by"], body)

    def found(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "source": self.source,
            "recipe": self.recipe.model_dump(mode="json"),
            "settings": {name: _jsonable(value) for name, value in self.settings.items()},
            "notes": self.notes,
            "words": self.words,
            "generation": self.generation,
            "in_force": [
                {name: _jsonable(value) for name, value in zip(plan.Row._fields, row, strict=True)} for row in self.rows
            ],
            "prompts": self.prompts,
            "longest_prompt_tokens": self.longest_tokens,
            "memory": self._memory(),
        }

    def _memory(self) -> Any:
        found = getattr(self.memory, "found", None)
        if found is not None:
            return found()
        if hasattr(self.memory, "__dataclass_fields__"):
            return asdict(self.memory)
        return self.memory._asdict() if hasattr(self.memory, "_asdict") else self.memory

    def _called(self, part: str, name: str) -> str:
        return f"{part} not read ({name} stands in)" if part in self.stand_ins else f"{part} {name}"

    def __str__(self) -> str:
        policy = self.recipe.policy
        lines = [
            f"{self.source}: {self._called('task', self.recipe.task)}, {self._called('policy', policy.name)} through "
            f"{policy.backend}, "
            f"{'4-bit' if policy.load_in_4bit else '16-bit'}, {policy.max_seq_length} tokens, LoRA r {self.recipe.lora.r}",
            f"{self.words}.",
            f"{self.generation}.",
        ]
        lines += [f"  note: {note}" for note in self.notes]
        if self.memory is not None:
            lines.append(str(self.memory))
        return "\n".join([*lines, "", str(self.table)])


def plan_run(
    source: str | Path | Recipe,
    *,
    device: plan.Device | None = None,
    task: Task | None = None,
    memory: Memory | None = None,
    said: Sequence[str] = (),
    steps: int | None = None,
) -> Plan:
    """Check everything that can be checked without loading the policy, and say what the run would be.

    Args:
        source: a recipe file, a preset's name, a Python script (a `.py` file, or its text), or a recipe.
        device: what the machine can do; None: this one.
        task: a task object; None: the recipe's is loaded.
        memory: called with the recipe, the settings and the longest prompt in tokens (None: not known); what it returns
            is shown and kept. From `memory_on` it is of a card, which then decides what this machine's GPU would.
        said, steps: as for `plan.overridden`.

    Raises:
        RecipeError, TaskError, DataError, PolicyError: what would stop the training, with the remedy. A hub that cannot
            be reached is a note, and so is memory that cannot be estimated.
    """
    from workbench.training.policy import trainer_classes
    from workbench.training.precision import one_of, unsloths_choice
    from workbench.training.stages import planned_stages

    called, recipe, notes, named, tasked = read_source(source)
    recipe = plan.overridden(recipe, said, steps)
    local_model(recipe.policy.name)  # a slip in a path is found before torch and Unsloth are imported
    config_class, _ = trainer_classes(recipe.policy.backend)
    fields = plan.field_names(config_class)
    recipe, settings, more = plan.normalised(recipe, fields, device)
    notes = [*notes, *(line for line in [*more, *plan.stages_decide(recipe)] if line not in notes)]
    if recipe.stages:
        settings = {**settings, "max_steps": sum(stage.steps for stage in recipe.stages)}
    plan.check_values(settings, plan.field_kinds(config_class))
    planned = plan.batch(settings)
    plan.check_lengths(recipe, settings)
    # Prompts that stand in for a script's own say nothing about its epochs, lengths or memory.
    task, offline = (task, []) if task is not None or not tasked else _task(recipe)
    prompts, longest, measured = _prompts(recipe, task, settings, planned)
    words = plan.in_words(planned, settings, prompts)
    stages = planned_stages(recipe, task, config_class) if recipe.stages and task is not None else []
    if stages:
        words = _in_stages(stages)
    card = memory if isinstance(memory, CardMemory) else CardMemory()
    unmeasured = (
        []
        if named or memory is None
        else ["not estimated: memory, as the script says no model's name that can be read"]
    )
    chosen, estimate = [], None
    if named:
        try:
            settings["gradient_checkpointing"], chosen = card.checkpointing(recipe, settings, longest, stages)
        except PolicyError as error:
            unmeasured = [f"not estimated: memory; {error.value}"]
    given = {**settings, **_for_the_backend(recipe, settings)}
    built = _built(config_class, given, recipe)
    device = device or plan.Device.here()
    if device.cuda and recipe.policy.backend == "unsloth":  # its trainer decides, when it is made
        vars(built).update(unsloths_choice(recipe.policy.dtype, given, bf16=device.native_bf16))
    notes += one_of(recipe.policy.backend)
    notes += [*offline, *measured, *chosen, *plan.check_in_force(given, built)]
    if memory is not None and not unmeasured:
        try:
            estimate = memory(recipe, settings, longest)
            notes += card.said(recipe, settings) if memory is card else []
        except PolicyError as error:
            unmeasured = [f"not estimated: memory; {error.value}"]
    return Plan(
        source=called,
        recipe=recipe,
        settings=settings,
        notes=[*notes, *unmeasured],
        words=words,
        generation=in_words(expected(recipe, settings, card.exists), settings["num_generations"]),
        rows=_rows(recipe, built, given),
        prompts=prompts,
        longest_tokens=longest,
        memory=estimate,
        stand_ins=tuple(name for name, own in (("task", tasked), ("policy", named)) if not own),
    )


def read_source(source: str | Path | Recipe) -> tuple[str, Recipe, list[str], bool, bool]:
    """What a recipe file, a preset's name, a script or a recipe asks for.

    Returns:
        (what to call it, the recipe, lines about what a script had otherwise, whether policy.name was asked for).
    """
    from workbench.training.script import read_script

    if isinstance(source, Recipe):
        return "recipe", source, [], True, True
    if isinstance(source, str) and "\n" in source:
        return "script", *read_script(source)
    if Path(source).suffix in (".yaml", ".yml") or not find(source).is_file():
        file = find_recipe(source)
        return (str(source) if file.stem == str(source) else shown(file)), Recipe.load(file), [], True, True
    file = find(source)
    if file.suffix != ".py":
        raise RecipeError(
            f"{shown(file)}: neither YAML nor Python",
            rule="a plan is made of a recipe (.yaml), a preset or a training script (.py)",
            remedy="paste a notebook's cells into one .py file; rows belong to a task, which a recipe names as its `task:`",
        )
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{shown(file)}: {error}", rule="a script is text in UTF-8", remedy="save it so") from error
    return shown(file), *read_script(text, shown(file))


def _rows(recipe: Recipe, built: Any, given: dict[str, Any]) -> list[plan.Row]:
    rows = plan.in_force_table(plan.asked_of(recipe), built, {**given, "seed": recipe.seed})
    if not recipe.stages:
        return rows
    return [row._replace(by=plan.STAGES) if row.name == "max_steps" else row for row in rows]


def _in_stages(stages: Sequence[Stage]) -> str:
    return ". ".join(
        f"stage {stage.name!r}: {plan.in_words(stage.planned, stage.settings, len(stage.rows))}" for stage in stages
    )


def _for_the_backend(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any]:
    from workbench.training.precision import choose_dtype, config_overrides

    # What will be known of the policy once it is loaded, as far as its configuration says it.
    policy, here = recipe.policy, plan.Device.here()
    chosen, _ = choose_dtype(policy.dtype, policy.backend, cuda=here.cuda, bf16=here.native_bf16)
    return config_overrides(SimpleNamespace(backend_name=policy.backend, compute_dtype=chosen), settings)


def memory_on(vram_gb: float | None = None) -> CardMemory:
    """For `plan_run(memory=...)`: the estimate for a card of so many GB; None: for the one of this machine, if it has one."""
    return CardMemory(vram_gb)


class CardMemory:
    """GPU memory of a run on a card: the estimate, and what follows from it for the settings.

    On a machine without a GPU the settings are taken as a GPU would run them, with vLLM where it is asked for: the estimate
    is of the card, not of here.
    """

    def __init__(self, vram_gb: float | None = None) -> None:
        self._asked_gb = vram_gb

    def __call__(self, recipe: Recipe, settings: dict[str, Any], longest: int | None) -> Any:
        """The estimate; `longest` is the longest prompt in tokens, None where it is not known."""
        from workbench.memory import estimate

        return estimate(recipe, self._there(recipe, settings), longest_prompt_tokens=longest, vram_gb=self._room_gb())

    def checkpointing(
        self, recipe: Recipe, settings: dict[str, Any], longest: int | None, stages: Sequence[Stage]
    ) -> tuple[bool, list[str]]:
        """Gradient checkpointing as training on the card would choose it, and the lines about it; without a card, as it is.

        Args:
            stages: the recipe's, planned; none: it has none, or its task is not to be had.
        """
        from workbench.memory import Trained, choose_checkpointing, idle_checkpointing
        from workbench.training.fitting import choose_for

        room, on = self._room_gb(), settings["gradient_checkpointing"]
        if room is None:
            return on, []
        there = [replace(one, settings=self._there(one.recipe, one.settings)) for one in stages]
        whole = [Trained(recipe, self._there(recipe, settings), longest)]
        if "gradient_checkpointing" in recipe.grpo:
            trained = [Trained(one.recipe, one.settings, None) for one in there] or whole
            line = idle_checkpointing(trained, room)
        else:
            on, line = choose_for(there, room) if there else choose_checkpointing(whole, room)
        return on, [line] if line else []

    @property
    def exists(self) -> bool:
        """Whether there is one, here or in what was asked."""
        return self._room_gb() is not None

    def said(self, recipe: Recipe, settings: dict[str, Any]) -> list[str]:
        """A line where the estimate is of something that is not in force here."""
        if settings.get("use_vllm") or not self._there(recipe, settings).get("use_vllm"):
            return []
        return ["memory is estimated as on a GPU where vLLM is installed, since the recipe asks for it"]

    def _room_gb(self) -> float | None:
        from workbench.memory import card

        here = None if self._asked_gb else card()
        return self._asked_gb or (here[1] / 1e9 if here else None)

    def _there(self, recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any]:
        from workbench.memory import card
        from workbench.training.policy import trainer_classes

        if card() is not None:
            return settings
        fields = plan.field_names(trainer_classes(recipe.policy.backend)[0])
        # How much vLLM takes is a share of the card.
        imagined = plan.Device(cuda=True, native_bf16=True, vllm=self._room_gb() is not None)
        on_a_gpu = plan.normalised(recipe, fields, imagined)[1]
        return {**on_a_gpu, "gradient_checkpointing": settings["gradient_checkpointing"]}


def _task(recipe: Recipe) -> tuple[Task | None, list[str]]:
    try:
        return load_task(recipe.task), []
    except DataError as error:
        if not error.network:
            raise
        return None, [f"not checked: {error.value}; so its prompts were neither counted nor measured"]


def _prompts(
    recipe: Recipe, task: Task | None, settings: dict[str, Any], planned: plan.Batch
) -> tuple[int | None, int | None, list[str]]:
    from workbench.data.lengths import check_budget, keep_within, prompt_lengths_tokens, template_notes
    from workbench.rewards.suite import RewardSuite
    from workbench.training.policy import load_tokenizer

    if task is not None:
        RewardSuite(task, planned.num_generations, recipe.reward_weights)  # its names and weights; nothing is scored
        plan.check_prompts(len(task.rows), planned)
    try:
        tokenizer = load_tokenizer(recipe.policy.name, recipe.chat_template_kwargs)
    except PolicyError as error:
        if not error.network:
            raise
        return (
            None if task is None else len(task.rows),
            None,
            [f"not checked: {error.value}; so no prompt was measured with its tokenizer"],
        )
    if task is None:
        return None, None, []
    rows, notes = list(task.rows), template_notes(task.rows, tokenizer)
    lengths = prompt_lengths_tokens(rows, tokenizer)
    if recipe.max_prompt_length is not None:
        rows, longer = keep_within(rows, lengths, recipe.max_prompt_length)
        lengths = [length for length in lengths if length <= recipe.max_prompt_length]
        if longer:
            notes.append(f"max_prompt_length = {recipe.max_prompt_length}: {len(longer)} longer prompts left out")
        plan.check_prompts(len(rows), planned)
    check_budget(max(lengths), settings["max_completion_length"], recipe.policy.max_seq_length, min(lengths))
    return len(rows), max(lengths), notes


def _built(config_class: type, settings: dict[str, Any], recipe: Recipe) -> Any:
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        try:
            return plan.built(config_class, settings, output_dir=scratch, seed=recipe.seed, disable_tqdm=True)
        except (TypeError, ValueError, ImportError, NotImplementedError) as error:
            raise RecipeError(
                f"grpo: {error}",
                rule="GRPOConfig accepts these settings together",
                remedy="change the setting that it names",
            ) from error


def _word(value: Any) -> str:
    # A table shows None as a dash, and 1e-05 in full: these are settings, not measurements.
    return "-" if value is None else str(value)


def _jsonable(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str, list, dict)) else str(value)
