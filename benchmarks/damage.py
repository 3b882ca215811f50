"""What a run survives: damaged files, processes that race for it, edits of what was asked, and a disk that gives out.

    uv run python benchmarks/damage.py [--only damages race edits disk] [--json]

Four campaigns on real, small runs (the embedded policy, six steps, a checkpoint every second one). Everything is imported
and the policy loaded once; every case then is a fork of that process. None of it measures time.

damages   A run was killed in step 5. One file of it is damaged, `wb.continue_run` goes on, and what the run then holds (metrics
          without times, every completion with its scores, the adapter) is compared, bit for bit, with a run that never
          stopped. Outcomes: exact; older (an older checkpoint was taken, in words, and the numbers are exact); said (it goes
          on, and a WARNING names what is lost); refused (a WorkbenchError, and nothing of the run was changed); raw (any other
          exception); silent (the numbers differ, and nothing was said). A pickle that is run is silent, too.
race      Two and four processes take the same run at once, by `RunDirectory.reopen` and by its lock alone, with flock and on a
          file system that has none. In every round exactly one must own it.
edits     Twenty edits of the recipe and six of the task before going on: is each shown, which are refused, and what does
          `accept_changes` make of them.
disk      The run's disk is full, read-only or gone, its quota or its handles are used up, in the middle of training. Then there
          is room again, and `wb.continue_run` goes on. Needs Linux, root and mounts; a case that cannot be made here is left
          out, in words.

--only picks campaigns, --json prints each case as a line of JSON on stdout, --quick tries a few cases of each. The exit code
is 1 if a case was raw or silent, left a hole in the record, or had two owners or none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import itertools
import json
import os
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

import measuring

STEPS, KILLED_IN, NEWEST, OLDER = 6, 5, "checkpoint-4", "checkpoint-2"
GRPO = {
    "max_steps": STEPS, "save_steps": 2, "save_total_limit": 2, "num_generations": 4, "per_device_train_batch_size": 8,
    "max_completion_length": 16, "learning_rate": 1e-3,
}  # fmt: skip
TASK = """from workbench.tiny.task import task as arithmetic

task = arithmetic(8, 4)
"""
CAMPAIGNS = ("damages", "race", "edits", "disk")
BAD = ("raw", "silent", "hole", "two owners", "no owner", "hung", "not shown")
LONGEST_S = 240


# --- a child for every case ---------------------------------------------------------------------------------------
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
        return "refused" if self.in_words else "hung" if self.raised == "Hung" else "raw" if self.raised else "exact"


def forked(act: Callable[[], Any], longest_s: float = LONGEST_S) -> Ended:
    """What a function returns (as JSON has it) or raises in a child of this process, and what it prints."""
    pipes = [os.pipe() for _ in range(2)]
    (told, tell), (heard, say) = pipes
    for reads, writes in pipes:
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1 << 20)  # it is read when the child has ended
        os.set_blocking(reads, False)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(say, stream)
        sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # whatever the host had
        try:
            found = {"gave": act()}
        except BaseException as error:
            from workbench.errors import WorkbenchError

            found = {"raised": type(error).__name__, "in_words": isinstance(error, WorkbenchError), "message": str(error)}
            found["trace"] = "".join(traceback.format_exception(error))
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            os.write(tell, json.dumps(found, default=str).encode())
        os._exit(0)
    until, hung = time.monotonic() + longest_s, False
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if hung := time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left behind
    texts = []
    for reads, writes in pipes:
        os.close(writes)
        texts.append(b"".join(iter(lambda: _read(reads), b"")))
        os.close(reads)
    said = texts[1].decode("utf-8", "replace")
    if hung or not texts[0]:
        return Ended(raised="Hung" if hung else "Killed", message="ended without a word", said=said)
    return Ended(**json.loads(texts[0]), said=said)


def _read(stream: int) -> bytes:
    try:
        return os.read(stream, 1 << 16)
    except BlockingIOError:
        return b""


# --- the runs -----------------------------------------------------------------------------------------------------
def made_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def held(path: Path) -> dict[str, Any]:
    """What a run holds, as can be compared: rows of metrics without times, completions with their scores, the adapter."""
    from workbench.run.directory import RunDirectory
    from workbench.run.rollouts import query

    run = RunDirectory(path)
    rows = [{key: value for key, value in row.items() if not key.startswith(("time/", "step_time"))} for row in run.metrics()]
    frame = query(run.rollouts)
    return {
        "status": run.result()["status"],
        "steps": [row["step"] for row in rows],
        "metrics": made_of(rows),
        "rollouts": made_of(frame.astype(str).to_dict("records")),
        "adapter": hashlib.sha256((run.final / "adapter_model.safetensors").read_bytes()).hexdigest(),
    }


def contents(path: Path) -> dict[str, str]:
    """Every file of a folder by what is in it, but for the lock."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "lock"]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


