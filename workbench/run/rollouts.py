"""The rollout record: every completion of every group, with what the rewards saw and the scores
they gave.

One row per completion, in immutable Parquet parts. `read_batches` reads them back as the batches
that were scored; `query` asks DuckDB, so a question over millions of rows needs no more memory than
its answer.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Prompt
from workbench.base.workspace import encodable, replace_file, shown, to_json
from workbench.recipe import packaged
from workbench.run.batch import Groups, ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.parts import MOVE_IT, STORED, WHOLE, part_tables, parts, runs_of, span

if TYPE_CHECKING:
    import pandas
    import pyarrow

_BULKY = ("prompt", "columns", "reward_hash")  # what no number of a batch is made from
# Column -> type, in Arrow's words.
_FIXED: dict[str, str] = packaged(Path(__file__).with_suffix(".yaml"))
TURNS = "turns"  # JSON of them (turns.py); only where rollouts have some
_LATER = ("stage", "reward_hash")  # which parts of the first versions lack
KEY = "coalesce(nullif(prompt_id, ''), prompt)"  # SQL: which prompt a completion answers
# Of each function: None where it did not apply or failed; what it did instead, None if nothing.
_PER_FUNCTION = {"score": "float64", "weight": "float64", "error": "string"}


def columns_of(batch: ScoredBatch) -> Fields:
    """A batch as the columns of its part."""
    total, size = len(batch.completions), batch.num_generations
    rows = {name: own for name, own in batch.columns.items() if name != "prompt_id"}
    columns: Fields = {
        "step": np.full(total, batch.step, dtype=np.int32),
        "stage": [batch.stage] * total,
        "group": np.repeat(batch.group_places, size).astype(np.int32),
        "prompt_id": batch.prompt_ids,
        "generation": np.arange(total, dtype=np.int32) % size,
        "prompt": _each_once(
            batch.prompts, lambda own: own if isinstance(own, str) else _json(own)
        ),
        "completion": batch.completions,
        "length_tokens": batch.lengths,
        "finish_reason": (
            None if batch.finished is None else np.where(batch.finished, "stop", "length").tolist()
        ),
        "columns": _each_once(
            list(zip(*rows.values(), strict=True)) or [()] * total,
            lambda row: _json(to_json(dict(zip(rows, row, strict=True)))),
        ),
        "total": batch.groups.totals,
        "group_mean": batch.groups.means,
        "group_std": batch.groups.stds,
        "advantage": batch.groups.advantages,
        "right": batch.right,
        "reward_hash": [batch.reward_hash] * total,
    }
    for number, (name, weight) in enumerate(zip(batch.names, batch.weights, strict=True)):
        columns[f"score.{name}"] = np.ascontiguousarray(batch.scores[:, number])
        columns[f"weight.{name}"] = np.full(total, weight)
        if errors := batch.errors.get(name):
            columns[f"error.{name}"] = [errors.get(index) for index in range(total)]
    if batch.turns:
        from workbench.run.turns import turns_to_text

        columns[TURNS] = list(map(turns_to_text, batch.turns))
    return columns


_json = functools.partial(json.dumps, ensure_ascii=False)


def _each_once(values: Sequence[object], made: Callable[[Any], Any]) -> list[Any]:
    # The completions of a group have one prompt, and what belongs to it, between them.
    try:
        runs = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    except ValueError:  # arrays, which a trainer of one's own may pass on
        runs = [(value, 1) for value in values]
    return [own for value, many in runs for own in [made(value)] * many]


def write_part(
    folder: Path, step: int, columns: Mapping[str, Sequence[Any]], functions: list[str]
) -> Path:
    """Write one step's completions, column by column, as one immutable part, atomically.

    NaN in a column of numbers means no value; a column left out is empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Several processes may generate for one step (one part a rank), and one step may be generated
    # more than once.
    names = (folder / f"step-{step:07d}-{number:02d}.parquet" for number in itertools.count())
    part = next(name for name in names if not name.exists())
    kinds = dict(_FIXED)
    for name in functions:
        kinds |= {f"{kind}.{name}": type_ for kind, type_ in _PER_FUNCTION.items()}
    if TURNS in columns:
        kinds[TURNS] = "string"
    schema, count = pa.schema(kinds), len(columns["step"])
    arrays = [_array(columns.get(field.name), field.type, count) for field in schema]
    with replace_file(part) as beside:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), beside, **STORED)
    return part


