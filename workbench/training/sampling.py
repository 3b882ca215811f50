"""What a policy does with prompts: completions outside the trainer, the exact text it reads, prompt
lengths.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from workbench.base.kinds import Fields, Model, Prompt, Tensor, Tokenizer
from workbench.base.progress import count_line
from workbench.base.workspace import encodable
from workbench.data.rendering import (
    PromptLengths,
    prompt_lengths_tokens,
    prompt_text,
    with_tools,
)
from workbench.data.template import TemplateCard, template_card
from workbench.rewards.calls import call_of_rollouts
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.run.turns import turns_to_text
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.training.drawing import drawing, until_eos
from workbench.training.plan.loading import eos_ids, find_model, load_tokenizer
from workbench.training.playing import play
from workbench.training.policy import Policy

TOGETHER = 32  # completions that are read in one forward pass
_LOGITS = 1e8  # numbers that one forward pass may leave: 400 MB


class Completion(NamedTuple):
    """One sampled completion."""

    text: str
    ids: list[int]
    finished: bool  # the policy ended its turn, rather than being cut at the limit

    @property
    def length_tokens(self) -> int:
        """How many tokens it has."""
        return len(self.ids)


def sample(
    policy: Policy,
    prompts: Sequence[object],
    *,
    num_generations: int = 1,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    base: bool = False,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
    task: Task | None = None,
    max_tool_calling_iterations: int | None = None,
) -> list[list[Any]]:
    """Sample `num_generations` completions for each prompt, from the policy's own distribution:
    `[P][G]`.

    >>> [group] = wb.sample(policy, ["What is 1 + 1?"], num_generations=4)
    >>> len(group), group[0].text  # and .finished: it ended before the limit
    (4, '...')

    Nothing but the temperature shapes it unless it is asked for, which is what TRL's defaults do,
    and it ends at the tokens that end it in training. Generated as in training with `generation:
    auto`, even if a recipe sets another `generation`.

    Args:
        prompts: chat messages or text, or rows that have one as `prompt`.
        temperature: 0 takes the likeliest token every time.
        top_p, top_k, min_p, repetition_penalty: as in TRL's GRPOConfig.
        seed: the same seed gives the same completions; the caller's random state is left as it was.
        base: sample from the base model, without the adapter.
        batch_size: at most this many completions are generated together.
        progress: called with (prompts done, prompts in all) after each batch.
        task: if its rollouts have turns, they are played, from rows, as in training. Each then has
            `turns`, `messages` and its `environment`, too.
        max_tool_calling_iterations: rounds of calls at most; None: until the completion is full.

    Returns:
        Each completion's `text`, `ids`, `length_tokens`, and whether it `finished`.
    """
    shape: Fields = {"top_p": top_p, "top_k": top_k, "min_p": min_p, "base": base, "seed": seed}
    shape |= {"repetition_penalty": repetition_penalty, "temperature": temperature}
    shape["max_completion_length"] = max_completion_length
    if task is not None and task.for_turns:
        return play(
            policy,
            task,
            cast("Sequence[Row]", prompts),
            num_generations=num_generations,
            max_tool_calling_iterations=max_tool_calling_iterations,
            batch_size=batch_size,
            progress=progress,
            **shape,
        )
    prompts = [each["prompt"] if isinstance(each, dict) else each for each in prompts]
    tokenizer, ends = policy.tokenizer, eos_ids(policy)
    per_batch = max(1, batch_size // num_generations)

    def completion(ids: list[int]) -> Completion:
        ids, finished = until_eos(ids, ends)
        return Completion(tokenizer.decode(ids, skip_special_tokens=True), ids, finished)

    groups: list[list[Completion]] = []
    with drawing(policy, **shape) as draw:
        for start in range(0, len(prompts), per_batch):
            inputs = _left_padded(tokenizer, prompts[start : start + per_batch])
            drawn = draw(inputs, num_generations)
            for group in drawn.unflatten(0, (-1, num_generations)).tolist():
                groups.append([completion(ids) for ids in group])
            if progress is not None:
                progress(len(groups), len(prompts))
    return groups


def as_trained(settings: Fields, task: Task) -> Fields:
    """How a run samples, for `scored_groups`: of its settings, those that shape a rollout."""
    names = ["max_completion_length", "temperature"]
    names += ["max_tool_calling_iterations"] if task.for_turns else []
    return {name: settings.get(name) for name in names}


def scored_groups(
    policy: Policy,
    task: Task,
    rows: Sequence[Row],
    suite: RewardSuite,
    samples: int,
    **sampling: Any,
) -> list[list[Fields]]:
    """`samples` completions of each row, scored by the task's functions: [P][G], each with its
    numbers by name.

    `sampling` is for `sample`, or, where the task's rollouts have turns, for `play`.
    """
    if task.for_turns:
        groups = play(policy, task, rows, num_generations=samples, **sampling)
    else:
        groups = sample(policy, rows, num_generations=samples, **sampling)
    flat: list[Any] = [completion for group in groups for completion in group]
    given = call_of_rollouts(flat) if task.for_turns else None
    repeated = [row for row in rows for _ in range(samples)]
    texts, ids = [each.text for each in flat], [each.ids for each in flat]
    scores = suite.score(repeated, texts, ids, given)
    right = right_under(suite, scores, samples).tolist()  # None: nothing says
    totals = np.nansum(scores * suite.weights, axis=1).tolist()
    table = []
    for completion, own, total, is_right in zip(flat, scores.tolist(), totals, right, strict=True):
        by_name = dict(zip(suite.names, own, strict=True))
        row = {
            "completion": encodable(completion.text),
            "length_tokens": completion.length_tokens,
            "finished": completion.finished,
            "total": total,
            "right": is_right,
            # what no format applies to keeps it
            "format": task.format_by and not by_name[task.format_by] <= 0,
        }
        if task.for_turns:
            row["turns"] = encodable(turns_to_text(completion.turns))
        table.append(row | {f"score.{name}": score for name, score in by_name.items()})
    return [table[start : start + samples] for start in range(0, len(table), samples)]


def _left_padded(tokenizer: Tokenizer, prompts: Sequence[object]) -> Any:
    return tokenizer(
        [prompt_text(prompt, tokenizer) for prompt in prompts],
        add_special_tokens=isinstance(prompts[0], str),
        return_tensors="pt",
        padding=True,
        padding_side="left",
        return_token_type_ids=False,
    )


# (ids of a prompt, ids of its completion)
Pairs: TypeAlias = Sequence[tuple[Sequence[int], Sequence[int]]]


def logprobs_of(model: Model, pairs: Pairs, temperature: float = 1.0) -> list[list[float]]:
    """For each pair: the natural log-probability of each token of the completion."""
    return [
        (logits.float() / temperature).log_softmax(-1).gather(-1, ids[:, None])[:, 0].tolist()
        for ids, logits in _logits_of(model, pairs)
    ]


def ties_of(model: Model, pairs: Pairs, dtype: str) -> list[list[tuple[int, int]]]:
    """For each pair: (position, token) of every token whose logit is the largest there, within the
    rounding of `dtype`.
    """
    import torch

    ties = []
    for _, logits in _logits_of(model, pairs):
        rounding = max(torch.finfo(each).eps for each in (getattr(torch, dtype), logits.dtype))
        top = logits.float().amax(-1, keepdim=True)
        tied = logits.float() >= top - rounding * top.abs()
        ties.append([(place, token) for place, token in tied.nonzero().tolist()])
    return ties


def _logits_of(model: Model, pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    # (ids of the completion [T], logits [T, V] from which each was drawn) of each pair.
    import torch
    from torch.nn.utils.rnn import pad_sequence

    longest = max(len(prompt) + len(completion) for prompt, completion in pairs)
    together = max(1, min(TOGETHER, int(_LOGITS / (longest * model.config.vocab_size))))
    for start in range(0, len(pairs), together):
        some = pairs[start : start + together]
        # Padded on the right, which no token before it can see.
        texts = [torch.tensor([*prompt, *completion]) for prompt, completion in some]
        ids = pad_sequence(texts, batch_first=True).to(model.device)
        mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask.to(model.device)).logits
        for (prompt, _), text, own, row in zip(some, texts, ids, logits, strict=True):
            yield own[len(prompt) : len(text)], row[len(prompt) - 1 : len(text) - 1]


def preview(
    row: Fields | Prompt,
    policy: object = "tiny",
    chat_template_kwargs: Fields | None = None,
    tags: Sequence[str] | None = None,
    task: Task | str | Path | None = None,
) -> TemplateCard:
    """The exact text that the model will read for a prompt, and what in it would make a reward
    impossible to earn.

    >>> wb.preview([{"role": "user", "content": "What is 1 + 1?"}], "tiny").text
    '<|user|>What is 1 + 1?</s><|assistant|>'

    Args:
        row: a row with a `prompt`, or the prompt itself.
        policy: a policy, its name, or a tokenizer.
        chat_template_kwargs: for a policy given by name, such as {"enable_thinking": False}.
        tags: what the reward functions look for in completions; None: what the system message asks
            for.
        task: the one that the row is of: with its tools, if it has any, the prompt is rendered.
            What an environment's `reset` says is not in it.

    Raises:
        DataError: if the template refuses the prompt.
        TaskError: if a tool cannot be described.
    """
    row = row if isinstance(row, dict) else {"prompt": row}
    tokenizer = _tokenizer(policy, chat_template_kwargs)
    if task is not None:
        tokenizer = with_tools(tokenizer, load_task(task).tool_schemas, row)
    return template_card(tokenizer, row["prompt"], tags)


def prompt_lengths(
    rows: Sequence[Row],
    policy: object = "tiny",
    *,
    chat_template_kwargs: Fields | None = None,
    max_tokens: int | None = None,
    task: Task | str | Path | None = None,
) -> PromptLengths:
    """How many tokens each prompt takes in the policy's chat template; displays as a histogram.

    >>> lengths = wb.prompt_lengths([{"prompt": "What is 1 + 1?"}, {"prompt": "Why?"}], "tiny")
    >>> rows, too_long = lengths.keep(5)
    >>> len(rows), len(too_long)
    (1, 1)

    Args:
        policy, chat_template_kwargs, task: as for `preview`.
        max_tokens: longer prompts will be left out; None: none.
    """
    tokenizer = _tokenizer(policy, chat_template_kwargs)
    tools = None if task is None else load_task(task).tool_schemas
    measured = prompt_lengths_tokens(rows, tokenizer, count_line("prompts"), tools)
    return PromptLengths(rows, measured, str(getattr(policy, "name", policy)), max_tokens)


def _tokenizer(policy: object, chat_template_kwargs: Fields | None) -> Any:
    if not isinstance(policy, (str, Path)):
        return getattr(policy, "tokenizer", policy)
    stats = {file.name: file.stat() for file in sorted(Path(find_model(policy)).glob("*.*"))}
    files = [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()]
    tokenizer = copy.copy(_kept_tokenizer(policy, *files))
    tokenizer.chat_template_kwargs = chat_template_kwargs or {}
    return tokenizer


# a real one takes seconds to load, and a person looks at one prompt after another
@functools.lru_cache(maxsize=4)
def _kept_tokenizer(policy: str | Path, *files: tuple[str, int, int]) -> Any:
    return load_tokenizer(policy)