class Steers:
    """A watcher that gives a reward function another weight after the first step, and does something after another step."""

    def __init__(self, step: int = 0, act: Callable[[], Any] = lambda: None) -> None:
        self.step, self.act = step, act

    def begin(self, run: Any, total_steps: int, settings: Any) -> None:
        self.run = run

    def update(self, step: int, values: Any) -> None:
        from workbench.run.control_file import send

        if step == 1:
            send(self.run, "weight", by="damage.py", function="length_reward", value=2.0)
        if step == self.step:
            self.act()

    def end(self, message: str) -> None: ...


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class World:
    """The policy, and the runs that the cases are copies of: one that never stopped, one killed in step 5, a stranger's."""

    home: Path
    policy: Any
    whole: dict[str, Any] = None  # what the first one holds

    @classmethod
    def made(cls, home: Path) -> World:
        from workbench.training.policy import load_policy

        (home / "tasks").mkdir()
        (home / "tasks" / "sums.py").write_text(TASK)
        with contextlib.redirect_stdout(sys.stderr):
            world = cls(home, load_policy("tiny", load_in_4bit=False))
        for name, seed, act in (("whole", 0, None), ("killed", 0, killed), ("other", 1, killed)):
            watcher = Steers(KILLED_IN, act) if act else Steers()
            ended = forked(lambda name=name, seed=seed, watcher=watcher: world.train(home / name, seed, watcher))
            if ended.raised not in ("", "Killed"):
                raise RuntimeError(f"{name}: {ended.trace}")
        world.whole = forked(lambda: held(home / "whole" / "r")).gave
        if world.whole["steps"] != list(range(1, STEPS + 1)):
            raise RuntimeError(f"the run that never stopped: {world.whole}")
        return world

    def recipe(self, seed: int = 0) -> Any:
        from workbench.recipe import Recipe

        asked = {"run_name": "r", "task": "tasks/sums.py", "grpo": GRPO, "seed": seed, "policy": {"load_in_4bit": False}}
        return Recipe.of(asked)

    def train(self, runs: Path, seed: int, watcher: Any) -> None:
        from workbench.training.trainer import train

        train(self.recipe(seed), policy=self.policy, runs=runs, watchers=[watcher])

    def copied(self) -> Path:
        """A copy of the run that was killed, in the place of the latest one."""
        shutil.rmtree(self.home / "runs", ignore_errors=True)
        return Path(shutil.copytree(self.home / "killed" / "r", self.home / "runs" / "r", copy_function=shutil.copy2))

    def goes_on(self, run: Path, **more: Any) -> Ended:
        """`wb.continue_run`, in a child."""
        from workbench.run.directory import open_run
        from workbench.training.trainer import continue_run

        return forked(lambda: continue_run(open_run(run), **{"policy": self.policy, "watchers": [Steers()], **more}).name)

    def compared(self, run: Path) -> list[str]:
        """In what a run differs from the one that never stopped."""
        found = forked(lambda: held(run))
        if found.raised:
            return [f"not readable ({found.raised}: {found.message})"]
        return [name for name, own in self.whole.items() if found.gave[name] != own]


