"""One rollout as it happened: its tokens cut into turns, and the calls that were made."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from workbench.base.door import words
from workbench.base.kinds import Fields, Function, Tokenizer
from workbench.rewards.guarding import guarded_tool
from workbench.run.turns import ENVIRONMENT, POLICY, TOOL, ToolCall, Turn

NOT_CALLED = "not called: max_tool_calling_iterations was reached, or max_completion_length"
NOT_READ = "its result did not fit into max_completion_length, and was not read"


def turns_from(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    mask: Sequence[int],
    completion: str | Sequence[Fields],
    records: Iterable[Record] = (),
    why_none: Callable[[str], str] = lambda text: "",
) -> list[Turn]:
    """The turns of one rollout, from its tokens and what TRL says of them.

    Args:
        ids: of the whole completion, tools' and environments' included.
        mask: TRL's `tool_mask` or `env_mask`, 1 for the policy's tokens; empty: all are.
        completion: its messages; text where a `rollout_func` made it.
        records: of the calls that reached a function, in order.
        why_none: why what looks like a call is none, of a turn without calls.
    """
    # A rollout_func's is one message, whoever wrote what of it.
    messages = [] if isinstance(completion, str) else completion
    by_turn = 0 not in mask or any(own["role"] == "tool" for own in messages)
    rounds = _rounds(messages if by_turn else [], records)
    turns: list[Turn] = []
    start, results = 0, []
    for own, run in itertools.groupby(mask or [1] * len(ids)):
        end = start + len([*run])
        text = str(tokenizer.decode([*ids[start:end]], skip_special_tokens=True))
        if own:
            calls, results, said = next(rounds, ((), [], None))
            # with the special tokens: a template's tags may be some
            why = "" if calls else why_none(str(tokenizer.decode([*ids[start:end]])))
            content = said if said != text else None
            turns.append(Turn(POLICY, text, end - start, True, calls, why, content))
        elif results:
            turns.append(Turn(TOOL, "\n".join(results), end - start, False))
        else:
            turns.append(Turn(ENVIRONMENT, text, end - start, False))
        start = end
    return turns


def text_tokenizer(trainer: Any) -> Any:
    """A trainer's tokenizer; a processor of images holds one."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


class Record:
    """One call that reached a function."""

    def __init__(self, name: str, arguments: Fields) -> None:
        self.name, self.arguments = name, arguments
        self.late, self.seconds = False, 0.0
        self.error: str | None = None

    @contextlib.contextmanager
    def timed(self) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.error = words(error)
            raise
        finally:
            self.seconds += time.perf_counter() - started


def calls_recorded(
    trainer: Any, rollouts: int, guard: Callable[[Function], Function] = guarded_tool
) -> list[list[Record]]:
    """A list for each rollout that the trainer is about to generate, which its calls will fill;
    `guard`: what stands between a call and the tool.
    """
    records: list[list[Record]] = [[] for _ in range(rollouts)]
    for tools in ("_sync_tool_dicts", "_async_tool_dicts"):
        for own, kept in zip(getattr(trainer, tools, None) or (), records):
            own.update({name: with_record(name, guard(tool), kept) for name, tool in own.items()})
    return records


def with_record(name: str, tool: Function, records: list[Record]) -> Function:
    @functools.wraps(tool)
    def called(**arguments: object) -> object:
        record = Record(name, arguments)
        records.append(record)
        with record.timed():
            result = tool(**arguments)
        if not inspect.isawaitable(result):
            return result
        record.late = True

        async def awaited() -> object:
            with record.timed():
                return await result

        return awaited()

    return called


def _rounds(
    messages: Sequence[Fields], records: Iterable[Record]
) -> Iterator[tuple[tuple[ToolCall, ...], list[str], str]]:
    """Of each of the policy's messages: its calls, what the policy read of them, and what it
    says.
    """
    left = deque(records)
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            after = itertools.takewhile(lambda own: own["role"] == "tool", messages[place + 1 :])
            read = [str(own["content"]) for own in after]
            calls = _calls(message.get("tool_calls") or [], left, read)
            yield tuple(calls), read, str(message.get("content") or "")


def _calls(asked: Sequence[Fields], left: deque[Record], read: Sequence[str]) -> Iterator[ToolCall]:
    functions = [call.get("function") or call for call in asked]
    records = [
        left.popleft() if left and (left[0].name, left[0].arguments) == _named(own) else None
        for own in functions
    ]
    # TRL answers in the order of the calls, but coroutines last.
    late = [record is not None and record.late for record in records]
    order = sorted(range(len(asked)), key=late.__getitem__)
    answers = dict(zip(order, read))
    for place, (own, record) in enumerate(zip(functions, records, strict=True)):
        name, arguments = _named(own)
        answer = answers.get(place)
        if record is None:
            yield ToolCall(name, arguments, error=answer or NOT_CALLED)
        elif record.error or answer is None:
            yield ToolCall(name, arguments, None, record.error or NOT_READ, record.seconds)
        else:
            yield ToolCall(name, arguments, answer, None, record.seconds)


def _named(function: Fields) -> tuple[str, Fields]:
    arguments = function.get("arguments")
    arguments = dict(arguments) if isinstance(arguments, Mapping) else {"": arguments}
    return str(function.get("name", "unknown")), arguments
