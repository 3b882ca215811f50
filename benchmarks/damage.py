"""What a run survives: damaged files, processes that race for it, edits of what was asked, and a
disk that gives out.

    uv run python benchmarks/damage.py [--only damages race edits disk] [--json]

Four campaigns on real, small runs (the embedded policy, four steps). Everything is imported and the
policy loaded once; every case then is a fork of that process. None of it measures time.

damages   A run was killed in its last step, with two checkpoints. One of its files is damaged,
`wb.continue_run` goes on, and
          what the run then holds (metrics without times, every completion with its scores, the
          adapter) is compared, bit for bit, with a run that never stopped. Outcomes: exact; older
          (an older checkpoint was taken, in words, and the numbers are exact); said (it goes on,
          and a WARNING names what is lost); refused (a WorkbenchError, and nothing of the run was
          changed); raw (any other exception); silent (the numbers differ, and nothing was said; or
          a pickle was run).
race      Two and four processes take the same run at once, by `RunDirectory.reopen` and by its lock
alone, with flock and on a
          file system that has none. In every round exactly one must own it.
edits     Twenty edits of the recipe and six of the task before going on: is each shown, which are
refused, and what does
          `accept_changes` make of them.
disk      The run's disk is full, read-only or gone, its quota or its handles are used up, in the
middle of training. Then there
          is room again, and `wb.continue_run` goes on. Needs Linux, root and mounts; a case that
          cannot be made here is left out, in words.

--only picks campaigns, --json prints each case as a line of JSON on stdout, --quick tries a few
cases of each. The exit code is 1 if a case was raw or silent, left a hole in the record, or had two
owners or none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import hashlib
import importlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

import measuring

STEPS, NEWEST, OLDER = 4, "checkpoint-3", "checkpoint-2"
GRPO = {
    "max_steps": STEPS, "save_steps": 1, "save_total_limit": 2, "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8, "learning_rate": 1e-3,
}  # fmt: skip
TASK = """import workbench as wb
from workbench.tiny.task import REWARD_FUNCS

ROWS, HELD_OUT = {rows}, {held_out}
task = wb.Task("sums", ROWS, REWARD_FUNCS, held_out=HELD_OUT)
"""
CAMPAIGNS = ("damages", "race", "edits", "disk")
BAD = ("raw", "silent", "hole", "two owners", "no owner", "hung", "not shown")
LONGEST_S = 240


# --- a child for every case
# ---------------------------------------------------------------------------------------
class Ended(NamedTuple):
    """How a child of this process ended."""

    gave: Any = None  # what the function returned
    raised: str = ""  # the exception's type
    in_words: bool = False  # whether it is a WorkbenchError
    message: str = ""
    said: str = ""  # what was printed
    trace: str = ""

    @property
    def outcome(self) -> str:
        return (
            "refused"
            if self.in_words
            else "hung"
            if self.raised == "Hung"
            else "raw"
            if self.raised
            else "exact"
        )


def forked(act: Callable[[], Any], longest_s: float = LONGEST_S) -> Ended:
    """What a function returns (as JSON has it) or raises in a child of this process, and what it
    prints.
    """
    pipes = [os.pipe() for _ in range(2)]
    tell, say = (writes for _, writes in pipes)
    for reads, writes in pipes:
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(reads, False)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(say, stream)
        # whatever the host had
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
        try:
            found = {"gave": act()}
        except BaseException as error:
            from workbench.base.errors import WorkbenchError

            found = {
                "raised": type(error).__name__,
                "in_words": isinstance(error, WorkbenchError),
                "message": str(error),
            }
            found["trace"] = "".join(traceback.format_exception(error))
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            os.write(tell, json.dumps(found, default=str).encode())
        os._exit(0)
    until, hung, texts = time.monotonic() + longest_s, False, [b"", b""]
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        texts = [text + _read(reads) for text, (reads, _) in zip(texts, pipes, strict=True)]
        if hung := time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left behind
    for number, (reads, writes) in enumerate(pipes):
        os.close(writes)
        texts[number] += b"".join(iter(lambda reads=reads: _read(reads), b""))
        os.close(reads)
    said = texts[1].decode("utf-8", "replace")
    if hung or not texts[0]:
        return Ended(raised="Hung" if hung else "Killed", message="ended without a word", said=said)
    return Ended(**json.loads(texts[0]), said=said)


def _read(stream: int) -> bytes:
    try:
        return os.read(stream, 1 << 20)
    except BlockingIOError:
        return b""


# --- the runs
# --------------------------------------------------------------------------------------------------
def made_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def held(path: Path) -> dict[str, Any]:
    """What a run holds, as can be compared: rows of metrics without times, completions with their
    scores, the adapter.
    """
    from workbench.run.directory import RunDirectory
    from workbench.run.rollouts import query

    run = RunDirectory(path)
    rows = [
        {key: value for key, value in row.items() if not key.startswith(("time/", "step_time"))}
        for row in run.metrics()
    ]
    frame = query(run.rollouts)
    return {
        "status": run.result()["status"],
        "steps": [row["step"] for row in rows],
        "metrics": made_of(rows),
        "rollouts": made_of(frame.astype(str).to_dict("records")),
        "adapter": (
            hashlib.sha256((run.final / "adapter_model.safetensors").read_bytes()).hexdigest()
        ),
    }


def contents(path: Path) -> dict[str, str]:
    """Every file of a folder by what is in it, but for the lock."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "lock"]
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


