"""Environments in TRL's form: objects with `reset(**row)`, whose other public methods are tools."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
import re
import typing
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.base.door import behind_door, words
from workbench.base.errors import TaskError
from workbench.base.extras import need
from workbench.base.kinds import Fields, Function

Environment = Function | Mapping[str, Function] | None  # what makes them; by name, several


_BROUGHT = "brought_by_an_environment"  # its class, on such a reward function


def factories_of(environment: Environment) -> dict[str | None, Function]:
    """Name -> what makes an environment, behind the door; the name of a single one is None, as in
    TRL.
    """
    if isinstance(environment, Mapping):
        return {name: behind_door(make) for name, make in environment.items()}
    return {None: behind_door(environment)} if environment else {}


def methods_of(environment: object) -> list[Function]:
    """The methods that TRL offers as tools."""
    return [
        method
        for name, method in inspect.getmembers(environment, inspect.ismethod)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]


def checked_tools(
    tools: Sequence[Function], environment: Environment
) -> dict[str | None, list[Function]]:
    """What a rollout may call, by the name of its environment; None: of a single one, or none.
    TaskError: a policy cannot be told a tool, or call it by its name, or an environment has no
    `reset` that TRL could call. No library is imported.
    """
    every: dict[str | None, list[Function]] = {}
    if tools and not environment:
        every[None] = [*tools]
    for name, make in factories_of(environment).items():
        own = make()
        reset = getattr(own, "reset", None)
        if reset is None or inspect.iscoroutinefunction(reset):
            raise TaskError(
                f"{type(own).__name__}: its reset is {'a coroutine' if reset else 'missing'}",
                rule="`reset` begins a rollout; TRL calls it and does not await it",
                remedy="def reset(self, **row) -> str | None",
            )
        if not hasattr(own, "__dict__"):
            raise TaskError(
                f"{type(own).__name__} has __slots__ and no __dict__",
                rule="its `reset` is wrapped, so that what it raises is named",
                remedy="leave __slots__ out",
            )
        every[name] = [*tools, *methods_of(own)]
    for functions in every.values():
        names = [getattr(tool, "__name__", str(tool)) for tool in functions]
        if twice := [each for each in names if names.count(each) > 1]:
            raise TaskError(
                f"two tools are called {twice[0]}",
                rule="a call reaches a tool by its name",
                remedy="rename one of them",
            )
        for tool in functions:
            with _told(tool):
                _check_arguments(tool)
    return every


def schemas_of(tools: Sequence[Function], environment: Environment) -> dict[str, list[Fields]]:
    """`checked_tools` as the JSON schemas that a template renders; "" is the name of a single
    environment, or of none. TaskError as there.
    """
    schemas: dict[str, list[Fields]] = {}
    for name, functions in checked_tools(tools, environment).items():
        own = schemas[name or ""] = []
        for tool in functions:
            need("transformers")
            from transformers.utils import get_json_schema

            with _told(tool):
                own.append(get_json_schema(tool))
    return schemas


@contextlib.contextmanager
def _told(tool: Function) -> Generator[None]:
    try:
        yield
    except Exception as error:  # transformers has several types, none of them in common
        raise TaskError(
            f"the tool {getattr(tool, '__name__', tool)}: {error}",
            rule="the policy is told a tool's parameters: each has a name, a type, and a line"
            " under `Args:` of the docstring",
            remedy="def add(a: int, b: int) -> int, with a docstring in Google's style",
        ) from error


def _check_arguments(tool: Function) -> None:
    # What transformers would refuse for a reason that the signature or the docstring shows.
    if not (text := (inspect.getdoc(tool) or "").strip()):
        raise TypeError("it has no docstring")
    typing.get_type_hints(tool)  # NameError: a type that cannot be looked up
    _, _, described = text.partition("\nArgs:\n")
    for parameter in inspect.signature(tool).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{parameter} takes any arguments, and calls name theirs")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{parameter.name} has no name in a call (/)")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"its parameter {parameter.name} has no type")
        if not re.search(rf"(?m)^\s*{parameter.name}:", described):
            raise TypeError(f"its docstring has no line on {parameter.name} under `Args:`")


class Start(NamedTuple):
    """An environment that was reset for a row."""

    environment: Any
    observation: Any  # what `reset` returned: text, a list of parts, or None
    row: Fields  # with the seed that it was handed


def started(environment: Environment, row: Fields, seed: int) -> Start:
    """Make an environment and reset it for a row, as TRL's trainer does; `seed`: for a `reset` that
    takes one, unless the row has its own.
    """
    several = isinstance(environment, Mapping)
    made = factories_of(environment)[row["environment"] if several else None]()
    if takes_seed(made):
        row = {"seed": seed, **row}
    handed = {name: own for name, own in row.items() if not (several and name == "environment")}
    return Start(made, made.reset(**handed), row)


def copies(begun: Start, count: int, task: str) -> list[Any]:
    """Copies of a started environment, each of which begins where it stands: `reset` only says
    again what it said.

    They also copy the state of a random generator that the environment holds, so all draw the same
    from it. What lies outside of the object, a file or a server, they share. TaskError: it cannot
    be copied.
    """

    def again(**row: object) -> object:
        return begun.observation

    try:
        made = [behind_door(copy.deepcopy)(begun.environment) for _ in range(count)]
        for own in made:
            own.reset = again
    except Exception as error:  # of the user's own code, or of what it holds
        name = type(begun.environment).__name__
        raise TaskError(
            f"task {task!r}: {name} cannot be split: {words(error)}",
            rule="several rollouts from one start take a copy of the environment each",
            remedy=f"give {name} a `__deepcopy__`, or keep locks, files and clients out of it",
        ) from error
    return made


@contextlib.contextmanager
def pinned_random(seed: int) -> Generator[None]:
    """Seeds the global random states of Python and numpy, and puts them back at the end."""
    import numpy as np

    states = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def where_they_part(first: str, second: str) -> tuple[str, str]:
    """Of two texts that differ: some 60 characters of each, around the first difference."""
    alike = itertools.takewhile(lambda two: two[0] == two[1], zip(first, second))
    begin = max(0, sum(1 for _ in alike) - 30)
    return first[begin : begin + 60], second[begin : begin + 60]


def takes_seed(environment: Any) -> bool:
    """Whether its `reset` has a parameter `seed`."""
    return "seed" in inspect.signature(type(environment).reset).parameters


def with_own_rewards(
    name: str, environment: Environment, functions: Sequence[Any], weights: Any
) -> Fields:
    """The `reward_funcs` and `reward_weights` of the task `name` with those that its environments
    bring: of each class that has `get_reward`, a reward function under its name, None for the
    rollouts of other classes. They take the place of TRL's own, and of those that another
    environment brought before. TaskError: an environment cannot be made.
    """
    try:
        kinds = dict.fromkeys(type(make()) for make in factories_of(environment).values())
    except Exception as error:  # of the user's own code
        raise TaskError(
            f"task {name!r}: environment: {words(error)}",
            rule="an environment is made without arguments; `reset` begins a rollout",
            remedy="environment=MyEnvironment, a class, or a function that makes one",
        ) from error
    brought = [_own_reward(kind) for kind in kinds if hasattr(kind, "get_reward")]
    kept = {}
    for place, function in enumerate(functions):
        if not (before := getattr(function, _BROUGHT, None)):
            kept[place] = function
        elif now := [own for own in brought if vars(own)[_BROUGHT] == before]:
            kept[place] = now[0]
            brought.remove(now[0])
    if weights is not None:
        weights = [*weights]
        if len(weights) == len(functions):  # else the task refuses them
            weights = [weights[place] for place in kept]
        weights += [1.0] * len(brought)
    # Two of one name the task refuses.
    return {"reward_funcs": [*kept.values(), *brought], "reward_weights": weights}


def _own_reward(kind: Any) -> Function:
    def called(environments: list, **columns: object) -> list:
        return [own.get_reward() if type(own) is kind else None for own in environments]

    async def awaited(environments: list, **columns: object) -> list:
        return [await own.get_reward() if type(own) is kind else None for own in environments]

    reward = awaited if inspect.iscoroutinefunction(kind.get_reward) else called
    vars(reward)[_BROUGHT] = kind.__name__
    reward.__name__, reward.__doc__ = kind.__name__, f"What {kind.__name__}.get_reward returns."
    return reward
