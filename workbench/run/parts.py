"""The files of a rollout record: immutable Parquet parts, one per batch; those of older steps are
merged.

`step-0000007-00.parquet` is the first batch of step 7; `step-0000001-to-0000250.parquet` holds all
batches of these steps, and says in its metadata which rows are whose. A part that a merged one also
holds is not read: a kill came before its deletion.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Container, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workbench.base.errors import RunError
from workbench.base.workspace import renamed, replace_file, shown

MERGE = 250  # steps that a merged part holds
WHOLE = "a part of the record is a whole Parquet file"
MOVE_IT = "move that file out of the folder; the other parts do not need it"
# what pays in large files costs here
STORED = {"compression": "zstd", "use_dictionary": False, "write_statistics": ["step"]}
_LARGEST = 2**20  # completions of a batch: what does not fit into memory is not read
_NAME = re.compile(r"step-\d+-(to-)?\d+\.parquet")
_ROWS = 2048  # of a row group, at least: smaller ones take longer to find than to read


def span(part: str | Path) -> tuple[int, int, int]:
    """(first step, last step, number of the batch within its step; -1: a merged part), from a
    part's name.
    """
    first, second = (int(number) for number in re.findall(r"\d+", Path(part).stem))
    return (first, second, -1) if "-to-" in Path(part).stem else (first, first, second)


def parts(
    folder: Path, steps: Container[int] | None = None, held: list[Path] | None = None
) -> list[Path]:
    """The record's parts in the order of their steps; those with one of `steps`, or all. RunError
    if nothing was recorded.

    Those that a merged part also holds are not among them; they are added to `held`.
    """
    spans = {
        part: span(part) for part in folder.glob("step-*.parquet") if _NAME.fullmatch(part.name)
    }
    if not spans:
        raise RunError(
            f"{shown(folder)}: no rollouts",
            rule="a run records a part per step",
            remedy="train for at least one step",
        )
    found, merged_to = [], -1
    for part in sorted(spans, key=lambda part: (spans[part][0], -spans[part][1], spans[part][2])):
        first, last, number = spans[part]
        if last <= merged_to:
            held is None or held.append(part)
        elif steps is None or any(step in steps for step in range(first, last + 1)):
            found.append(part)
        merged_to = max(merged_to, last if number < 0 else -1)
    return found


@contextlib.contextmanager
def opened(part: Path) -> Generator[tuple[Any, list[tuple[str, int]]]]:
    """A part's `ParquetFile`, and its contents: (name of a batch's own part, rows), in order.
    RunError if it is not whole.

    For a part that was merged after it was listed: the merged one's file, in which the other
    batches have no name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with contextlib.ExitStack() as stack:
            try:
                file, gone = stack.enter_context(pq.ParquetFile(part)), False
            except FileNotFoundError:
                merged = next(iter(parts(part.parent, [span(part)[0]])), part)
                file, gone = stack.enter_context(pq.ParquetFile(merged)), True
            holds = json.loads((file.metadata.metadata or {}).get(b"holds", b"0")) or [
                (part.name, file.metadata.num_rows)
            ]
            if max(rows for _, rows in holds) > _LARGEST:  # a small file may hold billions
                raise pa.ArrowInvalid(f"a batch of more than {_LARGEST:,} completions")
            yield file, [("" if gone and name != part.name else name, rows) for name, rows in holds]
    except (pa.ArrowException, OSError) as error:
        raise RunError(
            f"{shown(part)}: {str(error).splitlines()[0]}", rule=WHOLE, remedy=MOVE_IT
        ) from None


def part_tables(
    part: Path,
    steps: Container[int] | None = None,
    columns: Callable[[list[str]], list[str]] = list,
) -> Iterator[tuple[Any, list[tuple[str, slice]]]]:
    """A part, a few thousand rows at a time: (Arrow table of the `columns`, [(name, rows) of each
    batch of `steps`]).
    """
    with opened(part) as (file, holds):
        chosen, batches = columns(file.schema_arrow.names), iter(holds)
        if len(holds) == 1:
            yield file.read(columns=chosen), [(name, slice(0, rows)) for name, rows in holds]
            return
        for group in range(file.num_row_groups):
            own, end = [], 0
            while end < file.metadata.row_group(group).num_rows:
                name, rows = next(batches)
                if name and (steps is None or span(name)[0] in steps):
                    own.append((name, slice(end, end + rows)))
                end += rows
            if own:
                yield file.read_row_group(group, columns=chosen), own


