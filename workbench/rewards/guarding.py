"""A task's functions that are called while its rollouts are generated, put behind the door: tools,
`reset` and `get_reward`, with a deadline, and what they answer as a text that a template can write.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

from workbench.base.door import DEADLINE_S, Late, door
from workbench.base.kinds import Fields, Function
from workbench.base.workspace import encodable
from workbench.rewards.beside import ProcessState, answer_of

_NO_TEXT = (bytes, bytearray, list)  # TRL takes a list for parts of a message, images among them
# Characters of what a tool, `reset`, a reference or a probe writes: TRL tokenises all of it, before
# it drops what does not fit.
LONGEST_TEXT = 1_000_000


class _Coroutines:
    # All run in one loop, that of this object, as TRL's do: clients belong to a loop, and an
    # environment uses its own from turn to turn.
    async def call(self, function: Function, arguments: Fields, read: Function) -> Any:
        return read(await function(**arguments))


_COROUTINES = _Coroutines()


def guarded(
    function: Function,
    deadline_s: float | None,
    kept: ProcessState | None = None,
    quiet: bool = False,
    read: Callable[[Any], Any] | None = None,
) -> Function:
    """The function behind the `door`, for `deadline_s` at most each time it is called (None: no
    limit); a coroutine is cancelled then, and one that blocks is left behind with its thread.

    Args:
        kept: the functions that share one draw from the same random numbers; None: its own.
        quiet: do not print who is late.
        read: what is made of its result, behind the door as well.
    """
    kept, read = kept or ProcessState(), read or (lambda result: result)

    @contextlib.contextmanager
    def telling() -> Generator[None]:
        try:
            yield
        except TimeoutError as error:
            # a generation may call it hundreds of times, and say nothing until it is over
            if isinstance(error.__cause__, Late) and not quiet:
                print(f"{getattr(function, '__qualname__', function)} {error}", flush=True)
            raise

    @functools.wraps(function)
    def called(*given: object, **arguments: object) -> object:
        with telling(), door(kept, deadline_s):
            return read(function(*given, **arguments))

    @functools.wraps(function)
    async def awaited(**arguments: object) -> object:
        call: Fields = {"function": function, "arguments": arguments, "read": read}
        with telling(), kept:
            return await answer_of(_COROUTINES.call, call, deadline_s)

    return awaited if inspect.iscoroutinefunction(function) else called


def text_of(result: Any) -> str:
    """What a policy reads of a tool's result: its `str`, as in TRL, with lone surrogates escaped.
    TypeError: bytes, or a list, which most chat templates cannot write; ValueError: too long.
    """
    if isinstance(result, _NO_TEXT):
        raise TypeError(f"it returned {type(result).__name__}, not a text")
    text = str(result)
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"it returned {len(text):,} characters; at most {LONGEST_TEXT:,} are read: return the"
            " part that matters"
        )
    return encodable(text)


def _observation_of(result: Any) -> str | None:
    if not isinstance(result, str | None):
        raise TypeError(f"it returned {type(result).__name__}, not a text")
    return result and text_of(result)


def guarded_tool(
    tool: Function, deadline_s: float | None = DEADLINE_S, kept: ProcessState | None = None
) -> Function:
    """`guarded`, and its result as `text_of` it; of an error the policy reads the message."""
    return guarded(tool, deadline_s, kept, read=text_of)


def guarded_environment(
    environment: Any, deadline_s: float | None = DEADLINE_S, kept: ProcessState | None = None
) -> Any:
    """The environment, with its `reset` and `get_reward` guarded in place."""
    for name, read in (("reset", _observation_of), ("get_reward", None)):
        if method := getattr(environment, name, None):
            setattr(environment, name, guarded(method, deadline_s, kept, read=read))
    return environment
