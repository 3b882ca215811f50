"""Old and new advantages of every completion, in a Parquet file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import RunError
from workbench.replaying.comparing import Compared

if TYPE_CHECKING:
    import pyarrow


_WRITTEN_AT_ONCE = 65_536


class SideBySide:
    """A Parquet file of old and new, written beside its place and renamed into it when all went well."""

    def __init__(self, file: Path, rollouts: Path, old_names: list[str], new_names: list[str]) -> None:
        if file.is_dir() or file.resolve().parent == rollouts.resolve():
            raise RunError(
                f"out = {file}: " + ("a folder" if file.is_dir() else "among the run's own parts"),
                rule="a replay is written into a file of its own, and never into the record",
                remedy="choose another file",
            )
        self.file, self.beside = file, file.with_name(f".{file.name}.part")
        self.old_names, self.new_names = old_names, new_names
        self._writer: Any = None
        self._held: list[pyarrow.Table] = []

    def __enter__(self) -> SideBySide:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"out = {self.file}: {error}", rule="a file is written into a folder", remedy="choose another file"
            ) from error
        return self

    def add(self, found: Compared) -> None:
        """Add a block's rows."""
        import pyarrow as pa

        block = found.block
        old_names, new_names = [*self.old_names, None], [*self.new_names, None]  # -1 is the last
        size = len(block.completions) // len(found.old_dead)
        by_group = {
            "old_dead": found.old_dead,
            "new_dead": found.new_dead,
            "old_decider": [old_names[index] for index in found.old_deciders],
            "new_decider": [new_names[index] for index in found.new_deciders],
        }
        columns = {
            **{name: pa.array(block.places[name], kind()) for name, kind in _places(pa).items()},
            "old_total": pa.array(block.totals, pa.float64(), from_pandas=True),  # NaN: no function applied
            "new_total": pa.array(found.new.totals, pa.float64(), from_pandas=True),
            "old_advantage": pa.array(block.advantages),
            "new_advantage": pa.array(found.new.advantages),
            **{
                name: pa.array([value for value in values for _ in range(size)], pa.string())
                for name, values in by_group.items()
            },
        }
        self._held.append(pa.table(columns))
        if sum(map(len, self._held)) >= _WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._held:
            return
        table = pa.concat_tables(self._held)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.beside, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._held.clear()

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self._write()
            if self._writer is not None:
                self._writer.close()
            if kind is None:
                os.replace(self.beside, self.file)
        finally:
            self.beside.unlink(missing_ok=True)


def _places(pa: Any) -> dict[str, Any]:
    return {"step": pa.int32, "group": pa.int32, "generation": pa.int32, "prompt_id": pa.string}
