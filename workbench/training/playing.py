"""Rollouts with turns outside a trainer: TRL's own loop, so what is measured is what trains.

TRL's trainer resets environments, renders tools, calls them and goes on in methods that need a
model, a tokenizer and a few settings, and no optimiser. Here it is given just these.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from workbench.base.door import DEADLINE_S
from workbench.base.environments import (
    checked_tools,
    copies,
    factories_of,
    pinned_random,
    started,
    takes_seed,
)
from workbench.base.errors import TaskError
from workbench.base.kinds import Fields, Function
from workbench.data.difficulty import row_key
from workbench.data.template import markers_of
from workbench.rewards.beside import ProcessState
from workbench.rewards.guarding import guarded, guarded_environment, guarded_tool
from workbench.rewards.hashing import source_code
from workbench.run.calls import unparsed
from workbench.run.turns import POLICY, Turn, own_words
from workbench.task import Row, Task, function_name
from workbench.training.drawing import drawing, until_eos
from workbench.training.plan.loading import eos_ids
from workbench.training.policy import Policy, trainer_classes
from workbench.training.transcribing import calls_recorded, turns_from


class Rollout(NamedTuple):
    """One rollout that was played."""

    text: str  # the policy's own words, one turn a line
    ids: list[int]  # all tokens after the prompt, those of tools included
    finished: bool  # the policy ended it, rather than being cut at a limit
    messages: list[Fields]  # as TRL hands them to a reward function
    turns: list[Turn]
    environment: Any = None  # as the rollout left it

    @property
    def length_tokens(self) -> int:
        """How many tokens the policy wrote."""
        return sum(turn.tokens for turn in self.turns if turn.author == POLICY)


def play(
    policy: Policy,
    task: Task,
    rows: Sequence[Row],
    *,
    num_generations: int = 1,
    per_start: int = 1,
    max_completion_length: int = 96,
    max_tool_calling_iterations: int | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
    seed: int = 0,
    **shape: Any,
) -> list[list[Rollout]]:
    """Play `num_generations` rollouts from each row, with the task's tools and environment: [P][G].

    >>> [[rollout]] = play(policy, task, task.held_out[:1], max_completion_length=256)
    >>> [(turn.author, turn.text) for turn in rollout.turns]
    [('policy', '...'), ('tool', '...'), ('policy', '...')]

    An environment whose `reset` takes `seed` gets one that belongs to the row, unless the row has
    its own: base and trained begin in the same state, and so does each member of a group.

    Args:
        per_start: rollouts that go on from one start, each in a copy of its environment;
            `num_generations` is a multiple of it.
        max_completion_length: of a rollout, what tools return included, as in training.
        max_tool_calling_iterations: rounds of calls at most; None: until the completion is full.
        batch_size, progress, seed, shape: as for `sample`: `temperature`, `top_p`, `base`, ...

    Raises:
        TaskError: if the task generates in its own `rollout_func`, a prompt is plain text, or an
            environment of several rollouts cannot be copied.
    """
    check_playable(task, rows)
    if per_start > 1 and not task.environment:
        raise TaskError(
            f"task {task.name!r}: no environment to copy",
            rule="several rollouts from one start take a copy of its environment each",
            remedy="leave per_start out",
        )
    per_batch = max(1, batch_size // num_generations)
    starts = range(num_generations // per_start)
    rounds = sys.maxsize if max_tool_calling_iterations is None else max_tool_calling_iterations
    limits: Fields = {"max_completion_length": max_completion_length}
    groups: list[list[Rollout]] = []
    with (
        drawing(policy, seed=seed, **limits, **shape) as draw,
        _event_loop() as loop,
        pinned_random(seed),
    ):
        parts = {**trainer_parts(policy, task), "async_loop": loop, **limits}
        player = _player_class(policy.backend_name)(
            {**parts, "max_tool_calling_iterations": rounds}, task, draw
        )
        for first in range(0, len(rows), per_batch):
            some = [row for row in rows[first : first + per_batch] for _ in starts]
            flat = player.play(some, per_start)
            groups += [
                flat[place : place + num_generations]
                for place in range(0, len(flat), num_generations)
            ]
            if progress is not None:
                progress(len(groups), len(rows))
    return groups


def marks_of(task: Task) -> Fields:
    """For a measurement's settings: what changes when the code of tools or environments does."""
    makers = factories_of(task.environment).values()
    played = [*task.tools, *(type(make()) for make in makers)]
    texts = [source_code(each) or repr(each) for each in played]
    return {"played": hashlib.sha256("".join(texts).encode()).hexdigest()[:12]} if played else {}


def check_playable(task: Task, rows: Sequence[Row]) -> None:
    """TaskError if the task generates in its own `rollout_func`, or a prompt is plain text."""
    if task.rollout_func is not None:
        raise TaskError(
            f"task {task.name!r}: rollout_func generates its rollouts",
            rule="it is handed the trainer, which there is only while a run trains",
            remedy="use tools or an environment, which are played outside a run, too",
        )
    for row in rows:
        if isinstance(row["prompt"], str):
            raise TaskError(
                f"task {task.name!r}: the prompt {row['prompt']!r:.200}",
                rule="calls and answers are messages, which plain text has no place for",
                remedy='give messages: [{"role": "user", "content": ...}]',
            )


class _Played(Exception):
    # Ends TRL's method when the rollouts are there: what it does next is for the loss.
    pass


