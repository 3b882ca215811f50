"""Turns: what a trainer with tools, an environment or a `rollout_func` generated, as it happened.

Generation is TRL's own loop; this stands around it, and around the functions that it calls. In a
run of a recipe it also sees to it that the members of a group begin alike, where `reset` takes a
`seed`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.base.door import said
from workbench.base.environments import takes_seed
from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Function, Trainer
from workbench.data.prompts import question
from workbench.rewards.beside import ProcessState
from workbench.rewards.guarding import guarded, guarded_environment, guarded_tool
from workbench.run.batch import ScoredBatch
from workbench.run.calls import Markers, unparsed
from workbench.run.turns import POLICY, Turn, own_words
from workbench.training.feature import Asked, Feature, Planned, Watched
from workbench.training.features.turns.planning import check_turns, described, turns_lines
from workbench.training.plan import Stage
from workbench.training.replaced import replaces
from workbench.training.transcribing import Record, calls_recorded, text_tokenizer, turns_from

NO_MASK = (
    "rollout_func returned no env_mask: all its tokens are recorded, and trained on, as the"
    " policy's own"
)
UNMASKED = (
    "tools answered, and the trainer masks no token of theirs: the loss teaches the policy to write"
    " what tools answer, and the record cannot tell who wrote what"
)
_EACH = "each rollout of a generation has its own environment, made without arguments"
_BEGINS = "an environment begins every rollout of every row, with a text or None"
SHARED = (
    "{} changed while rollouts were played: it belongs to the class, so what one rollout leaves in"
    " it the others find; unless that is meant (a cache), make it in reset"
)


class Generated(NamedTuple):
    """The rollouts of one generation, in the trainer's order: [B] each."""

    completion_ids: list[list[int]]
    turns: list[list[Turn]]


