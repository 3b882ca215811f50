"""Held-out prompts that are measured while a run trains (`eval_every`): what its events record.

`{"event": "held_out", "step", "correct", "low", "high", "gain", "gain_low", "gain_high", "right",
...}`: the share of completions that are right and in the strict format, with its 95 % interval; the
gain over the base on the same prompts, with its own; and in `right` a 0 or a 1 for each prompt, in
order, or a `-` where no function says so of its completion, which does not count. Step 0 is the
base, whose `adapter` is "base", and then the policy after a warm start, if there was one. The
completions are in `held_out/`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from workbench.base.kinds import Fields
from workbench.base.workspace import replace_file, to_json

_GAIN = ("gain", "gain_low", "gain_high")


def held_out(events: Iterable[Fields]) -> list[Fields]:
    """The measurements that count, by step, the base's first.

    Measurements after the checkpoint that a run resumed from do not; nor do earlier ones on other
    prompts.
    """
    measured: list[Fields] = []
    for event in standing(events):
        if event.get("event") == "held_out":
            measured = [
                own
                for own in measured
                if own["key"] == event["key"] and _place(own) < _place(event)
            ]
            measured.append(event)
    return measured


def standing(events: Iterable[Fields]) -> list[Fields]:
    """The events without those after the checkpoint that the run resumed from: those steps were
    trained again.
    """
    found: list[Fields] = []
    for event in events:
        if event.get("event") == "continued":
            found = [own for own in found if (own.get("step") or 0) <= (event.get("step") or 0)]
        found.append(event)
    return found


def reward_errors(events: Iterable[Fields]) -> Counter[str]:
    """Function -> number of completions that it gave no score because it failed, in the events that
    stand.
    """
    failed = (event for event in standing(events) if event["event"] == "reward_error")
    return sum((Counter({event["function"]: event["completions"]}) for event in failed), Counter())


def _place(measured: Fields) -> tuple[int, bool]:
    return measured["step"], measured["adapter"] != "base"


def flags(measured: Fields) -> np.ndarray:
    """[P, 1] bools of a measurement: which prompts were solved."""
    return np.array([[each == "1"] for each in measured["right"]])


def best_of(found: Sequence[Fields]) -> Fields | None:
    """The measurement of the best adapter: most correct, then the highest mean reward, then the
    earliest; None: none yet.
    """
    return max(
        (own for own in found if own["adapter"] != "base"),
        key=lambda own: (own["correct"], own["reward"]),
        default=None,
    )


def in_numbers(measured: Fields) -> str:
    """A measurement in words: `84 % (62 to 94), +43 points over base (+25 to +61)`."""
    said = "{correct:.0f} % ({low:.0f} to {high:.0f})".format(
        **{name: 100 * measured[name] for name in ("correct", "low", "high")}
    )
    gain = [100 * measured[name] for name in _GAIN if name in measured]
    if len(gain) < len(_GAIN):
        return said if gain else f"{said}, base"
    line = "{}, {:+.0f} points over base ({:+.0f} to {:+.0f})".format(said, *gain)
    return f"{line}, after the warm start" if measured["step"] == 0 else line


def told(found: Fields) -> str:
    """What a run's result reports of it, in words."""
    last, best, base = found["last"], found["best"], 100 * found["base"]
    line = f"held-out {base:.0f} % -> {in_numbers(last)}; "
    reached = 100 * best["correct"]
    line += (
        f"best: {reached:.0f} % at step {best['step']}" if reached > base else "never above base"
    )
    return (
        f"{line}; measuring took {found['seconds']:.0f} s, {100 * found['share']:.1f} % of the time"
    )


def completion_rows(row: Fields, completions: Iterable[Fields], /, **about: object) -> list[Fields]:
    """The rows of one prompt's completions, for a file of held-out completions; `about`: what all
    of them share.
    """
    columns = {name: value for name, value in row.items() if name not in ("prompt", "prompt_id")}
    about |= {
        "prompt_id": row["prompt_id"],
        "prompt": json.dumps(row["prompt"]),
        "columns": json.dumps(to_json(columns)),
    }
    return [{**about, "generation": number, **each} for number, each in enumerate(completions)]


def write_completions(file: Path, rows: list[Fields], about: Fields | None = None) -> None:
    """Write such rows to a Parquet file, atomically, with `about` in its schema's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows)
    if about is not None:
        table = table.replace_schema_metadata({"workbench": json.dumps(about)})
    file.parent.mkdir(exist_ok=True)
    with replace_file(file) as beside:
        pq.write_table(table, beside, compression="zstd")
