"""What the live policy writes: the run's own backend, adapter and weights, in a fresh process. A
proof's reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from workbench.base.errors import DataError, RunError, WorkbenchError
from workbench.base.kinds import Prompt
from workbench.data.rendering import prompt_text
from workbench.exporting import apart
from workbench.exporting.apart import Progress
from workbench.exporting.artefacts import Artefact
from workbench.recipe import Recipe
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.resuming import begun_task


@dataclass(frozen=True)
class ProofRequest:
    """What the two processes of a proof are asked: the live policy's, then the artefact's."""

    run: RunDirectory
    prompts: list[Prompt]  # the first held-out ones
    max_completion_length: int  # tokens
    artefact: Artefact | None = None  # of the second
    # of the second: completions whose probabilities are wanted; None: no behaviour
    sampled_ids: list[list[int]] | None = None


@dataclass(frozen=True)
class Written:
    """Greedy completions of P prompts: lists of P."""

    ids: list[list[int]]
    ended: list[bool]  # by EOS, before the limit
    # scored by the task's own functions, where `scored` has done so
    reward: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)  # by the task's `right_by`
    texts: list[str] = field(default_factory=list)
    # an artefact's: of the tokens that the policy sampled, at temperature 1
    logprobs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """The live policy on P held-out prompts, and the base: the same model without its adapter."""

    policy: Written
    base: Written
    # Sampled at temperature 1, whatever training used: of another temperature's completions the KL
    # divergence would be biased.
    sampled_ids: list[list[int]]
    policy_logprobs: list[list[float]]  # of the tokens sampled, at temperature 1
    base_logprobs: list[list[float]]
    # For each greedy answer of the policy: (place, token) of the likeliest tokens, several where
    # its precision cannot part them.
    ties: list[list[tuple[int, int]]] = field(default_factory=list)


def suite_of_run(run: RunDirectory, task: Task | None) -> RewardSuite:
    """The rewards and held-out prompts that prove an export: those of the given task, or the run's
    own.

    Raises:
        RunError: if the run is one of your own trainer, or its task has changed, and `task` is
            None.
        DataError: if there are no held-out prompts, or the task's rollouts have several turns.
    """
    recipe = run.recipe()
    if task is None and run.manifest().get("attached"):
        raise RunError(
            f"{run.name}: recorded from your own trainer, so no task of the workbench belongs to"
            " it",
            rule="held-out prompts are scored by a task's reward functions",
            remedy="pass one: wb.prove(artefact, task=wb.Task(..., held_out=rows))",
        )
    try:
        task = task or begun_task(run, recipe)
    except WorkbenchError as error:  # what it says is about going on with the run
        raise RunError(
            error.value,
            rule="an export is proven with its run's own rewards and prompts",
            remedy="put it back; or pass the task: wb.prove(artefact, task=wb.load_task(...))",
        ) from error
    if task.for_turns:
        raise DataError(
            f"task {task.name!r}: its rollouts have several turns",
            rule="a proof compares answers of one turn, token by token",
            remedy="prove on a task without tools: task=wb.Task(..., held_out=rows)",
        )
    if len(task.held_out) < 2:
        raise DataError(
            f"task {task.name!r}: {len(task.held_out)} held-out prompts",
            rule="a proof compares answers to prompts that were not trained on, at least 2",
            remedy="give a task that has some: task=wb.Task(..., held_out=rows)",
        )
    return RewardSuite(task, 2, recipe.reward_weights)


def request_of(run: RunDirectory, suite: RewardSuite, prompts: int) -> ProofRequest:
    """Answers to the first held-out prompts, as long as in training."""
    length = run.manifest()["settings"]["in_force"]["max_completion_length"]
    return ProofRequest(run, [row["prompt"] for row in suite.task.held_out[:prompts]], length)


def measured_reference(
    suite: RewardSuite, request: ProofRequest, progress: Callable[[str], Progress]
) -> Reference:
    """What the live policy and its base write, measured now."""
    found = apart.run_apart(measure, request, progress(f"the policy of {request.run.name}"))
    policy, base = (scored(suite, each) for each in (found.policy, found.base))
    return replace(found, policy=policy, base=base)


def _as_read(recipe: Recipe) -> Recipe:
    # As artefacts are read: a CPU computes in 32 bits there, and against 16 their rounding alone
    # can be more than a proof allows.
    import torch

    how = {} if torch.cuda.is_available() else {"dtype": "float32"}
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update=how)})


def scored(suite: RewardSuite, written: Written) -> Written:
    """The completions with their scores from the task's functions."""
    import numpy as np

    rows = suite.task.held_out[: len(written.ids)]
    scores = suite.score(rows, written.texts, written.ids)
    rewards = np.nansum(scores * suite.weights, axis=1).tolist()
    return replace(
        written, reward=rewards, right=right_under(suite, scores, 1).filled(False).tolist()
    )


def measure(request: ProofRequest, progress: Progress) -> Reference:
    """In the process: load the live policy, and let it write."""
    from workbench.training.policy import load_policy
    from workbench.training.sampling import logprobs_of, sample, ties_of

    run, prompts = request.run, request.prompts
    policy = load_policy(_as_read(run.recipe()), adapter=run.adapter)

    def written(turn: int, temperature: float, base: bool = False) -> Written:
        groups = sample(
            policy,
            prompts,
            temperature=temperature,
            base=base,
            max_completion_length=request.max_completion_length,
            progress=lambda done, count: progress(turn * count + done, 3 * count),
        )
        own = [completion for [completion] in groups]
        return Written(
            [each.ids for each in own],
            [each.finished for each in own],
            texts=[each.text for each in own],
        )

    greedy, without, sampled = written(0, 0.0), written(1, 0.0, base=True), written(2, 1.0).ids
    texts = [prompt_text(prompt, policy.tokenizer) for prompt in prompts]
    is_text = isinstance(prompts[0], str)
    prompt_ids = policy.tokenizer(texts, add_special_tokens=is_text)["input_ids"]
    pairs = list(zip(prompt_ids, sampled, strict=True))
    with policy.generating() as model:
        live = logprobs_of(model, pairs)
        answers = list(zip(prompt_ids, greedy.ids, strict=True))
        ties = ties_of(model, answers, policy.compute_dtype)
    with policy.generating(base=True) as model:
        return Reference(greedy, without, sampled, live, logprobs_of(model, pairs), ties)