def row_of(campaign: str, kind: str, case: str, outcome: str, ended: Ended, **more: Any) -> dict[str, Any]:
    """A case, as the result file has it. What was said: its warnings, or the error."""
    lines = ended.message.splitlines() or [line for line in ended.said.splitlines() if "WARNING" in line or "Warning" in line]
    own = {"campaign": campaign, "kind": kind, "case": case, "outcome": outcome, "error": ended.raised, "said": lines, **more}
    return {**own, "trace": ended.trace.splitlines()[-6:]} if outcome == "raw" else own


# --- damages ------------------------------------------------------------------------------------------------------
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


def written(content: bytes) -> Damage:
    return lambda file: file.write_bytes(content) and None


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
        file.write_bytes(b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")  # a pickle that runs a command
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
    "empty": empty, "torn": half, "null": written(b"null\n"), "[]": written(b"[]\n"), "binary": written(bytes(range(256)) * 4),
    "missing": Path.unlink, "a folder": folder,
}  # fmt: skip


def damages(world: World, mark: Path) -> Iterator[tuple[str, str, Damage]]:
    """What is damaged, how, and the damage."""
    source, older, other = (world.home / "killed" / "r"), OLDER, world.home / "other" / "r" / "checkpoints" / NEWEST
    newest = source / "checkpoints" / NEWEST
    for name in sorted(file.name for file in newest.iterdir()):
        own = f"checkpoints/{NEWEST}/{name}"
        ways: dict[str, Damage] = {
            "missing": Path.unlink, "empty": empty, "cut to half": half, "a bit flipped": flipped, "tail zeroed": zeroed,
            "swapped with the next": swapped,
            "that of the older one": lambda file: shutil.copyfile(file.parents[1] / older / file.name, file) and None,
            "another run's": lambda file: shutil.copyfile(other / file.name, file) and None,
        }  # fmt: skip
        yield from (("a checkpoint's file", f"{name}: {way}", in_file(own, act)) for way, act in ways.items())
    for name in json.loads((newest / "state.json").read_text()):
        yield "a field of state.json", f"{name} is gone", in_state(lambda state, name=name: state.pop(name))
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "step + 1": lambda state: state.update(step=state["step"] + 1), "done - 1": lambda state: state.update(done=3),
        "stage 1": lambda state: state.update(stage=1), "a random number": lambda state: state["random"]["numpy"][1].reverse(),
        "schedule": lambda state: state["schedule"].update(last_epoch=0), "sums gone": lambda state: state.update(files={}),
    }  # fmt: skip
    yield from (("a field of state.json", f"{name} is another", in_state(change)) for name, change in changes.items())
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        tensors: dict[str, Callable[[dict[str, Any], str], Any]] = {
            "missing": lambda found, key: found.pop(key), "too many": lambda found, key: found.update(extra=found[key].clone()),
            "another shape": lambda found, key: found.update({key: found[key][:1].clone()}),
            "another type": lambda found, key: found.update({key: found[key].half()}),
        }  # fmt: skip
        yield from (("a checkpoint's tensor", f"{name}: {way}", in_tensors(name, act)) for way, act in tensors.items())
    for name, act in {"adapter_model.safetensors": Path.unlink, "state.json": half, "optimizer.safetensors": flipped}.items():
        yield "both checkpoints", f"{name}: {act.__name__}", both(name, act)
    for name in ("manifest.json", "recipe.yaml", "metrics.jsonl", "events.jsonl", "lock", "control.jsonl", "task.py"):
        yield from (("the record", f"{name}: {way}", in_file(name, act)) for way, act in RECORD.items())
    part = "rollouts/" + sorted(file.name for file in (source / "rollouts").iterdir())[1]
    yield from (("the record", f"a part: {way}", in_file(part, act)) for way, act in RECORD.items())
    gaps: dict[str, Damage] = {
        "metrics.jsonl: its first row gone": lines_of("metrics.jsonl", lambda lines: lines[1:]),
        "metrics.jsonl: a row in the middle gone": lines_of("metrics.jsonl", lambda lines: lines[:1] + lines[2:]),
        "metrics.jsonl: a row in the middle torn": lines_of(
            "metrics.jsonl", lambda lines: [lines[0], lines[1][:40] + "\n", *lines[2:]]
        ),
        "metrics.jsonl: shorter than the checkpoint": lines_of("metrics.jsonl", lambda lines: lines[:3]),
        "metrics.jsonl: a row twice": lines_of("metrics.jsonl", lambda lines: lines[:2] + lines[1:]),
        "metrics.jsonl: a row without a step": lines_of("metrics.jsonl", lambda lines: ['{"reward": 1}\n', *lines]),
        "events.jsonl: a line null": lines_of("events.jsonl", lambda lines: [lines[0], "null\n", *lines[1:]]),
        "events.jsonl: a change torn": lines_of(
            "events.jsonl", lambda lines: [line[:30] + "\n" if '"weight"' in line else line for line in lines]
        ),
        "rollouts: all parts gone": in_file("rollouts", shutil.rmtree),
        "rollouts/step-x.parquet": in_file("rollouts/step-x.parquet", written(b"PAR1")),
        "checkpoints/checkpoint-²": in_file("checkpoints/checkpoint-²", Path.mkdir),
        "checkpoints/checkpoint-abc": in_file("checkpoints/checkpoint-abc", Path.mkdir),
        "checkpoints/checkpoint-9 is empty": in_file("checkpoints/checkpoint-9", Path.mkdir),
        "checkpoints/checkpoint-9 is a file": in_file("checkpoints/checkpoint-9", written(b"x")),
        "checkpoints: gone": in_file("checkpoints", shutil.rmtree),
        "manifest.json: another run's": in_file(
            "manifest.json", lambda file: shutil.copyfile(other.parents[1] / file.name, file) and None
        ),
        "recipe.yaml: another run's": in_file(
            "recipe.yaml", lambda file: shutil.copyfile(other.parents[1] / file.name, file) and None
        ),
    }  # fmt: skip
    yield from (("the record", name, act) for name, act in gaps.items())
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin"):
        yield "a pickle in the checkpoint", name, planted(name, mark)
    yield "a pickle in the checkpoint", "adapter_model.bin", planted("adapter_model.bin", mark, "adapter_model.safetensors")


