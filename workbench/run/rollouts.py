"""The rollout record: every completion of every group, with what the rewards saw and what they said.

One row a completion, in immutable Parquet parts (one a step), each written beside its place and renamed into it.
Read back with DuckDB, so a query over millions of rows needs no more memory than its answer.

Columns: `step`, `stage`, `group` (index of the prompt within its step), `prompt_id`, `generation` (index within the
group), `prompt` (JSON of the messages, or the text), `completion` (text), `length_tokens`, `finish_reason` ("stop" or
"length"), `columns` (JSON of the dataset columns that the rewards saw), `score.<function>` (None where the function
did not apply), `weight.<function>`, `total`, `group_mean`, `group_std`, `advantage`, `right`, `reward_hash`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.run.errors import RunError
from workbench.run.workspace import shown

if TYPE_CHECKING:
    import pandas

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


def schema(functions: list[str]):
    """The Parquet schema of a run with these reward functions."""
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "string": pa.string(), "float64": pa.float64(), "bool": pa.bool_()}
    fields = [(name, kinds[kind]) for name, kind in _FIXED.items()]
    for function in functions:
        fields += [(f"score.{function}", pa.float64()), (f"weight.{function}", pa.float64())]
    return pa.schema(fields)


def write_part(folder: Path, step: int, rows: list[dict[str, Any]], functions: list[str]) -> Path:
    """Write one step's completions as one immutable part, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    # Several processes may generate for one step (one part a rank), and one step may be generated more than once.
    number = sum(1 for _ in folder.glob(f"step-{step:07d}-*.parquet"))
    part = folder / f"step-{step:07d}-{number:02d}.parquet"
    beside = part.with_name(f".{part.name}.part")
    table = pa.Table.from_pylist([_clean(row) for row in rows], schema=schema(functions))
    pq.write_table(table, beside, compression="zstd")
    os.replace(beside, part)
    return part


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    # A lone surrogate in a completion is legal in Python and not in Parquet's UTF-8.
    return {
        key: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for key, value in row.items()
    }


def query(folder: Path, sql: str = 'select * from rollouts order by step, "group", generation') -> pandas.DataFrame:
    """Ask the record. The table is called `rollouts`; the answer is a pandas frame.

    Raises:
        RunError: if the run recorded nothing.
    """
    import duckdb

    if not any(folder.glob("step-*.parquet")):
        raise RunError(
            f"{shown(folder)}: no rollouts", rule="a run records a part a step", remedy="train for at least one step"
        )
    with duckdb.connect() as connection:
        source = str(folder / "step-*.parquet").replace("'", "''")
        connection.execute(f"create view rollouts as select * from read_parquet('{source}', union_by_name = true)")
        return connection.execute(sql).df()
