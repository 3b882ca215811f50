"""A tracker's callback in a guard: whatever it does, training goes on.

A tracker runs in a thread of its own with a deadline for each event. The first thing that goes wrong is said once and takes
that tracker out; what it was given before stays where it put it.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROJECT = "grpo-workbench"
DEADLINE_S = 60.0  # for one event of one tracker; a tracker that works takes milliseconds


class OneThread:
    """Runs calls one after the other in a daemon thread, each with a deadline.

    One thread for a tracker's whole life: trackio and mlflow keep their run in variables of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._started = name, False
        self._calls: queue.SimpleQueue = queue.SimpleQueue()

    def call(self, function: Callable[[], Any], deadline_s: float) -> Any:
        """The function's value.

        Raises:
            TimeoutError: if it takes longer; it is left to itself. Otherwise whatever the function raises.
        """
        if not self._started:
            threading.Thread(target=self._work, name=f"tracker-{self._name}", daemon=True).start()
            self._started = True
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._calls.put((function, answer))
        try:
            value, error = answer.get(timeout=deadline_s)
        except queue.Empty:
            raise TimeoutError(f"no answer within {deadline_s:g} s") from None
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """Let the thread go once its calls are done."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            function, answer = item
            try:
                answer.put((function(), None))
            except BaseException as error:  # a library that calls sys.exit must not end the run either
                answer.put((None, RuntimeError(repr(error)) if isinstance(error, KeyboardInterrupt) else error))


def guarded(name: str, run_name: str, settings: dict[str, str], on_failure: Callable[[str, str], None]) -> Any:
    """A `TrainerCallback` that passes a trainer's events on to the tracker's own one for as long as that works.

    `open()` starts it and says whether that worked; `close()` ends it, and is called whatever became of the run.

    Args:
        name: transformers' name of the tracker.
        run_name: the run's name in the tracker.
        settings: environment variables while it works.
        on_failure: called once with (name, what went wrong), in the trainer's own thread.
    """
    from transformers import TrainerCallback

    class Tracker(TrainerCallback):  # a class for each: the trainer takes two of the same class for a mistake
        def __init__(self) -> None:
            self.name = name
            self._inner: Any = None
            self._begun = False
            self._end_with: tuple[Any, ...] = ()  # args, state, control and the rest of the latest event
            self._thread = OneThread(name)
            self._environment = contextlib.ExitStack()

        @property
        def works(self) -> bool:
            """Whether it still gets the run's events."""
            return self._inner is not None

        def open(self) -> bool:
            """Start the tracker; whether that worked."""
            try:
                # For as long as the tracker works: libraries read it again when they log, some in threads of their own.
                self._environment.enter_context(environment(settings))
                self._inner = self._thread.call(lambda: _start(name, run_name, settings), DEADLINE_S)
            except Exception as error:
                self._fail("start", error)
            return self.works

        def close(self) -> None:
            """End the tracker's run and put the environment back; nothing the second time."""
            if self.works and self._end_with:
                self._pass("on_train_end", *self._end_with[:3], **self._end_with[3])
            if self.works:
                self._guard("end", lambda: _finish(name, self._inner))
            self._let_go()

        def _pass(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not self.works:
                return
            kept = {key: kwargs.get(key) for key in ("model", "processing_class")}
            self._end_with = (args, state, control, kept)
            if getattr(type(self._inner), event) is getattr(TrainerCallback, event):
                return  # it does nothing with this one
            own = copy.copy(args)
            own.run_name, own.report_to = run_name, [name]
            if getattr(own, "project", None) == "huggingface":  # the default of transformers
                own.project = PROJECT
            if kwargs.get("logs"):
                # A function that scored nothing logs None, which is no number to any of them.
                kwargs["logs"] = {key: value for key, value in kwargs["logs"].items() if value is not None}
            method = getattr(self._inner, event)
            # A copy of control: to watch a run is not to steer it.
            self._guard(event.removeprefix("on_"), lambda: method(own, state, copy.copy(control), **kwargs))

        def _guard(self, when: str, call: Callable[[], Any]) -> None:
            try:
                self._thread.call(call, DEADLINE_S)
            except Exception as error:
                self._fail(when, error)
            except SystemExit as error:
                self._fail(when, error)

        def _fail(self, when: str, error: BaseException) -> None:
            self._let_go()
            first = (str(error).strip().splitlines() or [""])[0]
            on_failure(name, f"{when}: {type(error).__name__}: {first}")

        def _let_go(self) -> None:
            self._inner = None
            self._thread.end()
            self._environment.close()

    def passing(event: str) -> Callable[..., None]:
        def passed(self: Tracker, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if event == "on_train_begin":
                if self._begun:  # a later stage of the same run
                    return
                self._begun = True
            self._pass(event, args, state, control, **kwargs)

        return passed

    for event in vars(TrainerCallback):
        if event.startswith("on_") and event != "on_train_end":  # a stage's end is not the run's
            setattr(Tracker, event, passing(event))
    return Tracker()


def _start(name: str, run_name: str, settings: dict[str, str]) -> Any:
    from transformers.integrations import get_reporting_integration_callbacks

    [make] = get_reporting_integration_callbacks(name)
    callback = make()
    if name == "wandb":
        import wandb

        callback.own = wandb.run is None  # else the user's own, which stays open
        if callback.own:
            # wandb reads its folder from the environment once a process; a run started here is told it in words.
            told = {"dir": settings.get("WANDB_DIR"), "mode": settings.get("WANDB_MODE")}
            project = os.environ.get("WANDB_PROJECT", PROJECT)
            wandb.init(project=project, name=run_name, **{key: value for key, value in told.items() if value})
    return callback


def _finish(name: str, callback: Any) -> None:
    # transformers leaves wandb's run open, and the next run in this process would be logged into it.
    if name == "wandb" and callback.own:
        callback._wandb.finish()


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """The environment with these settings, put back afterwards."""
    before = {key: os.environ.get(key) for key in (*settings, "MLFLOW_EXPERIMENT_ID")}  # MLflow sets that itself
    os.environ.update(settings)
    moved = _move_trackio(Path(settings["TRACKIO_DIR"])) if "TRACKIO_DIR" in settings else []
    try:
        yield
    finally:
        for module, key, value in moved:
            setattr(module, key, value)
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _move_trackio(place: Path) -> list[tuple[Any, str, Any]]:
    # Trackio reads its folder once, when it is imported, and TRL imports it long before there is a run.
    import trackio.sqlite_storage  # noqa: F401

    folders = {"TRACKIO_DIR": place, "MEDIA_DIR": place / "media", "ARTIFACTS_DIR": place / "artifacts"}
    loaded = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "trackio"]
    moved = [(module, key, vars(module)[key]) for module in loaded for key in folders if key in vars(module)]
    for module, key, _ in moved:
        setattr(module, key, folders[key])
    return moved