def damaged(world: World, kind: str, name: str, act: Damage, mark: Path) -> dict[str, Any]:
    """Damage a copy of the run, go on with it, and look at what it then holds."""
    run = world.copied()
    act(run)
    before, ended = contents(run), world.goes_on(run)
    outcome, differs = ended.outcome, []
    if outcome == "refused":
        after = contents(run)
        differs = sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))
        outcome = "refused" if not differs else "silent"  # what is refused is left as it was
    elif outcome == "exact":
        differs = world.compared(run)
        warned = [line for line in ended.said.splitlines() if line.startswith("WARNING") and "held_out" not in line]
        older = f"from {OLDER}" in ended.said
        outcome = "silent" if (differs or older) and not warned else "said" if differs else "older" if older else "exact"
    if mark.exists():
        mark.unlink()
        outcome, differs = "silent", ["a pickle was run"]
    return row_of("damages", kind, name, outcome, ended, differs=differs)


def campaign_damages(world: World, every: int) -> Iterator[dict[str, Any]]:
    mark = world.home / "executed"
    for kind, name, act in itertools.islice(damages(world, mark), 0, None, every):
        yield damaged(world, kind, name, act, mark)


# --- all ----------------------------------------------------------------------------------------------------------
def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=list(CAMPAIGNS), metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--json", action="store_true", help="each case as a line of JSON on stdout")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th case")
    parser.add_argument("--rounds", type=int, default=100, help="of each race")
    asked = measuring.parse(parser, every=15, rounds=3)
    stamped, found = measuring.stamp(), []
    with measuring.empty_home() as home:
        world = World.made(home)
        for name in asked.only:
            for row in globals()[f"campaign_{name}"](world, asked.every):
                found.append(row)
                measuring.say(f"{row['campaign']}: {row['kind']}: {row['case']}: {row['outcome']}  {row['said'][:1]}")
                if asked.json:
                    print(json.dumps(row), flush=True)
    bad = [row for row in found if row["outcome"] in BAD]
    for row in bad:
        measuring.say(json.dumps(row, indent=1))
    measuring.say(str(Counter((row["campaign"], row["outcome"]) for row in found)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
