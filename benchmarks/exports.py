"""What the proof of an export finds: sabotaged exports with the cause that it names, and false
alarms on good ones.

    uv run python benchmarks/exports.py [--good 50] [--seed 0] [--json]

The run is the demo's recipe, trained on the plain backend (45 steps; quick: 6). Each sabotage is an
export that looks whole: its passport is its own. Every kind of artefact that it fits is spoiled:
merged_4bit is quantised, and GGUF converted, from the spoiled merged folder.
Off-grid: the same run on 16-bit weights that NF4 rounds to the same 4-bit ones (tests/off_grid.py),
merged into each base. Spoiled adapters are counted apart from merged models and GGUF. Whatever was
done to the tensors is one cause, `other_weights`; off the grid it is `worse`.

Good exports: runs of other seeds, ranks, lengths and precisions, and adapters with random B
matrices, on the embedded policy and on the off-grid one, in every format in turn. NF4 rounds the
change of a few steps away, which is a fault of that artefact and is called one (`differs`):
where merged_4bit is among a run's formats it trains LONG steps more, enough on the embedded policy.
Off the grid NF4 may still take most of the change away: such a merged_4bit is neither good nor
spoiled, and is counted apart. Each proof's two processes are forks of this one, which never imports
unsloth; the live policy is measured once a run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pickle
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

import measuring
from measuring import Line

ROOT = measuring.HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "export")]

# Sabotages whose name is the cause to be found; of the others it is `other_weights`.
WORDS = ("template_lost", "double_bos", "eos_missing")
LONG = 24  # steps more


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What `work` returns, pickled, in a fork of this process, where the libraries are
    loaded.
    """
    from workbench.base import errors

    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.close(reads)
            found = pickle.dumps(work())
            with os.fdopen(writes, "wb") as out:
                out.write(found)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads, "rb") as came:
        said = came.read()
    if os.waitpid(pid, 0)[1]:
        raise errors.ExportError(
            "the process failed", rule="its error stands above", remedy="see there"
        )
    return pickle.loads(said)


def forked(work: Callable[..., Any], request: Any, progress: Any) -> Any:
    """`apart.run_apart`, in a fork of this process."""
    return in_a_fork(lambda: work(request, lambda done, total: None))