class Steers:
    """A watcher that gives a reward function another weight after the first step, and does
    something after another step.
    """

    def __init__(
        self, step: int = 0, act: Callable[[], Any] = lambda: None, steers: bool = True
    ) -> None:
        self.step, self.act, self.steers = step, act, steers

    def begin(self, run: Any, total_steps: int, settings: Any) -> None:
        self.run = run

    def update(self, step: int, values: Any) -> None:
        from workbench.run.control_file import send

        if step == 1 and self.steers:
            send(self.run, "weight", by="damage.py", function="length_reward", value=2.0)
        if step == self.step:
            self.act()

    def end(self, message: str) -> None: ...


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class World:
    """The policy, and the runs that the cases are copies of: one that never stopped, one killed in
    its last step, another.
    """

    home: Path
    policy: Any
    whole: dict[str, Any]  # what the first one holds
    plain: dict[str, Any]  # that of one in which nothing was steered

    @classmethod
    def made(cls, home: Path) -> World:
        from workbench.tiny.task import task
        from workbench.training.policy import load_policy, trainer_classes

        trainer_classes()  # unsloth comes first
        for name in (
            "duckdb",
            "pandas",
            "pyarrow.parquet",
            "datasets",
            "workbench.training.trainer",
            "workbench.views.tables",
        ):
            importlib.import_module(name)  # once, and not in every child
        (home / "tasks").mkdir()
        sums = task(8, 4)
        (home / "tasks" / "sums.py").write_text(
            TASK.format(rows=list(sums.rows), held_out=list(sums.held_out))
        )
        with contextlib.redirect_stdout(sys.stderr):
            world = cls(home, load_policy("tiny", load_in_4bit=False), {}, {})
        gc.collect()
        gc.freeze()  # or every child looks through all of this again
        runs = {
            "whole": (0, Steers()), "plain": (0, Steers(steers=False)), "killed": (0, Steers(STEPS,
            killed)),
            "other": (1, Steers(STEPS, killed)),
        }  # fmt: skip
        for name, (seed, watcher) in runs.items():
            ended = forked(
                lambda name=name, seed=seed, watcher=watcher: world.train(
                    home / name, seed, watcher
                )
            )
            if ended.raised not in ("", "Killed"):
                raise RuntimeError(f"{name}: {ended.trace}")
        world.whole, world.plain = (
            forked(lambda name=name: held(home / name / "r")).gave for name in ("whole", "plain")
        )
        if (
            any(own["steps"] != list(range(1, STEPS + 1)) for own in (world.whole, world.plain))
            or world.whole == world.plain
        ):
            raise RuntimeError(f"the runs that never stopped: {world.whole}, {world.plain}")
        return world

    def recipe(self, seed: int = 0, **grpo: Any) -> Any:
        from workbench.recipe import Recipe

        asked = {
            "run_name": "r",
            "task": "tasks/sums.py",
            "grpo": GRPO | grpo,
            "seed": seed,
            "policy": {"load_in_4bit": False},
        }
        return Recipe.of(asked)

    def train(self, runs: Path, seed: int, watcher: Any) -> None:
        from workbench.training.trainer import train

        train(self.recipe(seed), policy=self.policy, runs=runs, watchers=[watcher])

    def copied(self) -> Path:
        """A copy of the run that was killed, in the place of the latest one."""
        run = self.home / f"runs-{os.getpid()}" / "r"
        shutil.rmtree(run.parent, ignore_errors=True)
        return Path(shutil.copytree(self.home / "killed" / "r", run, copy_function=shutil.copy2))

    def goes_on(self, run: Path, **more: Any) -> Ended:
        """`wb.continue_run`, in a child."""
        from workbench.run.directory import open_run
        from workbench.training.trainer import continue_run

        return forked(
            lambda: (
                continue_run(
                    open_run(run), **{"policy": self.policy, "watchers": [Steers()], **more}
                ).name
            )
        )

    def compared(self, run: Path, whole: dict[str, Any] | None = None) -> list[str]:
        """In what a run differs from the one that never stopped."""
        found = forked(lambda: held(run))
        if found.raised:
            return [f"not readable ({found.raised}: {found.message})"]
        return [name for name, own in (whole or self.whole).items() if found.gave[name] != own]


def row_of(
    campaign: str, kind: str, case: str, outcome: str, ended: Ended, **more: Any
) -> dict[str, Any]:
    """A case, as the result file has it. What was said: its warnings, or the error."""
    lines = ended.message.splitlines() or [
        line for line in ended.said.splitlines() if "WARNING" in line or "Warning" in line
    ]
    own = {
        "campaign": campaign,
        "kind": kind,
        "case": case,
        "outcome": outcome,
        "error": ended.raised,
        "said": lines,
        **more,
    }
    return {**own, "trace": ended.trace.splitlines()[-6:]} if outcome == "raw" else own


