"""Datasets in the hub's layout, from the hub, its cache or a local folder, through `datasets`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from workbench.data.files import choose
from workbench.errors import DataError
from workbench.workspace import shown

MOVED = {"gsm8k": "openai/gsm8k"}  # names from before the hub asked for an owner


def load(name: str, called: str, subset: str | None = None) -> tuple[Any, list[str]]:
    """(the dataset with all its splits, notes on what was chosen); DataError: missing, out of
    reach, or several subsets.

    `name` is `owner/name`, or the path of a folder; `called`, what messages call it. `subset` None:
    "main", or the only one.
    """
    import datasets

    folder = Path(name) if Path(name).is_dir() else None
    try:
        if folder is not None and any(
            (folder / f).is_file() for f in ("dataset_info.json", "dataset_dict.json")
        ):
            return datasets.load_from_disk(name), []
        with _quietly(datasets) if folder is not None else without_waiting():
            subsets = datasets.get_dataset_config_names(name) if subset is None else [subset]
            chosen = choose("subset", called, subset, subsets, "main")
            cache = _own_cache(folder) if folder is not None else None
            found = datasets.load_dataset(name, chosen, cache_dir=cache)
            notes = [f"subset {chosen!r} of {', '.join(subsets)}"] if len(subsets) > 1 else []
            if folder is not None and subset is None and not notes:
                read = (
                    datasets.load_dataset_builder(name, chosen, cache_dir=cache).config.data_files
                    or {}
                )
                notes = [
                    _which(
                        folder.resolve(), {Path(file) for files in read.values() for file in files}
                    )
                ]
    except DataError:
        raise
    except Exception as error:
        raise _explained(called, folder, error) from error
    return found, notes


def _data_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in (".jsonl", ".json", ".csv", ".tsv", ".parquet")
    )


def _which(folder: Path, read: set[Path]) -> str:
    # `datasets` takes the files of one kind that are named after a split, and says nothing of the
    # others.
    def named(files: list[Path]) -> str:
        return ", ".join(str(file.relative_to(folder)) for file in files[:5]) + (
            ", …" if len(files) > 5 else ""
        )

    left = [file for file in _data_files(folder) if file not in read]
    return f"read from {named(sorted(read))}" + (
        f"; not from {named(left)}: to read one of those, name it" if left else ""
    )


def _own_cache(folder: Path) -> str:
    # `datasets` keeps what it read of a folder under the folder's last name: it would answer for a
    # folder that has changed since, and for another one of that name. So each state of each folder
    # has a separate cache.
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = hashlib.sha256(repr((str(folder.resolve()), state)).encode()).hexdigest()[:16]
    return str(
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "grpo-workbench"
        / "datasets"
        / name
    )


@contextlib.contextmanager
def _quietly(datasets: Any) -> Generator[None]:
    # A bar is a widget, and a widget in a saved notebook is an empty place.
    shown_before = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown_before:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def without_waiting() -> Generator[None]:
    """Where the hub cannot be reached, ask its cache alone, instead of the hub five times over half
    a minute.
    """
    import datasets.config
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        HfApi(endpoint=constants.ENDPOINT).dataset_info("openai/gsm8k", timeout=10)
    except HfHubHTTPError:
        pass  # it answered
    except Exception:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _explained(called: str, folder: Path | None, error: Exception) -> DataError:
    kind, network = type(error).__name__, False
    value = f"dataset {called!r}: " + f"{kind}: {error}".splitlines()[0][:300]
    if isinstance(error, ValueError) and "BuilderConfig" in str(error):
        rule, remedy = "a subset is one of the dataset's", "choose one of those"
    elif folder is not None:
        cause, files = error.__cause__, _data_files(folder)
        value += f" ({type(cause).__name__}: {cause})".splitlines()[0][:300] if cause else ""
        rule = "a folder holds whole data files in the hub's layout (csv, json lines, parquet)"
        remedy = "put the files there, or name one file instead of the folder"
        if files:
            remedy = (
                f"check its files one by one: `workbench check {shown(files[0])}` lists what is"
                " wrong row by row"
            )
    elif kind in (
        "DatasetNotFoundError",
        "HfHubHTTPError",
        "RepositoryNotFoundError",
        "GatedRepoError",
    ):
        rule = "a hub name is owner/name, exactly as on its page"
        remedy = "check the spelling; a private or gated dataset needs HF_TOKEN"
    else:
        value = f"dataset {called!r} is not on this machine, and the hub cannot be reached ({kind})"
        rule = "a dataset that is not here is downloaded from the Hugging Face hub"
        remedy, network = "connect to the network, or give the path of a local file or folder", True
    return DataError(value, rule=rule, remedy=remedy, network=network)
