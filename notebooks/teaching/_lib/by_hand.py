"""Try a task's tools or environment by hand: you are the policy. Without widgets, as methods."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from workbench.base.door import DEADLINE_S, words
from workbench.base.environments import methods_of, started
from workbench.base.errors import TaskError, WorkbenchError
from workbench.base.kinds import Fields, Function
from workbench.rewards.guarding import guarded, guarded_tool
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.turns import POLICY, TOOL, ToolCall, Turn, own_words
from workbench.task import Task, function_name
from workbench.tasks.loading import load_task
from workbench.views.look import BAD, MUTED
from workbench.views.tables import Table, View, coloured, one_line, typed, verbatim
from workbench.views.turns import transcript, turn_text
from workbench.views.widgets import Parts, no_widgets, widget_view

_WIDE = {"width": "98%"}
_NO_CALL = "(no call: this ends the rollout)"


class ByHand:
    """One rollout of a task in which you write what a policy would: call a tool, read what it
    answers, and end with words. Leave it as the last line of a cell.

    >>> def double(number: int) -> int:
    ...     return 2 * number
    >>> def right_reward(completions, **columns):
    ...     return [float(messages[-1]["content"] == "42") for messages in completions]
    >>> asked = [{"role": "user", "content": "Twice 21?"}]
    >>> task = wb.Task("twice", [{"prompt": asked}], [right_reward], tools=[double])
    >>> game = wb.inspection.ByHand(task)
    >>> game.call("double", number=21)
    '42'
    >>> game.say("42").totals
    array([1.])

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        row: number of the prompt.
        seed: what `reset` is handed where it takes a `seed` and the row has none, as in a run.

    Raises:
        TaskError: if the task has neither tools nor an environment, or the rollout cannot begin.
    """

    def __init__(self, task: Task | str | Path, row: int = 0, *, seed: int = 0) -> None:
        self.task = load_task(task)
        if not (self.task.tools or self.task.environment):
            raise TaskError(
                f"task {self.task.name!r}: neither tools nor an environment",
                rule="by hand one calls a task's tools",
                remedy="Task(tools=[...]) or Task(environment=...); wb.Lab scores single texts",
            )
        self.number, self.seed = row, seed
        self.environment: Any = None
        self.begin()
        self.parts = Parts()
        self._loop: Any = None
        self.widget = None if no_widgets() else self._build()

    def begin(self) -> None:
        """Start over, in a fresh environment."""
        self.turns: list[Turn] = []
        self.messages: list[Fields] = []  # the completion, as a reward function gets it
        self.batch: ScoredBatch | None = None  # once it has ended
        self.row = dict(self.task.rows[self.number])
        try:
            self._reset()
        except Exception as error:  # of the user's own code
            raise TaskError(
                f"task {self.task.name!r}, row {self.number}: {words(error)}",
                rule="an environment begins every rollout of every row",
                remedy="mend its `reset`, or the row",
            ) from error

    def _reset(self) -> None:
        tools, observation, self.environment = [*self.task.tools], None, None
        if self.task.environment:
            begun = guarded(started, DEADLINE_S)(self.task.environment, self.row, self.seed)
            self.environment, observation, self.row = begun
            tools += methods_of(self.environment)
        self.tools: dict[str, Function] = {function_name(tool): tool for tool in tools}
        self.prompt: Any = self.row.get("prompt", [{"role": "user", "content": ""}])
        if observation is not None:
            *before, last = self.prompt
            self.prompt = [*before, {**last, "content": f"{last['content']}{observation}"}]

    def call(self, tool: str, /, **arguments: object) -> str:
        """Call a tool; returns what the policy reads of it, which of one that failed is its error.

        Raises:
            TaskError: if the rollout has ended.
        """
        return self._call("", tool, arguments)

    def _call(self, text: str, tool: str, arguments: Fields) -> str:
        self._has_not_ended()
        started, result, failed = time.perf_counter(), None, None
        try:
            if tool not in self.tools:
                raise ValueError(f"Tool {tool} not found.")  # TRL's words
            read = result = _now(guarded_tool(self.tools[tool])(**arguments))
        except Exception as error:
            failed, read = words(error), str({"error": str(error)})
        call = ToolCall(tool, arguments, result, failed, time.perf_counter() - started)
        self.turns += [Turn(POLICY, text, 0, True, (call,)), Turn(TOOL, read, 0, False)]
        function = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        said = {"role": "assistant", "content": text, "tool_calls": [function]}
        self.messages += [said, {"role": "tool", "name": tool, "content": read}]
        return read

    def say(self, text: str) -> ScoredBatch:
        """Write without a call, which ends the rollout; returns it with its scores, as a group of
        one.

        Raises:
            TaskError: if the rollout has ended.
        """
        self._has_not_ended()
        self.turns.append(Turn(POLICY, text, 0, True))
        self.messages.append({"role": "assistant", "content": text})
        self.batch = self._scored()
        return self.batch

    def _has_not_ended(self) -> None:
        if self.batch is not None:
            rule = "words without a call end a rollout"
            raise TaskError("this rollout has ended", rule=rule, remedy="begin() another")

    def _scored(self) -> ScoredBatch:
        found: list[ScoredBatch] = []
        columns = {name: [value] for name, value in self.row.items() if name != "prompt"}
        words = own_words(self.turns).encode("utf-8", "replace")  # bytes are tokens, as in `score`
        call: Fields = {
            "prompts": [self.prompt],
            "completions": [self.messages],
            "completion_ids": [list(words)],
            "trainer_state": None,
            "log_extra": lambda *_: None,
            "log_metric": lambda *_: None,
        }
        if self.environment is not None:
            call["environments"] = [self.environment]
        suite = RewardSuite(self.task, 1, on_batch=found.append, on_error="skip", keep_state=False)
        with contextlib.closing(suite):
            for function in suite.funcs:
                _now(function(**columns, **call))
        return dataclasses.replace(found[0], turns=[self.turns])

    # --- how it looks

    @property
    def view(self) -> View:
        """The prompt, the rollout so far, and its scores once it has ended."""
        messages = self.prompt
        if not isinstance(messages, str):
            messages = "\n".join(f"[{own['role']}]\n{own['content']}" for own in messages)
        page = typed(messages, "margin:4px 0") + verbatim(transcript(self.turns, folded=False).page)
        lines = [messages, *map(turn_text, self.turns)]
        if self.batch is not None:
            scores = _score_table(self.batch)
            page += scores._repr_html_()
            lines.append(str(scores))
        return View(page, "\n".join(lines))

    def __repr__(self) -> str:
        return str(self.view)

    def _repr_mimebundle_(self, **_: object) -> Fields:
        bundle = {"text/plain": str(self), "text/html": self.view._repr_html_()}
        if self.widget is None:
            return bundle
        with contextlib.suppress(RuntimeError):  # a terminal, where nobody clicks
            self._loop = asyncio.get_running_loop()
        return bundle | widget_view(self.widget)

    def _build(self) -> Any:
        import ipywidgets as kit

        add = self.parts.add
        options = [*((one_line(name, 60), name) for name in self.tools), (_NO_CALL, "")]
        typing: Fields = {"rows": 2, "placeholder": "what you write", "layout": _WIDE}
        rows = [
            add("seen", "HTML", layout=_WIDE),
            add("text", "Textarea", **typing),
            add("tool", "Dropdown", self._offer, description="call", options=options),
            add("about", "HTML", layout=_WIDE),
            add("arguments", "VBox"),
        ]
        buttons = [
            add("send", "Button", lambda: self._soon(self.send), description="Send"),
            add(
                "again",
                "Button",
                lambda: self._soon(partial(self._do, self.begin)),
                description="Begin again",
            ),
        ]
        self._offer(self.parts["tool"].value)
        self._look()
        return kit.VBox([*rows, kit.HBox(buttons)])

    def _offer(self, tool: str) -> None:
        # A box for each argument of the tool.
        function = self.tools.get(tool)
        wanted = inspect.signature(function).parameters.values() if function else ()
        self._boxes = {
            one.name: (one, self.parts.add(f"argument {one.name}", "Text", description=one.name))
            for one in wanted
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }
        self.parts["arguments"].children = [box for _, box in self._boxes.values()]
        about = inspect.getdoc(function) if function else ""
        self.parts["about"].value = coloured(about or "", MUTED)

    def _soon(self, then: Function) -> None:
        # Some kernels handle clicks on another thread; an environment may mind.
        if self._loop is None:
            then()
        else:
            self._loop.call_soon_threadsafe(then)

    def send(self) -> None:
        """What the button does: one turn of what is typed and chosen."""
        text, tool = self.parts["text"].value, self.parts["tool"].value
        typed = {
            name: _value(box.value, argument)
            for name, (argument, box) in self._boxes.items()
            if box.value
        }
        self._do(partial(self._call, text, tool, typed) if tool else partial(self.say, text))

    def _do(self, then: Function) -> None:
        problem = ""
        try:
            then()
            self.parts["text"].value = ""
        except Exception as error:  # of a task's own code: the panel stays usable
            problem = str(error) if isinstance(error, WorkbenchError) else words(error)
        self._look(problem)

    def _look(self, problem: str = "") -> None:
        said = coloured(problem, BAD) if problem else ""
        self.parts["seen"].value = self.view._repr_html_() + said
        self.parts["send"].disabled = self.batch is not None


def _score_table(batch: ScoredBatch) -> Table:
    errors = [batch.errors.get(name, {}).get(0, "") for name in batch.names]
    rows = [*zip(batch.names, batch.weights, batch.scores[0].tolist(), errors)]
    return Table(
        ["reward", "weight", "score", ""], [*rows, ("total", "", float(batch.totals[0]), "")]
    )


def _now(value: Any) -> Any:
    # of a coroutine its result: a notebook's own loop is running
    if not inspect.iscoroutine(value):
        return value
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, value).result()


def _value(typed: str, argument: inspect.Parameter) -> object:
    # As JSON, as a policy writes it: a number is one.
    if argument.annotation in (str, "str"):
        return typed
    try:
        return json.loads(typed)
    except ValueError:
        return typed