@replaces("_generate", "_generate_and_score_completions", "rollout_func")
class Turns(Feature):
    """Splits each rollout into turns and keeps every call, for the record."""

    key = "turns"

    def __init__(self, session: Watched) -> None:
        super().__init__(session)
        self._made: deque[Generated] = deque()  # not scored yet
        self._told = False  # that nobody said which tokens are the policy's
        self._deadline_s: float | None = None  # for each call of the task's own code
        self._kept = ProcessState()  # around them
        self._of_class: dict[type, Fields] = {}  # lists, dicts and sets that all environments share
        self._why_none: Callable[[str], str] = lambda text: ""

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        for stage in asked.stages:
            check_turns(stage)
        return Planned(turns_lines(asked))

    def begin_stage(self, stage: Stage) -> None:
        self._made.clear()
        self._of_class.clear()
        self._deadline_s = stage.recipe.rewards.deadline_s
        trainer: Any = self.session.trainer
        if about := described(trainer):
            self.session.run.update_manifest(turns=about)
        names = {own["function"]["name"] for own in about.get("tools", ())}
        if names:
            markers = about["markers"] and Markers(**about["markers"])
            self._why_none = functools.partial(unparsed, tools=names, markers=markers)

    def around(self, trainer: Trainer) -> dict[str, Function]:
        if not takes_turns(trainer):
            return {}
        replaced = {"_generate": functools.partial(self._generated, trainer, trainer._generate)}
        if not self.session.policy:
            return replaced
        if getattr(trainer, "environment_factories", None):
            self._guard_environments(trainer)
        if rollout := trainer.rollout_func:  # the task's, no method of the trainer's
            self.session.replace("rollout_func", functools.partial(self._rolled, rollout))
        made = trainer._generate_and_score_completions
        replaced["_generate_and_score_completions"] = functools.partial(self._seeded, trainer, made)
        return replaced

    def _seeded(self, trainer: Any, made: Function, inputs: Sequence[Fields]) -> object:
        size, begun = trainer.num_generations, f"{trainer.args.seed} {trainer.state.global_step}"
        self._kept.begin(begun)
        # TRL hands the columns of a row to `reset`; a column of that name is the user's own.
        pools = (getattr(trainer, "_environment_pool", None) or {}).values()
        if any(takes_seed(pool[0]) for pool in pools) and "seed" not in inputs[0]:
            inputs = [
                {**row, "seed": random.Random(f"{begun} {place // size}").randrange(2**31)}
                for place, row in enumerate(inputs)
            ]
        return made(inputs)

    def restore(self, state: Fields) -> None:
        """Say what a checkpoint has not: the generators that environments keep from rollout to
        rollout, where `reset` is not seeded.
        """
        pools = (getattr(self.session.trainer, "_environment_pool", None) or {}).values()
        self.session.restored.inexact += [
            f"{type(own).__name__}.{name} starts afresh: let reset take `seed`, and draw from it"
            for own, *_ in pools
            if not takes_seed(own)
            for name, value in vars(own).items()
            if type(value).__name__ in ("Random", "Generator", "RandomState")
        ]

    def _guard_environments(self, trainer: Any) -> None:
        for name, factory in trainer.environment_factories.items():
            pool = trainer._environment_pool[name]
            for environment in pool:
                self._guard_environment(environment)

            def made(make: Function = factory, pool: list = pool) -> object:
                with self._named(f"the constructor of environment {len(pool) + 1}", _EACH):
                    environment = guarded(make, self._deadline_s, self._kept)()
                return self._guard_environment(environment)

            trainer.environment_factories[name] = made
            self._of_class |= {kind: _containers(kind) for kind in type(pool[0]).__mro__}

    def _guard_environment(self, environment: Any) -> object:
        reset = guarded_environment(environment, self._deadline_s, self._kept).reset
        row: Fields = {}

        def begun(**own: object) -> object:
            row.update(own)
            with self._named("reset", _BEGINS, row):
                return self._observed(reset(**own), row)

        environment.reset = begun
        if inspect.iscoroutinefunction(reward := getattr(environment, "get_reward", None)):
            # Any other the suite calls again, to find the prompt.
            environment.get_reward = _with_prompt(reward, row)
        return environment

    def _observed(self, observation: str | None, row: Fields) -> object:
        most = self.session.policy.max_seq_length
        if observation and len(observation.encode()) > most:  # a token has a byte at least
            tokenizer = text_tokenizer(self.session.trainer)
            tokens = len(tokenizer(observation, add_special_tokens=False)["input_ids"])
            if tokens > most:
                raise RunError(
                    f"{self.session.run.name}: reset returned a text of {tokens:,} tokens;"
                    f" policy.max_seq_length is {most:,}{_prompt_of(row)}",
                    rule="it is a part of the prompt, and a rollout follows it",
                    remedy="raise policy.max_seq_length, or let reset say less",
                )
        return observation

    @contextlib.contextmanager
    def _named(self, what: str, rule: str, row: Fields | None = None) -> Generator[None]:
        try:
            yield
        except RunError:
            raise
        except Exception as error:  # of the user's own code
            where = f"{self.session.run.name}: step {self.session.trainer.state.global_step + 1}"
            raise RunError(
                f"{where}: {what} raised {said(error)}{_prompt_of(row)}",
                rule=rule,
                remedy="try it by hand, and continue the run; if it is slow, raise"
                " rewards.deadline_s",
            ) from error

    def _look_for_shared(self, step: int) -> None:
        for kind, before in self._of_class.items():
            now = _containers(kind)
            for name, own in [*before.items()]:
                with contextlib.suppress(ValueError):  # arrays say nothing of their equality
                    if now.get(name) != own:
                        del before[name]  # it is told once
                        what = f"{kind.__name__}.{name}"
                        print(SHARED.format(what), flush=True)
                        self.session.recorder.event("shared_state", step, what=what)

    def _generated(self, trainer: Any, generate: Function, prompts: Sequence[object]) -> Any:
        if not trainer.model.training:  # it evaluates, which is not recorded
            return generate(prompts)
        records = calls_recorded(trainer, len(prompts), self._guard)
        output = generate(prompts)
        with self.session.spared():
            self._made.append(self._split(trainer, records, output))
        return output

    def _guard(self, tool: Function) -> Function:
        # What a stranger's trainer does is not changed.
        return guarded_tool(tool, self._deadline_s, self._kept) if self.session.policy else tool

    def _rolled(self, rollout: Function, prompts: Sequence[object], trainer: object) -> Fields:
        def read(output: Fields) -> Fields:
            for key in ("prompt_ids", "completion_ids"):
                if len(output[key]) != len(prompts):
                    raise ValueError(f"it returned {len(output[key])} {key}")
            return output

        with self._named("rollout_func", f"it returns a list for each of {len(prompts)} prompts"):
            # It generates: no deadline fits.
            return guarded(rollout, None, self._kept, read=read)(prompts, trainer)

    def _split(self, trainer: Any, records: list[list[Record]], output: tuple) -> Generated:
        _, completion_ids, masks, completions, *_ = output
        if masks is None and trainer.rollout_func and not self._told:
            self._told = True
            print(NO_MASK, flush=True)
        if not self._told and any(map(_unmasked, completions, masks or itertools.repeat(()))):
            self._told = True
            print(UNMASKED, flush=True)
            self.session.recorder.event("unmasked", trainer.state.global_step + 1, why=UNMASKED)
        why_none = self._why_none
        if trainer.rollout_func:  # it reads calls in its own way: TRL parses them, and makes none
            completions, why_none = itertools.repeat(""), lambda text: ""
        each = zip(completion_ids, masks or itertools.repeat(()), completions, records)
        turns = [turns_from(text_tokenizer(trainer), *own, why_none) for own in each]
        return Generated([list(ids) for ids in completion_ids], turns)

    def on_batch(self, scored: ScoredBatch) -> ScoredBatch | None:
        """The batch with its turns: its completions are the policy's words, its lengths the
        policy's tokens, as TRL counts them.
        """
        self._look_for_shared(scored.step)
        while self._made:  # a subclass may generate what it never scores
            made = self._made.popleft()
            if made.completion_ids == scored.completion_ids:
                return with_turns(scored, made.turns)
        if takes_turns(self.session.trainer):
            raise RunError(
                f"{self.session.run.name}: step {scored.step}: no turns of these completions",
                rule="the trainer scores the completions that it generates",
                remedy="train without attach, or leave the completions as they were generated",
            )
        return None