def _array(values: Sequence[Any] | None, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    import pyarrow as pa

    if values is None:
        return pa.nulls(count, kind)
    try:
        return pa.array(values, kind, from_pandas=True)
    except UnicodeEncodeError:
        # A lone surrogate in a completion is legal in Python and not in Parquet's UTF-8.
        return pa.array([value and encodable(value) for value in values], kind)


def query(
    folder: Path,
    sql: str = 'select * from rollouts order by step, "group", generation',
    *,
    step: int | None = None,
) -> pandas.DataFrame:
    """Query the record: the table is called `rollouts`, the answer is a pandas frame. Raises
    RunError if nothing was recorded.

    `step`: the only step that the query needs, so that not all of thousands of parts are opened.
    """
    import duckdb

    while True:
        files = parts(folder, None if step is None else [step]) or parts(folder)[-1:]
        try:
            with duckdb.connect() as connection:
                record = connection.read_parquet([*map(str, files)], union_by_name=True)
                if step is not None:
                    record = record.filter(f"step = {int(step)}")
                record.create_view("rollouts")
                return connection.execute(sql).df()
        except (duckdb.IOException, duckdb.InvalidInputException) as error:  # names the file
            if all(file.exists() for file in files):  # else some were merged meanwhile
                raise RunError(str(error).splitlines()[0], rule=WHOLE, remedy=MOVE_IT) from error


def read_batches(
    run: RunDirectory,
    steps: Container[int] | None = None,
    *,
    bare: bool = False,
    left_out: dict[str, str] | None = None,
) -> Iterator[ScoredBatch]:
    """A run's batches in order, read part by part; only the parts of `steps` are opened (None:
    all).

    `left_out` notes, by part, what cannot be used; without it an unreadable part is a RunError, as
    is an empty record. `bare` is as for `read_part`.
    """
    manifest = run.manifest()
    for part in parts(run.rollouts, steps):
        try:
            yield from read_part(part, manifest, steps, bare=bare, left_out=left_out)
        except RunError as error:
            if left_out is None:
                raise
            left_out[part.name] = error.value.partition(": ")[2] or error.value


def batch_and_place(
    run: RunDirectory, step: int | None = None, index: int | None = None
) -> tuple[ScoredBatch, int]:
    """The batch that holds one group of a step, and the group's place in it: `batch.group(place)`
    is the group alone.

    Raises RunError if the run recorded no such group.

    Args:
        step: None: the last on record.
        index: of the step's groups, from 0; None: the one with the widest spread of totals, which
            taught most.
    """
    last = span(parts(run.rollouts)[-1])[1]
    step = last if step is None else step
    places = [
        (batch, place) for batch in read_batches(run, [step]) for place in range(batch.group_count)
    ]
    if places and index is None:
        stds = [batch.groups.stds[place * batch.num_generations] for batch, place in places]
        return places[np.nan_to_num(stds, nan=-1.0).argmax()]
    if index is not None and 0 <= index < len(places):
        return places[index]
    group = "" if index is None else f", group {index}"
    rule, remedy = f"the last step on record is {last}", "choose a step on record"
    if places:
        rule, remedy = f"that step has {len(places)} groups", f"choose 0 to {len(places) - 1}"
    raise RunError(f"step {step}{group}: not in the record", rule=rule, remedy=remedy)


def read_part(
    part: Path,
    manifest: Fields | None = None,
    steps: Container[int] | None = None,
    *,
    bare: bool = False,
    joined: bool = False,
    left_out: dict[str, str] | None = None,
) -> Iterator[ScoredBatch]:
    """The batches of one part: one, or none if it is empty; of a merged part all, or those of
    `steps`.

    RunError if it is not a whole Parquet file, or lacks a column.

    Args:
        manifest: of the run, for the settings of the part's stage; where no group has its G, their
            most common size is used.
        bare: without prompts (but of turns), dataset columns and errors: most of a record.
        joined: alike batches that follow each other come as one, with the steps of the `later`.
        left_out: notes the groups without G completions, which are left out in any case.
    """
    import pyarrow as pa

    names: list[str] = []

    def columns(there: list[str]) -> list[str]:
        names.extend(name.removeprefix("score.") for name in there if name.startswith("score."))
        wanted = [name for name in _FIXED if not (bare and name in _BULKY)]
        wanted += [f"{kind}.{name}" for name in names for kind in ("score", "weight")]
        wanted += {TURNS, "prompt"}.difference(wanted) if TURNS in there else ()  # how each began
        if missing := [*set(wanted).difference(there, _LATER)]:
            raise RunError(
                f"{shown(part)}: no column {missing[0]!r}",
                rule="every part of the record has the columns of its run",
                remedy=MOVE_IT,
            )
        if not bare:
            wanted += [f"error.{name}" for name in names]
        return [name for name in wanted if name in there]

    try:
        all_odd = 0
        for table, batches in part_tables(part, steps, columns):
            # Converted once: of small batches, each by itself would take longer than all the rest.
            texts = {column.name for column in table.schema if pa.types.is_string(column.type)}
            values = {
                name: table[name].to_pylist() if name in texts else table[name].to_numpy()
                for name in table.column_names
            }
            for rows, sizes, count in runs_of(values, batches, joined):
                own = {name: column[rows] for name, column in values.items()}
                known = stage_in(manifest or {}, own["stage"][0] if "stage" in own else None)
                size = known["settings"].get("num_generations")
                # not known, or the run went on with another one, which was accepted
                if size not in sizes:
                    size = int(np.bincount(sizes).argmax())
                if odd := int((sizes != size).sum()):
                    whole = np.tile(np.repeat(sizes == size, sizes), count)
                    own = {
                        name: [*itertools.compress(column, whole)]
                        if name in texts
                        else column[whole]
                        for name, column in own.items()
                    }
                    all_odd += odd
                    if left_out is not None:
                        left_out[part.name] = f"{all_odd} groups that are not of {size} completions"
                if len(own["step"]):
                    yield _batch_of(own, names, size, known, len(own["step"]) // count)
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # another writer's types
        raise RunError(
            f"{shown(part)}: {type(error).__name__}: {error}", rule=WHOLE, remedy=MOVE_IT
        ) from error


def _batch_of(own: Fields, names: list[str], size: int, known: Fields, each: int) -> ScoredBatch:
    from workbench.run.turns import turns_of

    def texts(name: str) -> list[str]:
        return own.get(name, [])

    def numbers(name: str) -> np.ndarray:
        return own[name].astype(np.float64)

    by_name = ((name, float(own[f"weight.{name}"][0])) for name in names)
    weights = {name: weight for name, weight in by_name if weight == weight}
    seen = _each_once(texts("columns"), lambda text: json.loads(text or "{}"))
    columns = {
        name: [row.get(name) for row in seen]
        for name in dict.fromkeys(itertools.chain.from_iterable(seen))
    }
    if any(ids := texts("prompt_id")):
        columns["prompt_id"] = ids
    errors = {
        name: {index: why for index, why in enumerate(texts(f"error.{name}")) if why is not None}
        for name in weights
    }
    settings = known["settings"]
    return ScoredBatch(
        step=int(own["step"][0]),
        stage=next(iter(texts("stage")), None) or "1",
        names=list(weights),
        weights=list(weights.values()),
        num_generations=size,
        prompts=_each_once(texts("prompt"), prompt_of),
        completions=texts("completion"),
        lengths=own["length_tokens"],
        columns=columns,
        scores=np.stack([numbers(f"score.{name}") for name in weights], axis=1),
        groups=Groups(*map(numbers, ("total", "group_mean", "group_std", "advantage"))),
        right=np.ma.masked_array(
            own["right"].astype(bool), [each is None for each in own["right"]]
        ),
        finished=np.array([reason != "length" for reason in texts("finish_reason")]),
        reward_hash=next(iter(texts("reward_hash")), None) or "",
        errors={name: each for name, each in errors.items() if each},
        places=own["group"][::size],
        scale_rewards=settings.get("scale_rewards", "group"),
        aggregation=settings.get("multi_objective_aggregation") or "sum_then_normalize",
        format_by=known["format_by"],
        turns=list(map(turns_of, texts(TURNS))),
        later=own["step"][each::each].tolist(),
    )


def prompt_of(recorded: str) -> Prompt:
    """A prompt as it was recorded: messages as JSON; text as it is, even if it looks like JSON."""
    with contextlib.suppress(ValueError):
        messages = json.loads(recorded) if recorded.startswith("[{") else []
        if messages and all(
            isinstance(message, dict) and "role" in message for message in messages
        ):
            return messages
    return recorded


def unstated_right(manifest: Fields) -> str:
    """What the record counts as right where nobody has defined it, as "format_reward > 0"; empty
    where somebody has.
    """
    about = manifest.get("task") or {}
    # earlier versions could not be told on attach
    taken = about.get("right_by_default", manifest.get("attached"))
    return f"{about['right_by']} > 0" if taken and about.get("right_by") else ""


def qualified(text: str, unstated: str) -> str:
    """A text, with the meaning of 'right' added where it mentions right or wrong completions and
    nobody has defined them.
    """
    if unstated and re.search(r"\b(right|wrong)\b", text):
        return f"{text} ('right' here: {unstated})"
    return text


def stage_in(manifest: Fields, stage: str | None = None) -> Fields:
    """What a manifest holds for one stage: effective `settings`, `rewards`, `task` (its source),
    `right_by` and `format_by`.

    For a run without stages, or a stage that it does not mention: what it holds for the run.
    """
    about, settings = manifest.get("task") or {}, manifest.get("settings") or {}
    own = next((each for each in manifest.get("stages") or [] if each.get("name") == stage), {})
    layers = (settings.get("asked"), settings.get("in_force"), own.get("settings"))
    return {
        "settings": {name: value for layer in layers for name, value in (layer or {}).items()},
        "rewards": own.get("rewards") or manifest.get("rewards") or {},
        "task": own.get("task") or about.get("source"),
        "right_by": own.get("right_by", about.get("right_by")),
        "format_by": own.get("format_by", about.get("format_by")),
    }