def trained(name: str, task: str = "arithmetic", **changed: Any) -> Any:
    """A run on the plain backend, trained in a fork of this process."""
    from workbench.recipe import Recipe
    from workbench.run.directory import open_run

    grpo = {
        "max_steps": 45, "num_generations": 8, "per_device_train_batch_size": 64,
        "max_completion_length": 96,
        "learning_rate": 1e-3, "beta": 0.001, "temperature": 1.0, **changed.pop("grpo", {}),
    }  # fmt: skip
    recipe = Recipe.of({"run_name": name, "task": task, "grpo": grpo, **changed})
    recipe.policy.backend = "transformers"

    def train_it() -> None:
        from workbench.training.trainer import train

        with (
            open(os.devnull, "w") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            train(recipe)

    in_a_fork(train_it)
    return open_run(name)


def proof_of(folder: Path, run: Any, prompts: int) -> Any:
    from workbench.exporting.artefacts import open_artefact
    from workbench.exporting.proving import prove

    return prove(
        open_artefact(folder, run), prompts=prompts, progress=lambda name: lambda done, total: None
    )


def sabotaged(run: Any, formats: list[str], prompts: int) -> Iterator[dict[str, Any]]:
    """Each sabotage of each format that it fits, and what the proof makes of it."""
    from off_grid import moved_run, off_grid_base
    from sabotage import SABOTAGES

    from workbench.exporting import passport
    from workbench.exporting.artefacts import open_artefact
    from workbench.exporting.making import _MAKES, export
    from workbench.run.directory import RunDirectory
    from workbench.tiny import MODEL_DIR

    export(run, formats, into="base", overwrite=True)
    kept = run.path.with_name("kept-export")
    shutil.copytree(run.export, kept)
    for name, spoil in SABOTAGES.items():
        for format in formats:
            if format == "adapter" and name == "tied_head_lost":
                continue
            folder, spoiled = run.export / format, run.path.with_name("spoiled")
            shutil.rmtree(spoiled, ignore_errors=True)
            made, whole = (
                open_artefact(folder, run),
                ("adapter" if format == "adapter" else "merged_16bit"),
            )
            try:
                spoil(kept / whole, spoiled / whole, MODEL_DIR, run.adapter)
                shutil.rmtree(folder)
                if format == whole:
                    shutil.copytree(spoiled / whole, folder)
                else:
                    if format.startswith("gguf"):  # Ollama's words lie beside the file
                        shutil.copytree(
                            kept / format, folder, ignore=shutil.ignore_patterns("*.gguf")
                        )
                    _MAKES[format](run, replace(made, path=spoiled / format), folder)
                passport.stamp(folder, made)
                proof = proof_of(folder, run, prompts)
                yield _tried(name, format, proof, name if name in WORDS else "other_weights")
            except Exception as error:
                traceback.print_exc()
                yield {
                    "sabotage": name,
                    "format": format,
                    "error": f"{type(error).__name__}: {error}"[:300],
                    "caught": False,
                }
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(kept / format, folder)
    base = run.path.with_name("off-grid-base")
    # what has had gradients cannot be forked
    in_a_fork(lambda: str(off_grid_base(base, run.adapter)))
    moved = RunDirectory(moved_run(run.path, base, run.path.with_name("off-grid")))
    for into in ("base", "dequantised"):
        for format in export(
            moved, [each for each in formats if each != "adapter"], into=into, overwrite=True
        ).artefacts:
            proof = proof_of(moved.export / format, moved, prompts)
            name, wanted = (
                ("off_grid", "worse")
                if into == "base"
                else ("none: off the grid, into dequantised", "")
            )
            yield _tried(name, format, proof, wanted)


def _tried(name: str, format: str, proof: Any, wanted: str) -> dict[str, Any]:
    checks = [
        {"name": each.name, "found": each.found, "cause": each.cause} for each in proof.failed
    ]
    found = {
        "sabotage": name,
        "format": format,
        "cause": proof.cause,
        "caught": proof.cause == wanted,
        "failed": checks,
    }
    shares = {key: proof.measured[key] for key in ("reward", "pass@1") if key in proof.measured}
    measuring.say(
        f"{name}, {format}: {proof.cause or 'passed'}"
        + ("" if found["caught"] else "  <- NOT THE CAUSE")
    )
    return found | {"measured": shares}


def good(
    count: int, formats: list[str], prompts: int, seed: int, steps: int
) -> Iterator[dict[str, Any]]:
    """Good exports: a run, three formats of it, the next run. What failed of each; nothing
    should.
    """
    from made_runs import saved_adapter
    from off_grid import moved_run

    from workbench.base.workspace import replace_folder, resolve
    from workbench.exporting.making import export
    from workbench.run.directory import RunDirectory
    from workbench.run.sealed import saved_with

    turn, made = itertools.cycle(formats), 0
    for number in itertools.count():
        if made >= count:
            return
        rank, in_4bit = (4, 8, 16, 32)[number % 4], number % 3 != 2
        asked = [next(turn) for _ in range(min(3, count - made))]
        length = 2 + number % steps + LONG * ("merged_4bit" in asked)
        policy, grpo = (
            {"name": "tiny", "load_in_4bit": in_4bit},
            {
                "max_steps": length,
                "per_device_train_batch_size": 32,
            },
        )
        lora = {"r": rank, "lora_alpha": 16}
        run, kind = (
            trained(f"good-{number}", policy=policy, lora=lora, grpo=grpo, seed=seed + number + 1),
            f"{length} steps",
        )
        # larger or smaller than training leaves it, and of no use: what it writes is chaos
        if number % 2:
            std = (0.002, 0.005, 0.01, 0.02)[number // 2 % 4]
            adapter, kind = saved_adapter(std, seed + number, r=rank), f"random B, std {std}"
            with replace_folder(run.final) as folder:
                shutil.copytree(adapter, folder, dirs_exist_ok=True)
            run.update_manifest(saved=saved_with(run, run.final))
        if number % 4 in (1, 2):
            moved = moved_run(
                run.path, resolve("runs/off-grid-base"), run.path.with_name(f"moved-{number}")
            )
            run, kind = RunDirectory(moved), f"{kind}, off the grid"
        exported = export(run, asked, overwrite=True)
        for format in asked:
            proof = proof_of(exported[format].path, run, prompts)
            made += 1
            failed = [
                {"name": each.name, "found": each.found, "cause": each.cause}
                for each in proof.failed
            ]
            measuring.say(
                f"good export {made}: {format}, {kind}, rank {rank}: {proof.cause or 'passed'}"
            )
            made_of = {
                "format": format,
                "run": kind,
                "rank": rank,
                "in_4bit": in_4bit,
                "into": exported[format].into,
            }
            yield made_of | {"passed": proof.passed, "failed": failed, "measured": proof.measured}


def _caught(tries: list[dict[str, Any]]) -> str:
    return f"{sum(one['caught'] for one in tries)} of {len(tries)}"


def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--good", type=int, default=50, metavar="N", help="good exports (50)")
    parser.add_argument(
        "--prompts", type=int, default=64, metavar="N", help="held-out prompts of each proof (64)"
    )
    parser.add_argument(
        "--formats", nargs="+", help="of the artefacts (default: all that this machine makes)"
    )
    parser.add_argument(
        "--run",
        type=Path,
        help="a finished run of the embedded policy to sabotage, instead of training one",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the good exports (0)")
    parser.add_argument(
        "--json", action="store_true", help="print every try, as one line of JSON, last"
    )
    asked = measuring.parse(parser, good=3, prompts=16)
    from workbench.base.errors import ExportError
    from workbench.exporting import apart, gguf
    from workbench.exporting.artefacts import FORMATS
    from workbench.training import plain

    plain.version()
    apart.run_apart = forked
    if asked.formats is None:
        asked.formats = list(FORMATS)
        try:
            gguf.check_tools()
        except ExportError as error:
            measuring.say(f"no GGUF: {error.value}")
            asked.formats = [each for each in FORMATS if not each.startswith("gguf")]
    stamped = measuring.stamp()
    with measuring.empty_home() as home:
        if asked.run:
            from workbench.run.directory import RunDirectory

            run = RunDirectory(shutil.copytree(asked.run, home / "runs" / "demo"))
            shutil.rmtree(run.export, ignore_errors=True)
        else:
            run = trained("demo", grpo={"max_steps": 6} if asked.quick else {})
        tries = list(sabotaged(run, asked.formats, asked.prompts))
        fine = list(
            good(asked.good, asked.formats, asked.prompts, asked.seed, 3 if asked.quick else 7)
        )
    return reported(asked, stamped, tries, fine)


def reported(
    asked: argparse.Namespace,
    stamped: dict[str, Any],
    tries: list[dict[str, Any]],
    fine: list[dict[str, Any]],
) -> int:
    adapters, whole = (
        [one for one in tries if (one["format"] == "adapter") is own] for own in (True, False)
    )
    kinds = list(dict.fromkeys(one["sabotage"] for one in tries))
    rounded = [
        one for one in fine if one["format"] == "merged_4bit" and "off the grid" in one["run"]
    ]
    fine = [one for one in fine if one not in rounded]
    alarms, wrong = (
        [one for one in fine if not one["passed"]],
        [one for one in tries if not one["caught"]],
    )
    spoiled = [one for one in whole if not one["sabotage"].startswith("none")]
    missed = {one["sabotage"] for one in spoiled if not one["caught"]}
    of = len({one["sabotage"] for one in spoiled})
    figure = f"{of - len(missed)} of {of} kinds, {_caught(spoiled)} artefacts"
    lines = [
        Line(
            "sabotaged merged models and GGUF files, found with the right cause",
            figure,
            "nothing",
            "none is by chance",
        ),
        Line(
            "spoiled adapters, found with a cause that fits them",
            _caught(adapters),
            "nothing",
            "none is by chance",
        ),
        Line("false alarms on good exports", f"{len(alarms)} of {len(fine)}", "nothing", "counted"),
    ]
    names = sorted({one["format"] for one in tries}, key=asked.formats.index)

    def cell(name: str, format: str) -> str:
        found = [one for one in tries if (one["sabotage"], one["format"]) == (name, format)]
        return "; ".join(one.get("cause") or one.get("error") or "passed" for one in found) or "-"

    rows = [[name, *(cell(name, format) for format in names)] for name in kinds]
    rows.append(
        [f"false alarms on good exports: {len(alarms)} of {len(fine)}", *(["-"] * len(names))]
    )
    asked.run = None  # a path of this machine
    found = {"sabotaged": tries, "good": fine, "rounded": rounded}
    shares = ", ".join(
        "{share:.0%} ({low:.0%} to {high:.0%})".format(**one["measured"]["of_the_run"])
        for one in rounded
    )
    failed = f"{sum(not one['passed'] for one in rounded)} of {len(rounded)} failed"
    notes = (
        [
            f"merged_4bit off the grid, not among the good: {failed}; shares of the run's change:"
            f" {shares}."
        ]
        if rounded
        else []
    )
    measuring.save("exports", asked, stamped, lines, (["sabotage", *names], rows), found, notes)
    if asked.json:
        print(json.dumps(found))
    return 1 if wrong or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