def _unmasked(completion: str | Sequence[Fields], mask: Sequence[int]) -> bool:
    messages = [] if isinstance(completion, str) else completion
    return 0 not in mask and any(own["role"] == "tool" for own in messages)


def _containers(kind: type) -> Fields:
    kept = {name: own for name, own in vars(kind).items() if isinstance(own, (list, dict, set))}
    found = {}
    for name, own in kept.items():
        if not name.startswith("__"):
            with contextlib.suppress(Exception):  # what cannot be copied is not compared
                found[name] = copy.deepcopy(own)
    return found


def _with_prompt(reward: Function, row: Fields) -> Function:
    async def awaited() -> object:
        try:
            return await reward()
        except Exception as error:  # of a batch's coroutines the suite cannot tell which it was
            raise RuntimeError(f"{said(error)}{_prompt_of(row)}") from error

    return awaited


def _prompt_of(row: Fields | None) -> str:
    if not (prompt := (row or {}).get("prompt")):
        return ""
    return f", for the prompt {question(prompt)[:200]!r}"


def takes_turns(trainer: Any) -> bool:
    """Whether a trainer's rollouts may have turns."""
    return bool(getattr(trainer, "tools", None) or getattr(trainer, "rollout_func", None))


def with_turns(batch: ScoredBatch, turns: list[list[Turn]]) -> ScoredBatch:
    """A batch whose rollouts have these turns: [B]."""
    lengths = [sum(turn.tokens for turn in own if turn.author == POLICY) for own in turns]
    return dataclasses.replace(
        batch, turns=turns, completions=list(map(own_words, turns)), lengths=np.array(lengths)
    )