def runs_of(
    values: dict[str, Any], batches: list[tuple[str, slice]], joined: bool
) -> Iterator[tuple[slice, np.ndarray, int]]:
    """Batches in a row that have the same functions, weights, stage and sizes, or each by itself:
    (their rows, sizes of the groups of one, how many they are); `values`: the part's columns.
    """
    # The rows of a group lie together, its generations in order.
    step, group, generation = (np.diff(values[name]) for name in ("step", "group", "generation"))
    starts = (step != 0) | (group != 0) | (generation <= 0)
    shared = [name for name in values if name.startswith(("stage", "weight."))]
    kinds = []
    for _, rows in batches:
        if rows.stop > rows.start:
            within = np.flatnonzero(starts[rows.start : rows.stop - 1]) + 1
            sizes = np.diff([0, *within, rows.stop - rows.start]).tolist()
            alike = [str(values[name][rows.start]) for name in shared] if joined else rows.start
            kinds.append(((sizes, alike), rows))
    for (sizes, _), run in itertools.groupby(kinds, lambda each: each[0]):
        first, *later = (rows for _, rows in run)
        yield (
            slice(first.start, first.stop + sum(sizes) * len(later)),
            np.array(sizes),
            1 + len(later),
        )


def merge(folder: Path, until: int) -> None:
    """Merge the parts of the steps up to `until`, `MERGE` steps at a time, where they have the same
    columns.

    Parts that cannot be read or written stay as they are.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def block(own: list[Path]) -> Any:  # that the parts of a step go into; None: they stay
        first, _, number = span(own[0])
        with contextlib.suppress(pa.ArrowException, OSError):
            kinds = (
                {str(pq.read_schema(part)) for part in own}
                if number >= 0 and first <= until
                else ()
            )
            return ((first - 1) // MERGE, *kinds) if len(kinds) == 1 else None

    held: list[Path] = []
    by_step = [
        list(own)
        for _, own in itertools.groupby(parts(folder, held=held), key=lambda part: span(part)[0])
    ]
    for alike, some in itertools.groupby(by_step, key=block):
        own = list(itertools.chain.from_iterable(some))
        if alike and len(own) > 1:
            with contextlib.suppress(RunError, pa.ArrowException, OSError):
                _write_merged(own)
                held += own
    for part in held:
        part.unlink(missing_ok=True)


def cut_short(folder: Path, step: int, aside: Path) -> None:
    """Move what was recorded after `step` to `aside`. RunError if a merged part that reaches past
    it is not whole.
    """
    for part in sorted(folder.glob("step-*.parquet")):
        if _NAME.fullmatch(part.name) and span(part)[1] > step:
            if span(part)[0] <= step:
                _write_merged([part], range(step + 1))
            renamed(part, aside / part.name)


def _write_merged(own: list[Path], steps: Container[int] | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(own[-1]) as (file, inside):
        schema = file.schema_arrow.remove_metadata()
        last = [span(name)[0] for name, _ in inside if steps is None or span(name)[0] in steps][-1]
    merged = own[0].with_name(f"step-{span(own[0])[0]:07d}-to-{last:07d}.parquet")
    holds, group = [], []
    with replace_file(merged) as beside, pq.ParquetWriter(beside, schema, **STORED) as writer:
        for table, batches in itertools.chain.from_iterable(
            part_tables(part, steps) for part in own
        ):
            for name, rows in batches:
                group.append(table[rows])
                holds.append((name, len(group[-1])))
                if sum(map(len, group)) >= _ROWS:
                    writer.write_table(pa.concat_tables(group), row_group_size=1 << 26)
                    group = []
        if group:
            writer.write_table(pa.concat_tables(group), row_group_size=1 << 26)
        writer.add_key_value_metadata({"holds": json.dumps(holds)})
