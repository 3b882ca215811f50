"""Environments that fail, hang, end the process, answer with what is no text, never end or share their state; the game that
they spoil; and what becomes of a run with each. `benchmarks/bad_environments.py` makes a table of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.errors import RecipeError, RewardError, RunError, TaskError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.task import Task
from workbench.training.attach import attach
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy
from workbench.training.trainer import continue_run, make_trainer
from workbench.training.transcribing import NOT_CALLED, NOT_READ

BAD = "Question 3."  # on which a bad environment is bad: a prompt of the second step
DEADLINE_S, FOR_EVER_S = 0.5, 1000.0
REFUSED, STOPPED, RECORDED, TOLD, NOTHING = "refused", "stopped", "recorded", "told", "goes on"


class Game:
    """Counts; its reward is how far."""

    def reset(self, prompt: list, **row: object) -> Any:
        self.count, self.bad = 0, prompt[-1]["content"].startswith(BAD)

    def more(self, by: int) -> Any:
        """Count on.

        Args:
            by: how far.
        """
        self.count += by
        return str(self.count)

    def get_reward(self) -> Any:
        return float(self.count)


def bad_reset(act: Callable) -> type:
    class Resets(Game):
        def reset(self, prompt, **row):
            super().reset(prompt)
            return act(self) if self.bad else None

    return Resets


def bad_tool(act: Callable) -> type:
    class Answers(Game):
        def more(self, by: int):
            """Count on.

            Args:
                by: how far.
            """
            return act(self) if self.bad else super().more(by)

    return Answers


def bad_async_tool(act: Callable) -> type:
    class Answers(Game):
        async def more(self, by: int):
            """Count on.

            Args:
                by: how far.
            """
            return await act(self) if self.bad else super().more(by)

    return Answers


def bad_reward(act: Callable) -> type:
    class Rewards(Game):
        def get_reward(self):
            return act(self) if self.bad else super().get_reward()

    return Rewards


def bad_async_reward(act: Callable) -> type:
    class Rewards(Game):
        async def get_reward(self):
            return await act(self) if self.bad else super().get_reward()

    return Rewards


# -- what they do ------------------------------------------------------------------------------------------------------
def fails(game):
    raise ValueError("no such number")


def leaves(game):
    raise SystemExit(3)


def sleeps(game):
    time.sleep(FOR_EVER_S)


def swallows(game):
    until = time.monotonic() + FOR_EVER_S
    while time.monotonic() < until:
        try:
            while time.monotonic() < until:
                pass
        except Exception:
            continue


async def fails_later(game):
    await asyncio.sleep(0.01)
    raise ValueError("no such number")


async def waits(game):
    await asyncio.sleep(FOR_EVER_S)


async def blocks(game):
    time.sleep(5.0)  # nothing interrupts it; the thread is left behind


def forks(game):
    os.fork()
    return "forked"


def forks_quietly(game):
    os.fork()


def forks_and_scores(game):
    os.fork()
    return 1.0


def interrupts(game):
    raise KeyboardInterrupt


def reseeds(game):
    import torch

    torch.manual_seed(0)
    return "seeded"


class NoText:
    def __str__(self):
        raise OSError("no text")


def starts_a_thread(game):
    def work():
        raise RuntimeError("in a thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return "started"


def megabyte(game):
    return "0123 " * 200_000


class NotMade(Game):
    def __init__(self) -> None:
        raise OSError("no server")


class Seats(Game):
    free = True  # until the trainer is made

    def __init__(self) -> None:
        if not Seats.free:
            raise OSError("all seats are taken")


class Awaited(Game):
    async def reset(self, prompt, **row):
        super().reset(prompt)


class Leaks(Game):
    seen: list = []  # noqa: RUF012

    def more(self, by: int) -> str:
        """Count on.

        Args:
            by: how far.
        """
        Leaks.seen.append(by)
        return str(len(Leaks.seen))


def no_types(a, b):
    return a + b


def any_number(*numbers: int) -> int:
    """Adds.

    Args:
        numbers: to add.
    """
    return sum(numbers)


def more(by: int) -> str:
    """Another tool of that name.

    Args:
        by: how far.
    """
    return str(by)


class Case(NamedTuple):
    """One bad environment, and what must become of a run with it."""

    what: str  # in the table
    outcome: str
    said: str  # is in the error, in a call's error or result, or in the event
    environment: Any = Game
    tools: tuple = ()
    ever: bool = False  # the policy calls in every turn, not only in its first


TOOK = f"was not back after {DEADLINE_S:g} s"
CASES = {
    "constructor_raises": Case("its constructor raises", REFUSED, "OSError: no server", NotMade),
    "constructor_raises_later": Case(
        "its constructor raises, but not at first", STOPPED, "the constructor of environment 2 raised OSError", Seats
    ),
    "reset_awaited": Case("reset is a coroutine", REFUSED, "Awaited: its reset is a coroutine", Awaited),
    "no_types": Case("a tool without types and docstring", REFUSED, "the tool no_types: ", tools=(no_types,)),
    "any_arguments": Case("a tool that takes *args", REFUSED, "the tool any_number: *numbers", tools=(any_number,)),
    "one_name": Case("two tools of one name", REFUSED, "two tools are called more", tools=(more,)),
    "reset_raises": Case("reset raises", STOPPED, "step 2: reset raised ValueError: no such number", bad_reset(fails)),
    "reset_hangs": Case("reset hangs", STOPPED, f"step 2: reset raised TimeoutError: {TOOK}", bad_reset(sleeps)),
    "reset_exits": Case("reset ends the process", STOPPED, "reset raised SystemExit: 3", bad_reset(leaves)),
    "reset_bytes": Case("reset returns bytes", STOPPED, "it returned bytes, not a text", bad_reset(lambda game: b"0")),
    "reset_megabyte": Case("reset returns a megabyte", STOPPED, "a text of 1,000,000 tokens", bad_reset(megabyte)),
    "reward_raises": Case("get_reward raises", STOPPED, "Rewards raised ValueError: no such number", bad_reward(fails)),
    "reward_hangs": Case("get_reward hangs", STOPPED, f"Rewards raised TimeoutError: {TOOK}", bad_reward(sleeps)),
    "reward_text": Case("get_reward returns a text", STOPPED, "Rewards returned 'much'", bad_reward(lambda game: "much")),
    "reward_nan": Case("get_reward returns nan", STOPPED, "Rewards returned nan", bad_reward(lambda game: float("nan"))),
    "reward_none": Case("get_reward returns None", RECORDED, "no score", bad_reward(lambda game: None)),
    "async_reward_raises": Case(
        "a coroutine get_reward raises", STOPPED, f"for the prompt '{BAD}'", bad_async_reward(fails_later)
    ),
    "async_reward_hangs": Case(
        # its own deadline, or that of the batch, whichever a busy machine meets first
        "a coroutine get_reward hangs", STOPPED, f" {DEADLINE_S:g} s", bad_async_reward(waits)
    ),
    "tool_raises": Case("a tool raises", RECORDED, "ValueError: no such number", bad_tool(fails)),
    "tool_exits": Case("a tool ends the process", RECORDED, "SystemExit: 3", bad_tool(leaves)),
    "tool_hangs": Case("a tool hangs", RECORDED, f"TimeoutError: {TOOK}", bad_tool(sleeps)),
    "tool_swallows": Case("a tool loops, and catches every Exception", RECORDED, f"TimeoutError: {TOOK}", bad_tool(swallows)),
    "tool_none": Case("a tool returns None", RECORDED, "None", bad_tool(lambda game: None)),
    "tool_bytes": Case("a tool returns bytes", RECORDED, "TypeError: it returned bytes", bad_tool(lambda game: b"1")),
    "tool_list": Case("a tool returns a list", RECORDED, "TypeError: it returned list", bad_tool(lambda game: [1, 2])),
    "tool_dict": Case("a tool returns a dict", RECORDED, "{'count': 1}", bad_tool(lambda game: {"count": 1})),
    "tool_forks": Case("a tool forks, and its child returns, too", RECORDED, "forked", bad_tool(forks)),
    "tool_interrupts": Case("a tool raises KeyboardInterrupt", RECORDED, "KeyboardInterrupt: ", bad_tool(interrupts)),
    "tool_surrogate": Case("a tool returns half a surrogate pair", RECORDED, "hi\\ud800", bad_tool(lambda game: "hi\ud800")),
    "tool_unwritable": Case("a tool returns what has no str", RECORDED, "OSError: no text", bad_tool(lambda game: NoText())),
    "tool_14_megabytes": Case(
        "a tool returns 14 megabytes", RECORDED, "ValueError: it returned 14,000,000", bad_tool(lambda game: "7" * 14_000_000)
    ),
    "tool_reseeds": Case("a tool sets the random numbers of all", RECORDED, "seeded", bad_tool(reseeds)),
    "reset_forks": Case("reset forks, and its child returns, too", RECORDED, "", bad_reset(forks_quietly)),
    "reset_surrogate": Case("reset returns half a surrogate pair", RECORDED, "", bad_reset(lambda game: "hi\ud800")),
    "reward_forks": Case("get_reward forks, and its child returns, too", RECORDED, "", bad_reward(forks_and_scores)),
    "tool_megabyte": Case("a tool returns a megabyte", RECORDED, NOT_READ, bad_tool(megabyte)),
    "async_tool_raises": Case("a coroutine tool raises", RECORDED, "ValueError: no such number", bad_async_tool(fails_later)),
    "async_tool_hangs": Case("a coroutine tool hangs", RECORDED, f"TimeoutError: {TOOK}", bad_async_tool(waits)),
    "async_tool_blocks": Case(
        "a coroutine tool blocks", RECORDED, f"TimeoutError: {TOOK}: it blocks instead of awaiting", bad_async_tool(blocks)
    ),
    "never_ends": Case("it never ends", RECORDED, NOT_CALLED, ever=True),
    "leaks": Case("a list of its class keeps what rollouts leave", TOLD, "Leaks.seen", Leaks),
    "thread": Case("a tool starts a thread, which raises", RECORDED, "started", bad_tool(starts_a_thread)),
}  # fmt: skip


class Outcome(NamedTuple):
    """What became of a run."""

    how: str
    said: list[str]
    steps: list[int]  # that are recorded
    after: str = ""  # status, once the environment is mended and the run continued


def no_reward(completions, **columns):
    return [0.0] * len(completions)


def task_of(environment: Any = Game, tools: tuple = ()) -> Task:
    rows = [{"prompt": [{"role": "user", "content": f"Question {number}."}]} for number in range(6)]
    return Task("game", rows, [no_reward], environment=environment, tools=tools)


def recipe_of(policy: str) -> Recipe:
    grpo = {"max_steps": 3, "save_steps": 1, "num_generations": 2, "per_device_train_batch_size": 4}
    grpo |= {"max_completion_length": 120, "max_tool_calling_iterations": 1}
    part = {"name": policy, "backend": "transformers", "load_in_4bit": False}
    return Recipe.of({"run_name": "r", "policy": part, "grpo": grpo, "rewards": {"deadline_s": DEADLINE_S}})


def calls_by_script(trainer: Any, ever: bool) -> None:
    """What the policy writes is no chance: a call in its first turn, `stop` in the next."""
    call = f"<tool>{json.dumps({'name': 'more', 'arguments': {'by': 1}})}</tool>"

    def generate(prompt_ids: list, *_: object, **__: object) -> tuple[list, None]:
        tokenizer = trainer.processing_class
        said = ["stop" if "<|tool|>" in tokenizer.decode(ids) and not ever else call for ids in prompt_ids]
        return [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in said], None

    trainer._generate_single_turn = generate


def outcome_of(case: Case, policy: str, runs: Path) -> Outcome:
    """Train with a bad environment; where the run stops, mend the environment and continue."""
    try:
        plan = prepare(recipe_of(policy), task_of(case.environment, case.tools))
    except (TaskError, RecipeError) as error:
        return Outcome(REFUSED, [error.value], [])
    trainer = make_trainer(plan, load_policy(plan))
    calls_by_script(trainer, case.ever)
    Seats.free = False
    run = attach(trainer, plan, runs=runs)
    try:
        trainer.train()
    except (RunError, RewardError) as error:
        return Outcome(STOPPED, [error.value], *_continued(run))
    batches = [*read_batches(run)]
    said = [event["what"] for event in run.events() if event["event"] == "shared_state"]
    how = TOLD if said else RECORDED
    for batch in batches:
        for prompt, turns, score in zip(batch.prompts, batch.turns, batch.scores[:, -1], strict=True):
            if BAD in prompt[-1]["content"]:
                said += [str(call.error or call.result) for turn in turns for call in turn.calls]
                said += ["no score"] if score != score else []
    return Outcome(how, said, [batch.step for batch in batches], run.result()["status"])


def _continued(run: RunDirectory) -> tuple[list[int], str]:
    if not run.path.is_dir():
        return [], "not begun"  # nothing was trained yet
    steps = [batch.step for batch in read_batches(run)]
    with contextlib.redirect_stdout(io.StringIO()):
        continue_run(run, task=task_of(), accept_changes=True)
    assert [batch.step for batch in read_batches(run)] == [1, 2, 3]
    return steps, run.result()["status"]