def spread(
    world: World, cases: Sequence[Any], act: Callable[[Any], dict[str, Any]], at_once: int
) -> list[dict[str, Any]]:
    """What `act` makes of every case, by so many processes, in the order of the cases."""
    children = []
    for number in range(at_once):
        if (child := os.fork()) == 0:
            code = 1
            try:
                with (world.home / f"rows-{number}.jsonl").open("w", buffering=1) as rows:
                    for place in range(number, len(cases), at_once):
                        row = act(cases[place])
                        measuring.say(
                            f"{row['campaign']}: {row['kind']}: {row['case']}: {row['outcome']}"
                        )
                        rows.write(json.dumps([place, row]) + "\n")
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise RuntimeError("a process that tries the cases failed: see above")
    found = [
        json.loads(line)
        for number in range(at_once)
        for line in (world.home / f"rows-{number}.jsonl").open()
    ]
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


# --- damages
# --------------------------------------------------------------------------------------------------
Damage = Callable[[Path], None]


def empty(file: Path) -> None:
    file.write_bytes(b"")


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def zeroed(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(content)


def swapped(file: Path) -> None:
    others = [each for each in sorted(file.parent.iterdir()) if each.is_file()]
    other = others[(others.index(file) + 1) % len(others)]
    mine = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def in_file(name: str, act: Damage) -> Damage:
    return lambda run: act(run / name)


def in_state(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def act(run: Path) -> None:
        file = run / "checkpoints" / NEWEST / "state.json"
        state = json.loads(file.read_text())
        change(state)
        file.write_text(json.dumps(state))

    return act


def in_tensors(name: str, change: Callable[[dict[str, Any], str], Any]) -> Damage:
    def act(run: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = run / "checkpoints" / NEWEST / name
        tensors = load_file(file)
        change(tensors, next(key for key, value in tensors.items() if value.dim() > 1))
        save_file(tensors, file, metadata={"format": "pt"})

    return act


def planted(name: str, mark: Path, instead: str = "") -> Damage:
    def act(run: Path) -> None:
        file = run / "checkpoints" / NEWEST / name
        # a pickle that runs a command
        file.write_bytes(b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
        if instead:
            (file.parent / instead).unlink()

    return act


def both(name: str, act: Damage) -> Damage:
    return lambda run: [act(run / "checkpoints" / each / name) for each in (NEWEST, OLDER)] and None


def lines_of(name: str, change: Callable[[list[str]], list[str]]) -> Damage:
    def act(run: Path) -> None:
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(change(lines)))

    return act


RECORD = {
    "empty": empty, "torn": half, "null": written(b"null\n"), "[]": written(b"[]\n"),
    "binary": written(bytes(range(256)) * 4),
    "missing": Path.unlink, "a folder": folder,
}  # fmt: skip


def damages(world: World, mark: Path) -> Iterator[tuple[str, str, Damage]]:
    """What is damaged, how, and the damage."""
    source, older, other = (
        (world.home / "killed" / "r"),
        OLDER,
        world.home / "other" / "r" / "checkpoints" / NEWEST,
    )
    newest = source / "checkpoints" / NEWEST
    for name in sorted(file.name for file in newest.iterdir()):
        own = f"checkpoints/{NEWEST}/{name}"
        ways: dict[str, Damage] = {
            "missing": Path.unlink, "empty": empty, "cut to half": half, "a bit flipped": flipped,
            "tail zeroed": zeroed,
            "swapped with the next": swapped,
            "that of the older one": lambda file: shutil.copyfile(file.parents[1] / older / file.name, file) and None,  # noqa: E501
            "another run's": lambda file: shutil.copyfile(other / file.name, file) and None,
        }  # fmt: skip
        # the same in every checkpoint
        if "token" in name or "config" in name or "template" in name:
            ways = {way: ways[way] for way in ("missing", "cut to half", "a bit flipped")}
        yield from (
            ("a checkpoint's file", f"{name}: {way}", in_file(own, act))
            for way, act in ways.items()
        )
    for name in json.loads((newest / "state.json").read_text()):
        yield (
            "a field of state.json",
            f"{name} is gone",
            in_state(lambda state, name=name: state.pop(name)),
        )
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "step + 1": lambda state: state.update(step=state["step"] + 1),
        "done - 1": lambda state: state.update(done=2),
        "stage 1": lambda state: state.update(stage=1),
        "a random number": lambda state: state["random"]["numpy"][1].reverse(),
        "schedule": lambda state: state["schedule"].update(last_epoch=0),
        "sums gone": lambda state: state.update(files={}),
    }  # fmt: skip
    yield from (
        ("a field of state.json", f"{name} is another", in_state(change))
        for name, change in changes.items()
    )
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        tensors: dict[str, Callable[[dict[str, Any], str], Any]] = {
            "missing": lambda found, key: found.pop(key), "too many": lambda found,
            key: found.update(extra=found[key].clone()),
            "another shape": lambda found, key: found.update({key: found[key][:1].clone()}),
            "another type": lambda found, key: found.update({key: found[key].half()}),
        }  # fmt: skip
        yield from (
            ("a checkpoint's tensor", f"{name}: {way}", in_tensors(name, act))
            for way, act in tensors.items()
        )
    for name, act in {
        "adapter_model.safetensors": Path.unlink,
        "state.json": half,
        "optimizer.safetensors": flipped,
    }.items():
        yield "both checkpoints", f"{name}: {act.__name__}", both(name, act)
    for name in (
        "manifest.json",
        "recipe.yaml",
        "metrics.jsonl",
        "events.jsonl",
        "lock",
        "control.jsonl",
        "task.py",
    ):
        yield from (
            ("the record", f"{name}: {way}", in_file(name, act)) for way, act in RECORD.items()
        )
    part = "rollouts/" + sorted(file.name for file in (source / "rollouts").iterdir())[1]
    yield from (("the record", f"a part: {way}", in_file(part, act)) for way, act in RECORD.items())
    gaps: dict[str, Damage] = {
        "metrics.jsonl: its first row gone": lines_of("metrics.jsonl", lambda lines: lines[1:]),
        "metrics.jsonl: a row in the middle gone": lines_of("metrics.jsonl",
        lambda lines: lines[:1] + lines[2:]),
        "metrics.jsonl: a row in the middle torn": lines_of(
            "metrics.jsonl", lambda lines: [lines[0], lines[1][:40] + "\n", *lines[2:]]
        ),
        "metrics.jsonl: shorter than the checkpoint": lines_of("metrics.jsonl",
        lambda lines: lines[:2]),
        "metrics.jsonl: a row twice": lines_of("metrics.jsonl",
        lambda lines: lines[:2] + lines[1:]),
        "metrics.jsonl: a row without a step": lines_of("metrics.jsonl",
        lambda lines: ['{"reward": 1}\n', *lines]),
        "events.jsonl: a line null": lines_of("events.jsonl", lambda lines: [lines[0], "null\n",
        *lines[1:]]),
        "events.jsonl: a change torn": lines_of(
            "events.jsonl",
            lambda lines: [line[:30] + "\n" if '"weight"' in line else line for line in lines]
        ),
        "rollouts: all parts gone": in_file("rollouts", shutil.rmtree),
        "rollouts/step-x.parquet": in_file("rollouts/step-x.parquet", written(b"PAR1")),
        "checkpoints/checkpoint-²": in_file("checkpoints/checkpoint-²", Path.mkdir),
        "checkpoints/checkpoint-abc": in_file("checkpoints/checkpoint-abc", Path.mkdir),
        "checkpoints/checkpoint-9 is empty": in_file("checkpoints/checkpoint-9", Path.mkdir),
        "checkpoints/checkpoint-9 is a file": in_file("checkpoints/checkpoint-9", written(b"x")),
        "checkpoints: gone": in_file("checkpoints", shutil.rmtree),
        "manifest.json: another run's": in_file(
            "manifest.json", lambda file: shutil.copyfile(other.parents[1] / file.name,
            file) and None
        ),
        "recipe.yaml: another run's": in_file(
            "recipe.yaml", lambda file: shutil.copyfile(other.parents[1] / file.name, file) and None
        ),
    }  # fmt: skip
    yield from (("the record", name, act) for name, act in gaps.items())
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "pytorch_model.bin",
    ):
        yield "a pickle in the checkpoint", name, planted(name, mark)
    yield (
        "a pickle in the checkpoint",
        "adapter_model.bin",
        planted("adapter_model.bin", mark, "adapter_model.safetensors"),
    )


def damaged(world: World, kind: str, name: str, act: Damage, mark: Path) -> dict[str, Any]:
    """Damage a copy of the run, go on with it, and look at what it then holds."""
    run = world.copied()
    act(run)
    before, ended = contents(run), world.goes_on(run)
    outcome, differs = ended.outcome, []
    if outcome == "refused":
        after = contents(run)
        differs = sorted(
            file for file in before.keys() | after.keys() if before.get(file) != after.get(file)
        )
        outcome = "refused" if not differs else "silent"  # what is refused is left as it was
    elif outcome == "exact":
        differs = world.compared(run)
        warned = [
            line
            for line in ended.said.splitlines()
            if line.startswith("WARNING") and "held_out" not in line
        ]
        older = f"from {OLDER}" in ended.said
        outcome = (
            "silent"
            if (differs or older) and not warned
            else "said"
            if differs
            else "older"
            if older
            else "exact"
        )
    if mark.exists():
        mark.unlink()
        outcome, differs = "silent", ["a pickle was run"]
    return row_of("damages", kind, name, outcome, ended, differs=differs)


def campaign_damages(world: World, asked: Any) -> list[dict[str, Any]]:
    mark = world.home / "executed"
    cases = [
        case for case in damages(world, mark) if re.search(asked.case, f"{case[0]}: {case[1]}")
    ]
    return spread(
        world, cases[:: asked.every], lambda case: damaged(world, *case, mark), asked.at_once
    )


# --- race
# --------------------------------------------------------------------------------------------------
def no_flock(handle: int, how: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def left_behind(lock: Path, turn: int) -> str:
    """The lock as the round finds it: none, that of a process that was killed, or torn and long
    silent.
    """
    state = ("none", "a dead owner's", "torn")[turn % 3]
    if state == "none":
        lock.unlink(missing_ok=True)
    elif state == "torn":
        lock.write_text("{")
        for file in (lock, *lock.parent.iterdir()):
            os.utime(file, (1e9, 1e9))
    return state  # a dead owner's: the one before left it, when it was killed


def raced(run: Path, processes: int, take: str, flock: bool) -> int:
    """How many of so many processes own a run that all of them take at once. Whoever owns it is
    then killed.
    """
    from workbench.base.errors import RunError
    from workbench.run import lock as locks
    from workbench.run.directory import RunDirectory

    (ready, is_ready), (go, start), (told, tell), (end, ends) = (os.pipe() for _ in range(4))
    children = []
    for _ in range(processes):
        if (child := os.fork()) == 0:
            owns = 0
            try:
                if not flock:
                    locks.fcntl.flock = no_flock
                own = RunDirectory(run)
                os.close(start), os.close(ends)
                os.write(is_ready, b".")
                os.read(go, 1)  # the end of the pipe: all at once
                try:
                    owns = own.reopen(1) is None if take == "reopen" else own.lock.take()
                except RunError:
                    owns = 0
                os.write(tell, b"1" if owns else b"0")
            except BaseException as error:
                os.write(tell, b"!")
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os.read(end, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        children.append(child)
    for _ in children:
        os.read(ready, 1)
    os.close(start)
    answers = b"".join(os.read(told, 1) for _ in children)
    os.close(ends)
    for child in children:
        os.waitpid(child, 0)
    for stream in (ready, is_ready, go, told, tell, end):
        os.close(stream)
    return -1 if b"!" in answers else answers.count(b"1")


def campaign_race(world: World | None, asked: Any) -> Iterator[dict[str, Any]]:
    from workbench.recipe import Recipe
    from workbench.run.directory import RunDirectory

    run = RunDirectory.create("raced", Recipe(), {})
    run.log_metrics(1, {"reward": 0.0})
    run.release()
    for take, flock, processes in itertools.product(("reopen", "lock.take"), (True, False), (2, 4)):
        owners: dict[str, Counter[int]] = {}
        for turn in range(asked.rounds):
            state = left_behind(run.lock.file, turn)
            owners.setdefault(state, Counter())[raced(run.path, processes, take, flock)] += 1
        every = sum(owners.values(), Counter())
        most, least = max(every), min(every)
        outcome = (
            "raw"
            if least < 0
            else "two owners"
            if most > 1
            else "no owner"
            if least < 1
            else "one owner"
        )
        case = f"{take}, {processes} processes, {'flock' if flock else 'no flock'}"
        found = {
            state: {str(number): times for number, times in own.items()}
            for state, own in owners.items()
        }
        measuring.say(f"race: {case}: {outcome}")
        yield row_of(
            "race",
            f"{asked.rounds} rounds",
            case,
            outcome,
            Ended(),
            owners=found,
            rounds=asked.rounds,
        )


# --- edits
# --------------------------------------------------------------------------------------------------
EDITS: dict[str, Any] = {
    "seed": 3, "grpo.beta": 0.5, "grpo.temperature": 0.5, "grpo.num_generations": 2,
    "grpo.per_device_train_batch_size": 16,
    "grpo.loss_type": "dr_grpo", "reward_weights": {"correctness_reward": 5.0},
    "policy.load_in_4bit": True, "lora.r": 8,
    "lora.lora_alpha": 64, "grpo.lr_scheduler_type": "cosine", "grpo.learning_rate": 0.1,
    "grpo.max_steps": 5,
    "grpo.optim": "sgd", "grpo.epsilon": 0.1, "grpo.scale_rewards": "none",
    "grpo.chat_template_kwargs": {"enable_thinking": False},
    "grpo.max_completion_length": 6, "grpo.save_steps": 2,
    "stages": [{"name": "a", "steps": 3}, {"name": "b", "steps": 2}],
}  # fmt: skip


def edited(run: Path, name: str, value: Any) -> None:
    from workbench.recipe import Recipe

    content = Recipe.load(run / "recipe.yaml").model_dump(mode="json")
    *parts, last = name.split(".")
    place = content
    for part in parts:
        place = place[part]
    place[last] = value
    if name == "stages":
        content["grpo"].pop("max_steps")  # the stages say how many
    Recipe.of(content).save(run / "recipe.yaml")


def other_tasks(world: World) -> dict[str, Any]:
    """The task, edited: what a changed task file would give."""
    from workbench.tasks.loading import load_task

    own = load_task(world.home / "tasks" / "sums.py")

    def correctness_reward(completions: Any, **more: Any) -> list[float]:
        return [float(len(str(completion))) for completion in completions]

    rows = own.rows
    return {
        "more rows": {"rows": [*rows, *own.held_out[:2]]}, "fewer rows": {"rows": rows[:-1]},
        "rows reversed": {"rows": rows[::-1]}, "other answers": {"rows": [{**row,
        "answer": "7"} for row in rows]},
        "fewer rewards": {"reward_funcs": own.reward_funcs[:-1], "reward_weights": None},
        "another reward function of the same name": {"reward_funcs": [correctness_reward,
        *own.reward_funcs[1:]]},
    }  # fmt: skip


def edit(
    world: World, name: str, change: Callable[[Path], dict[str, Any]], word: str
) -> dict[str, Any]:
    """Edit what was asked for, go on with it, and where that is refused, go on all the same."""
    run = world.copied()
    more = change(run)
    before, ended = contents(run), world.goes_on(run, policy=None, **more)
    lines = [
        line
        for line in (ended.message + "\n" + ended.said).splitlines()
        if "not as when" in line and word in line
    ]
    outcome, shown = ended.outcome if ended.raised else "goes on", bool(lines)
    if outcome == "refused" and contents(run) != before:
        outcome = "silent"
    accepted = ""
    if outcome == "refused":
        again = world.goes_on(run, policy=None, accept_changes=True, **more)
        accepted = "refused" if again.in_words else "raw" if again.raised else "goes on, recorded"
        if not again.raised:
            events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
            told = [
                each
                for each in events
                if each["event"] == "changed" and word in str(each["accepted"])
            ]
            accepted = accepted if told else "silent"
        if accepted in BAD:
            outcome, ended = accepted, again
        elif accepted == "refused":
            accepted += f": {again.message.splitlines()[0]}"
    if not shown and outcome not in BAD:
        outcome = "not shown"
    return row_of(
        "edits",
        "the task" if more else "the recipe",
        name,
        outcome,
        ended,
        shown=shown,
        accepted=accepted,
        line=lines[:1],
    )


def campaign_edits(world: World, asked: Any) -> list[dict[str, Any]]:
    from workbench.tasks.loading import load_task

    def of_recipe(name: str, value: Any) -> Callable[[Path], dict[str, Any]]:
        return lambda run: edited(run, name, value) or {}

    own = load_task(world.home / "tasks" / "sums.py")
    cases: list[tuple[str, Callable[[Path], dict[str, Any]], str]] = [
        (f"{name} = {json.dumps(value)}", of_recipe(name, value), name.split(".")[-1])
        for name, value in EDITS.items()
    ]
    for name, change in other_tasks(world).items():
        word = (
            "rows"
            if "rows" in change
            else "reward functions"
            if "fewer" in name
            else "correctness_reward"
        )
        cases.append((name, lambda run, change=change: {"task": replace(own, **change)}, word))
    cases = [case for case in cases if re.search(asked.case, case[0])]
    return spread(world, cases[:: asked.every], lambda case: edit(world, *case), asked.at_once)


# --- disk
# --------------------------------------------------------------------------------------------------
_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _PRIVATE, _BIND, _REMOUNT, _READ_ONLY = 0x20000, (1 << 18) | (1 << 14), 4096, 32, 1
ROOMY = "size=64m"


def mount(what: str, where: Path | str, kind: str, flags: int = 0, options: str = "") -> None:
    if _LIBC.mount(what.encode(), str(where).encode(), kind.encode(), flags, options.encode()):
        raise OSError(number := ctypes.get_errno(), os.strerror(number), str(where))


def own_mounts() -> None:
    """What this process mounts from here on is seen by it and its children alone, and goes with
    them.
    """
    if _LIBC.unshare(_NEW_MOUNTS):
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
    mount("none", "/", "", _PRIVATE)


def filled(run: Path, left: int = 0) -> None:
    with (run.parent / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)) == 4096:
            pass
    if left:
        os.truncate(run.parent / "filler", (run.parent / "filler").stat().st_size - left)


def plenty(path: Any) -> Any:
    return namedtuple("usage", "total used free")(10**12, 0, 10**12)


def immutable(name: str) -> Callable[[Path], None]:
    return lambda run: subprocess.run(["chattr", "+i", str(run / name)], check=True) and None


def mutable(name: str) -> Callable[[Path], None]:
    return lambda run: subprocess.run(["chattr", "-i", str(run / name)], check=False) and None


def read_only(run: Path) -> None:
    # As another mount on top: one with files that are being written cannot be made read-only.
    mount(str(run.parent), run.parent, "none", _BIND)
    mount("none", run.parent, "none", _BIND | _REMOUNT | _READ_ONLY)


def instead(name: str, act: Callable[[Path], Any] = lambda file: None) -> Callable[[Path], None]:
    """Takes a part of the run aside, and puts something else in its place."""

    def acts(run: Path) -> None:
        if (run / name).exists():
            (run / name).rename(run / f"{name}.kept")
        act(run / name)

    return acts


def put_back(name: str) -> Callable[[Path], None]:
    """Brings it back; what the run has written into a folder of that name meanwhile stays."""

    def acts(run: Path) -> None:
        there, kept = run / name, run / f"{name}.kept"
        if kept.is_dir() and there.is_dir():
            shutil.copytree(kept, there, dirs_exist_ok=True)
            shutil.rmtree(kept)
        elif kept.exists():
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
            kept.rename(there)
        elif there.is_dir():
            there.rmdir()

    return acts


def few_handles(left: int) -> Callable[[Any], None]:
    def act(run: Any = None) -> None:
        listed = map(int, os.listdir("/proc/self/fd"))
        # not the listing's own
        used = {number for number in listed if os.path.exists(f"/proc/self/fd/{number}")}
        free = (number for number in itertools.count() if number not in used)
        limit = next(itertools.islice(free, left, None))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    return act


@dataclass
class Trouble:
    """What goes wrong with a run's disk: before it begins, or after one of its steps; and how that
    is mended.
    """

    kind: str
    name: str
    size: str = ""  # of a disk of its own, as mount has it
    before: Callable[[], Any] = lambda: None
    step: int = 0
    act: Callable[[Path], Any] = lambda run: None
    mend: Callable[[Path], Any] = lambda run: None


def troubles() -> Iterator[Trouble]:
    """Every case of the campaign."""

    def unseen() -> None:
        shutil.disk_usage = plenty  # as with a quota: what is free is not what may be written

    def at_most(size: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    def emptied(run: Path) -> None:
        (run.parent / "filler").unlink(missing_ok=True)

    for size in ("8k", "16k", "64k", "1m", "4500k", "5m", "7m"):
        yield Trouble("a small disk", f"{size}b", size)
    for size in ("8k", "128k", "512k", "2m", "3m", "4m"):
        yield Trouble("a quota", f"{size}b", size, before=unseen)
    for step in (1, 2, 3, 4):
        yield Trouble(
            "a disk that fills", f"after step {step}", "64m", step=step, act=filled, mend=emptied
        )
    for step, left in ((3, 4096), (3, 1 << 20)):
        name, act = (
            f"after step {step}, but for {left:,} bytes",
            functools.partial(filled, left=left),
        )
        yield Trouble("a disk that fills", name, "64m", step=step, act=act, mend=emptied)
        yield Trouble("a quota", name, "64m", unseen, step, act, emptied)
    for step in (1, 3):
        when = f"after step {step}"
        yield Trouble("the folder", f"removed {when}", step=step, act=shutil.rmtree)
        yield Trouble(
            "the folder", f"renamed {when}", step=step,
            act=lambda run: run.rename(run.with_name("aside")),
            mend=lambda run: (shutil.rmtree(run, ignore_errors=True),
                run.with_name("aside").rename(run)),
        )  # fmt: skip
        yield Trouble(
            "the folder", f"immutable {when}", step=step, act=immutable("."), mend=mutable(".")
        )
        yield Trouble(
            "the folder", f"read-only {when}", "64m", step=step, act=read_only,
            mend=lambda run: _LIBC.umount(str(run.parent).encode()),
        )  # fmt: skip
    for name in ("rollouts", "checkpoints", "metrics.jsonl", "events.jsonl"):
        yield Trouble(
            "a part of it", f"{name} immutable", step=3, act=immutable(name), mend=mutable(name)
        )
    places: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
        "a file": (written(b"x"), ("rollouts", "checkpoints")),
        "a folder": (Path.mkdir, ("control.jsonl", "metrics.jsonl", "events.jsonl")),
        "gone": (lambda file: None, ("manifest.json", "recipe.yaml", "rollouts", "checkpoints")),
    }
    for what, (act, names) in places.items():
        for name in names:
            yield Trouble(
                "a part of it",
                f"{name} {what}",
                step=3,
                act=instead(name, act),
                mend=put_back(name),
            )
    for size in (4 << 10, 64 << 10, 400 << 10, 700 << 10):
        yield Trouble("no file longer than", f"{size >> 10} kB", before=at_most(size))
    for left in (12, 30, 60):
        yield Trouble("handles", f"{left} left at the start", before=few_handles(left))
    for left in (0, 5):
        yield Trouble("handles", f"{left} left after step 3", step=3, act=few_handles(left))


def troubled(world: World, trouble: Trouble, runs: Path) -> dict[str, Any]:
    """Train into the trouble, mend it, go on, and look at what the run holds. For a process with
    mounts of its own.
    """
    from workbench.run.directory import RunDirectory
    from workbench.training.trainer import train

    run = runs / "r"
    runs.mkdir()
    if trouble.size:
        mount("tmpfs", runs, "tmpfs", 0, f"size={trouble.size}")

    def trains() -> None:
        trouble.before()
        watcher = Steers(trouble.step, lambda: trouble.act(run), steers=False)
        train(world.recipe(save_steps=2), policy=world.policy, runs=runs, watchers=[watcher])

    first = forked(trains)
    trouble.mend(run)
    if trouble.size:
        mount("tmpfs", runs, "tmpfs", _REMOUNT, ROOMY)
    stopped = (
        "finished" if not first.raised else "stopped in words" if first.in_words else first.outcome
    )
    found = {"stopped": stopped, "message": first.message.splitlines()}
    if stopped in BAD:
        found["stopped_at"] = first.trace.splitlines()[-24:]
    if not (run / "recipe.yaml").exists():
        after, left = "nothing is left", []
    else:
        left = [
            folder.name for folder in RunDirectory(run).saved() if (folder / "state.json").exists()
        ]
        again = world.goes_on(run, watchers=[]) if first.raised else None
        found["again"] = again.message.splitlines() if again else []
        rows = (
            (run / "metrics.jsonl").read_text().splitlines()
            if (run / "metrics.jsonl").is_file()
            else []
        )
        steps = [json.loads(row)["step"] for row in rows]
        if again and again.raised:
            after = "refused" if again.in_words else "raw"
            if again.in_words and not left and "no checkpoint to resume from" in again.message:
                after = "nothing was saved yet"
        else:
            differs = world.compared(run, world.plain)
            after = "exact" if not differs else "hole" if "steps" in differs else "silent"
            found["differs"] = differs
        if steps != list(range(1, len(steps) + 1)):
            after = "hole"
        found["steps"] = steps
    return {**found, "left": left, "after": after}


def mended(world: World, trouble: Trouble) -> dict[str, Any]:
    """`troubled`, in a process of its own."""
    runs = world.home / f"disk-{os.getpid()}"
    subprocess.run(["chattr", "-R", "-i", str(runs)], stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(runs, ignore_errors=True)
    ended = forked(lambda: own_mounts() or troubled(world, trouble, runs), 2 * LONGEST_S)
    if ended.raised:
        return row_of("disk", trouble.kind, trouble.name, "not made here", ended)
    found = ended.gave
    outcome = found["stopped"] if found["stopped"] in BAD else found["after"]
    return row_of("disk", trouble.kind, trouble.name, outcome, ended, **found)


def campaign_disk(world: World, asked: Any) -> list[dict[str, Any]]:
    cases = [
        trouble
        for trouble in troubles()
        if re.search(asked.case, f"{trouble.kind}: {trouble.name}")
    ]
    return spread(
        world, cases[:: asked.every], lambda trouble: mended(world, trouble), asked.at_once
    )


# --- all
# --------------------------------------------------------------------------------------------------
def in_words(row: dict[str, Any]) -> str:
    """What came of an edit."""
    shown = "shown" if row["shown"] else "not shown"
    if row["outcome"] != "refused":
        return f"{shown}, {row['outcome']}"
    return f"{shown}, refused; accepted: {row['accepted'].partition(':')[0]}"


def table(found: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Counts of each kind of case; of the edits each one."""
    rows: list[list[Any]] = []
    for (campaign, kind), own in itertools.groupby(
        found, lambda row: (row["campaign"], row["kind"])
    ):
        cases = list(own)
        if campaign == "edits":
            rows += [[campaign, f"{kind}: {row['case']}", 1, in_words(row)] for row in cases]
        elif campaign == "race":
            rows += [[campaign, row["case"], row["rounds"], row["outcome"]] for row in cases]
        else:
            counts = Counter(row["outcome"] for row in cases)
            rows.append(
                [
                    campaign,
                    kind,
                    len(cases),
                    ", ".join(f"{outcome} {number}" for outcome, number in counts.items()),
                ]
            )
    return ["campaign", "what", "cases", "what came of them"], rows


# Of the first version, which faults were counted in (other cases of the same kinds, and nobody's
# script any more).
BEFORE = {
    "damages": "109 damages: raw 37, silent 25", "race": "two owners in 9 of 40 rounds",
    "edits": "15 of 20 silent, 0 of 5 shown",
    "disk": "37 cases: 3 holes, every message raw",
}  # fmt: skip


def lines(found: list[dict[str, Any]]) -> list[measuring.Line]:
    """For the table of all benchmarks."""
    made = []
    for campaign in dict.fromkeys(row["campaign"] for row in found):
        own = [row for row in found if row["campaign"] == campaign]
        counts, bad = (
            Counter(row["outcome"] for row in own),
            [row for row in own if row["outcome"] in BAD],
        )
        number = sum(row.get("rounds", 1) for row in own)
        words = ", ".join(f"{outcome} {many}" for outcome, many in counts.most_common())
        if campaign == "race":
            words = f"{number} rounds of 2 and 4 processes: one owner in each" if not bad else words
        made.append(
            measuring.Line(f"damage: {campaign}", f"{number}: {words}", BEFORE[campaign], "none")
        )
    return made


def with_earlier(found: list[dict[str, Any]], asked: Any) -> list[dict[str, Any]]:
    """With the cases of the result file that were not tried this time; each says at which commit it
    was.
    """
    file = asked.out and asked.out / "damage.json"
    before = (
        json.loads(file.read_text(encoding="utf-8"))["cases"] if file and file.is_file() else []
    )
    places = [(row["campaign"], row["kind"]) for row in (*before, *found)]
    cases = {(row["campaign"], row["kind"], row["case"]): row for row in (*before, *found)}
    return sorted(
        cases.values(),
        key=lambda row: (
            CAMPAIGNS.index(row["campaign"]),
            places.index((row["campaign"], row["kind"])),
        ),
    )


def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CAMPAIGNS,
        default=list(CAMPAIGNS),
        help="campaigns (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="each case as a line of JSON on stdout")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th case")
    parser.add_argument("--case", default="", help="only the cases whose names match this pattern")
    parser.add_argument("--rounds", type=int, default=100, help="of each race")
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, help="processes that try cases"
    )
    asked = measuring.parse(parser, every=15, rounds=3)
    stamped, found = measuring.stamp(), []
    with measuring.empty_home() as home:
        world = World.made(home) if asked.only != ["race"] else None
        for name in asked.only:
            for row in globals()[f"campaign_{name}"](world, asked):
                found.append(row | {"commit": stamped["versions"]["commit"]})
                if asked.json:
                    print(json.dumps(found[-1]), flush=True)
    bad = [row for row in found if row["outcome"] in BAD]
    for row in bad:
        measuring.say(json.dumps(row, indent=1))
    found = with_earlier(found, asked)
    with contextlib.redirect_stdout(sys.stderr) if asked.json else contextlib.nullcontext():
        measuring.save(
            "damage",
            asked,
            stamped,
            lines(found),
            table(found),
            {"cases": found, "bad": sum(row["outcome"] in BAD for row in found)},
        )
    gc.unfreeze()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
