"""The rollout record: every completion of every group, with what the rewards saw and what they said.

One row a completion, in immutable Parquet parts (one a step), each written beside its place and renamed into it.
Read back with DuckDB, so a query over millions of rows needs no more memory than its answer.

Columns: `step`, `stage`, `group` (index of the prompt within its step), `prompt_id`, `generation` (index within the
group), `prompt` (JSON of the messages, or the text), `completion` (text), `length_tokens`, `finish_reason` ("stop" or
"length"), `columns` (JSON of the dataset columns that the rewards saw), `score.<function>` (None where the function
did not apply or failed), `error.<function>` (what it did instead; None if nothing), `weight.<function>`, `total`,
`group_mean`, `group_std`, `advantage`, `right`, `reward_hash`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import RunError
from workbench.workspace import replace_file, shown

if TYPE_CHECKING:
    import pandas
    import pyarrow

_NUMBER = re.compile(r"\d+")
_PLACE = ("step", "group", "generation")
_FIXED = {
    "step": "int32",
    "stage": "string",
    "group": "int32",
    "prompt_id": "string",
    "generation": "int32",
    "prompt": "string",
    "completion": "string",
    "length_tokens": "int32",
    "finish_reason": "string",
    "columns": "string",
    "total": "float64",
    "group_mean": "float64",
    "group_std": "float64",
    "advantage": "float64",
    "right": "bool",
    "reward_hash": "string",
}


def schema(functions: list[str]) -> pyarrow.Schema:
    """The Parquet schema of a run with these reward functions."""
    return _schema(tuple(functions))


@functools.lru_cache(maxsize=16)
def _schema(functions: tuple[str, ...]) -> pyarrow.Schema:
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "string": pa.string(), "float64": pa.float64(), "bool": pa.bool_()}
    fields = [(name, kinds[kind]) for name, kind in _FIXED.items()]
    for function in functions:
        fields += [(f"score.{function}", pa.float64()), (f"weight.{function}", pa.float64())]
        fields += [(f"error.{function}", pa.string())]
    return pa.schema(fields)


def write_part(folder: Path, step: int, columns: Mapping[str, Sequence[Any]], functions: list[str]) -> Path:
    """Write one step's completions as one immutable part, whole or not at all.

    Args:
        columns: by name, one value a completion; NaN in a column of numbers stands for none. One that is left out is empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Several processes may generate for one step (one part a rank), and one step may be generated more than once.
    number = 0
    while (part := folder / f"step-{step:07d}-{number:02d}.parquet").exists():
        number += 1
    made = schema(functions)
    count = len(next(iter(columns.values())))
    arrays = [_array(columns.get(field.name), field.type, count) for field in made]
    # A part has a few dozen rows, and a run thousands of parts: what pays in large files costs here.
    table = pa.Table.from_arrays(arrays, schema=made)
    with replace_file(part) as beside:
        pq.write_table(table, beside, compression="zstd", use_dictionary=False, write_statistics=["step"])
    return part


def _array(values: Sequence[Any] | None, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    import pyarrow as pa

    if values is None:
        return pa.nulls(count, kind)
    try:
        return pa.array(values, kind, from_pandas=True)
    except UnicodeEncodeError:
        # A lone surrogate in a completion is legal in Python and not in Parquet's UTF-8.
        return pa.array([value if value is None else _encodable(value) for value in values], kind)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def query(
    folder: Path, sql: str = 'select * from rollouts order by step, "group", generation', *, step: int | None = None
) -> pandas.DataFrame:
    """Ask the record. The table is called `rollouts`; the answer is a pandas frame.

    Args:
        step: the only step that the question is about: a record of thousands of parts need not be opened for one.

    Raises:
        RunError: if the run recorded nothing.
    """
    import duckdb

    parts(folder)
    own = "step-*.parquet" if step is None else f"step-{int(step):07d}-*.parquet"
    asked = own if any(folder.glob(own)) else "step-*.parquet"
    with duckdb.connect() as connection:
        source = str(folder / asked).replace("'", "''")
        connection.execute(f"create view rollouts as select * from read_parquet('{source}', union_by_name = true)")
        return connection.execute(sql).df()


def parts(folder: Path) -> list[Path]:
    """The record's parts, in the order of their steps.

    Raises:
        RunError: if the run recorded nothing.
    """
    found = sorted(
        folder.glob("step-*.parquet"), key=lambda part: [int(number) for number in _NUMBER.findall(part.stem)]
    )
    if not found:
        raise RunError(
            f"{shown(folder)}: no rollouts", rule="a run records a part a step", remedy="train for at least one step"
        )
    return found


def rows_in(part: Path) -> int:
    """Number of completions in a part, from its footer.

    Raises:
        RunError: if it is not a whole Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(part).num_rows
    except (pa.ArrowException, OSError) as error:
        raise _torn(part, error) from None


def whole_groups(part: Path, columns: list[str], about: int | None = 4096) -> Iterator[pyarrow.Table]:
    """These columns of a part, in tables of `about` rows that never cut a group in two; None: the whole part in one.

    `step`, `group` and `generation` always come with them.

    Raises:
        RunError: if it is not a whole Parquet file, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(part) as file:
            wanted = [*_PLACE, *(name for name in columns if name not in _PLACE)]
            if missing := [name for name in wanted if name not in file.schema_arrow.names]:
                raise RunError(
                    f"{shown(part)}: no column {missing[0]!r}",
                    rule="every part of the record has the columns of its run",
                    remedy="move that file out of the folder; the other parts are whole by themselves",
                )
            rest, left = None, file.metadata.num_rows
            if about is None:
                yield file.read(columns=wanted)
                return
            for batch in file.iter_batches(batch_size=about, columns=wanted):
                table = pa.Table.from_batches([batch])
                table = pa.concat_tables([rest, table]).combine_chunks() if rest is not None else table
                left -= len(batch)
                # The last group may go on in the next batch.
                whole = int(group_starts(table)[-1]) if left else len(table)
                if whole:
                    yield table.slice(0, whole)
                rest = table.slice(whole)
    except (pa.ArrowException, OSError) as error:
        raise _torn(part, error) from None


def group_starts(table: pyarrow.Table) -> np.ndarray:
    """Row numbers at which a group begins; the rows of a group lie together, its generations in order."""
    step, group, generation = (table.column(name).to_numpy() for name in _PLACE)
    if not len(table):
        return np.zeros(0, dtype=int)
    begins = (np.diff(step) != 0) | (np.diff(group) != 0) | (np.diff(generation) <= 0)
    return np.concatenate([[0], np.flatnonzero(begins) + 1])


def _torn(part: Path, error: Exception) -> RunError:
    return RunError(
        f"{shown(part)}: {str(error).splitlines()[0]}",
        rule="a part of the record is a whole Parquet file",
        remedy="move that file out of the folder; the other parts are whole by themselves",
    )