@functools.cache
def _player_class(backend: str) -> type:
    trainer_class: Any = trainer_classes(backend)[1]

    class Player(trainer_class):
        # TRL's constructor would also wrap the model and set the process's random state.
        def __init__(self, parts: Fields, task: Task, draw: Function) -> None:
            self.__dict__.update(parts)
            self.task, self.draw, self.kept = task, draw, ProcessState()
            factories = self.environment_factories or {}
            self.environment_factories = {
                name: functools.partial(_guarded, make, self.kept)
                for name, make in factories.items()
            } or None
            self.why_none = functools.partial(
                unparsed,
                tools={function_name(tool) for tool in self.tools},
                markers=markers_of(self._tokenizer),
            )

        def play(self, rows: list[Row], per_start: int = 1) -> list[Rollout]:
            if self.environment_factories:
                rows = self._begun(rows, per_start)
            try:
                self._generate_and_score_completions(rows)
            except _Played as played:
                records, (_, ids, masks, messages, *_) = played.args
            nothing = [None] * len(rows)
            parts = ids, masks or nothing, messages, records, self.environments or nothing
            return [self._rollout(*own) for own in zip(*parts, strict=True)]

        def _begun(self, rows: list[Row], per_start: int) -> list[Row]:
            # The rows of the rollouts, with seeds, and environments for them: new ones for each
            # batch, as those of the last are handed out with its rollouts.
            factories, several = self.environment_factories, self._multi_environment
            pool = {name: [make()] for name, make in factories.items()}
            names = [row.get("environment") if several else None for row in rows]
            rows = [
                _seeded(row, pool[name][0]) if name in pool else row
                for row, name in zip(rows, names, strict=True)
            ]
            self._environment_pool = pool
            if per_start == 1:
                return rows
            self._environment_pool = {name: [] for name in pool}
            for row, name in zip(rows, names, strict=True):
                begun = guarded(started, DEADLINE_S, self.kept)(self.task.environment, row, 0)
                self._environment_pool[name] += copies(begun, per_start, self.task.name)
            return [row for row in rows for _ in range(per_start)]

        def _rollout(
            self, ids: list, mask: Any, messages: list, records: list, environment: Any
        ) -> Rollout:
            turns = turns_from(self._tokenizer, ids, mask or (), messages, records, self.why_none)
            ended = ids[-1] in self.eos_token_ids
            return Rollout(own_words(turns), ids, ended, messages, turns, environment)

        def _generate(self, prompts: list) -> Any:
            guard = functools.partial(guarded_tool, kept=self.kept)
            records = calls_recorded(self, len(prompts), guard)
            raise _Played(records, super()._generate(prompts))

        def _generate_single_turn(self, prompt_ids: list, *_: object, **__: object) -> Any:
            inputs = self._tokenizer.pad(
                {"input_ids": prompt_ids}, padding_side="left", return_tensors="pt"
            )
            drawn = self.draw(inputs, 1).tolist()
            return [until_eos(ids, self.eos_token_ids)[0] for ids in drawn], None

    return Player


def _seeded(row: Row, environment: Any) -> Row:
    # An own random start for each row, the same whoever plays it.
    if "seed" in row or not takes_seed(environment):
        return row
    return {**row, "seed": int(row_key(row)[:7], 16)}


def trainer_parts(policy: Policy, task: Task) -> Fields:
    """What TRL's constructor sets, as far as the methods that play read it."""
    tools, factories = list(task.tools), factories_of(task.environment)
    of_each = checked_tools(tools, task.environment)
    every = list(dict.fromkeys(itertools.chain(*of_each.values())))
    tokenizer, template = with_calls(policy.tokenizer, bool(every))
    gather = SimpleNamespace(device=policy.model.device, gather=lambda values: values)
    return {
        "accelerator": gather,
        "model": policy.model,
        "processing_class": tokenizer,
        "_tokenizer": tokenizer,
        "_is_vlm": False,
        "use_vllm": False,
        "num_generations_eval": 1,
        "chat_template": template,
        "chat_template_kwargs": policy.chat_template_kwargs,
        "eos_token_ids": eos_ids(policy),
        "state": SimpleNamespace(num_input_tokens_seen=0),
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "rollout_func": None,
        "tools": every,
        "environments": None,
        "environment_factories": factories or None,
        "_standalone_tools": tools,
        "_env_tools": of_each,
        "_multi_environment": isinstance(task.environment, Mapping),
    }


def _guarded(make: Function, kept: ProcessState) -> Any:
    return guarded_environment(guarded(make, DEADLINE_S, kept)(), kept=kept)


def with_calls(tokenizer: Any, calls: bool) -> tuple[Any, str | None]:
    """As in TRL's constructor: (a tokenizer that parses calls, the template that replaces its own;
    None: its own stays). ValueError: TRL knows neither how to parse this template's calls, nor a
    template to train with.
    """
    from trl import chat_template_utils as templates

    if not calls:
        return tokenizer, None
    tokenizer = copy.copy(tokenizer)
    if not any(getattr(tokenizer, f"response_{kind}", None) for kind in ("template", "schema")):
        tokenizer = templates.add_response_schema(tokenizer)
    keeps = templates.is_chat_template_prefix_preserving(tokenizer)
    return tokenizer, None if keeps else templates.get_training_chat_template(tokenizer)


@contextlib.contextmanager
def _event_loop() -> Generator[Any]:
    # for tools that are coroutines
    from trl.trainer import utils

    thread, loop, ready = utils.start_event_loop_in_daemon("playing")
    ready.wait()
    try:
        yield loop
    finally:
        utils.shutdown_event_loop_in_daemon(thread, loop)
