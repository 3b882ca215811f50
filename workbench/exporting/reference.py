"""What the live policy writes: the run's own backend, adapter and weights, in a fresh process. A
proof's reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.data.rendering import prompt_text
from workbench.errors import DataError, RunError, WorkbenchError
from workbench.exporting import apart
from workbench.exporting.apart import Progress
from workbench.kinds import Fields, Prompt
from workbench.recipe import Recipe
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task
from workbench.training.resuming import begun_task


@dataclass(frozen=True)
class ProofRequest:
    """The requests to the two processes of a proof, as JSON: the live policy's, then the
    artefact's.
    """

    run: str  # its folder
    prompts: list[Prompt]  # the first held-out ones
    max_completion_length: int  # tokens
    artefact: Fields = field(default_factory=dict)  # of the second: fields of `Artefact`
    # of the second: completions whose probabilities are wanted; None: no behaviour
    sampled_ids: list[list[int]] | None = None


@dataclass(frozen=True)
class Written:
    """Greedy completions of P prompts, scored by the task's own functions: lists of P."""

    ids: list[list[int]]
    ended: list[bool]  # by EOS, before the limit
    reward: list[float]
    right: list[bool]  # by the task's `right_by`


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
    return ProofRequest(
        str(run.path), [row["prompt"] for row in suite.task.held_out[:prompts]], length
    )


def measured_reference(
    run: RunDirectory,
    suite: RewardSuite,
    request: ProofRequest,
    progress: Callable[[str], Progress],
) -> Reference:
    """What the live policy and its base write, measured now."""
    report = apart.run_apart(
        "workbench.exporting.reference", vars(request), progress(f"the policy of {run.name}")
    )
    rows = suite.task.held_out[: len(request.prompts)]
    for who in ("policy", "base"):
        report[who] = scored(suite, rows, **report[who])
    report["ties"] = [[tuple(each) for each in own] for own in report["ties"]]  # lists in JSON
    return Reference(**report)


def _as_read(recipe: Recipe) -> Recipe:
    # As artefacts are read: a CPU computes in 32 bits there, and against 16 their rounding alone
    # can be more than a proof allows.
    import torch

    how = {} if torch.cuda.is_available() else {"dtype": "float32"}
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update=how)})


def scored(
    suite: RewardSuite,
    rows: Sequence[Row],
    ids: list[list[int]],
    texts: list[str],
    ended: list[bool],
) -> Written:
    """Completions, with their scores from the task's functions."""
    import numpy as np

    scores = suite.score(rows, texts, ids)
    right = right_under(suite, scores, 1).filled(False)
    return Written(ids, ended, np.nansum(scores * suite.weights, axis=1).tolist(), right.tolist())


def measure(request: Fields, progress: Progress) -> Fields:
    """In the process: load the live policy, and let it write."""
    from workbench.training.policy import load_policy
    from workbench.training.sampling import logprobs_of, sample, ties_of

    asked = ProofRequest(**request)
    run, prompts = RunDirectory(Path(asked.run)), asked.prompts
    policy = load_policy(_as_read(run.recipe()), adapter=run.adapter)

    def written(turn: int, temperature: float, base: bool = False) -> Fields:
        completions = sample(
            policy,
            prompts,
            temperature=temperature,
            base=base,
            max_completion_length=asked.max_completion_length,
            progress=lambda done, count: progress(turn * count + done, 3 * count),
        )
        columns = (
            [getattr(own, name) for [own] in completions] for name in ("ids", "text", "finished")
        )
        return dict(zip(("ids", "texts", "ended"), columns, strict=True))

    report: Fields = {"policy": written(0, 0.0), "base": written(1, 0.0, base=True)}
    sampled = report["sampled_ids"] = written(2, 1.0)["ids"]
    texts = [prompt_text(prompt, policy.tokenizer) for prompt in prompts]
    is_text = isinstance(prompts[0], str)
    prompt_ids = policy.tokenizer(texts, add_special_tokens=is_text)["input_ids"]
    pairs = list(zip(prompt_ids, sampled, strict=True))
    greedy = list(zip(prompt_ids, report["policy"]["ids"], strict=True))
    with policy.generating() as model:
        report["policy_logprobs"] = logprobs_of(model, pairs)
        report["ties"] = ties_of(model, greedy, policy.compute_dtype)
    with policy.generating(base=True) as model:
        report["base_logprobs"] = logprobs_of(model, pairs)
    return report


if __name__ == "__main__":
    apart.answer(measure)
