"""Datasets in the hub's layout, from the hub, its cache or a local folder, through `datasets`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.base.errors import DataError
from workbench.base.extras import need
from workbench.base.workspace import shown
from workbench.data.files import choose

_REFUSED = ["DatasetNotFoundError", "HfHubHTTPError", "RepositoryNotFoundError", "GatedRepoError"]
MOVED = {"gsm8k": "openai/gsm8k"}  # names from before the hub asked for an owner


def load(name: str, called: str, subset: str | None = None) -> tuple[Any, list[str]]:
    """(the dataset with all its splits, notes on what was chosen); DataError: missing, out of
    reach, or several subsets.

    `name` is `owner/name`, or the path of a folder; `called`, what messages call it. `subset` None:
    "main", or the only one.
    """
    need("datasets")
    import datasets

    folder = Path(name)
    local = folder.is_dir()
    if local and list(folder.glob("dataset_*.json")):
        return datasets.load_from_disk(name), []
    try:
        with contextlib.ExitStack() as entered:
            entered.enter_context(_quietly(datasets) if local else without_waiting())
            subsets = [subset] if subset else datasets.get_dataset_config_names(name)
            chosen = choose("subset", called, subset, subsets, "main")
            # `datasets` keeps what it read of a folder under the folder's last name: it would
            # answer for a folder that has changed since, and for another one of that name.
            cache = entered.enter_context(tempfile.TemporaryDirectory()) if local else None
            builder = datasets.load_dataset_builder(name, chosen, cache_dir=cache)
            builder.download_and_prepare()
            dataset = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:
        raise _explained(called, folder if local else None, error) from error
    if len(subsets) > 1:
        return dataset, [f"subset {chosen!r} of {', '.join(subsets)}"]
    read = [Path(file) for files in (builder.config.data_files or {}).values() for file in files]
    return dataset, [_which(folder.resolve(), read)] if local and subset is None else []


def _data_files(folder: Path) -> set[Path]:
    kinds = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
    return {file for file in folder.rglob("*") if file.suffix in kinds}


def _which(folder: Path, read: Iterable[Path]) -> str:
    # `datasets` takes the files of one kind that are named after a split, and says nothing of the
    # others.
    def named(files: Iterable[Path]) -> str:
        names = [str(file.relative_to(folder)) for file in sorted(files)]
        return ", ".join([*names[:5], *(["…"] if len(names) > 5 else [])])

    others = _data_files(folder).difference(read)
    left = f"; not from {named(others)}: to read one of those, name it" if others else ""
    return f"read from {named(read)}{left}"


@contextlib.contextmanager
def _quietly(datasets: ModuleType) -> Generator[None]:
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
    kind = type(error).__name__
    value = f"dataset {called!r}: " + f"{kind}: {error}".splitlines()[0][:300]
    network = False
    if isinstance(error, ValueError) and "BuilderConfig" in str(error):
        rule, remedy = "a subset is one of the dataset's", "choose one of those"
    elif folder is not None:
        if cause := error.__cause__:
            value += f" ({type(cause).__name__}: {cause})".splitlines()[0][:300]
        rule = "a folder holds whole data files in the hub's layout (csv, json lines, parquet)"
        remedy = "put the files there, or name one file instead of the folder"
        if files := sorted(_data_files(folder)):
            lists = f"`workbench check {shown(files[0])}` lists what is wrong row by row"
            remedy = f"check its files one by one: {lists}"
    elif kind in _REFUSED:
        rule = "a hub name is owner/name, exactly as on its page"
        remedy = "check the spelling; a private or gated dataset needs HF_TOKEN"
    else:
        value = f"dataset {called!r} is not on this machine, and the hub cannot be reached ({kind})"
        rule = "a dataset that is not here is downloaded from the Hugging Face hub"
        remedy = "connect to the network, or give the path of a local file or folder"
        network = True
    return DataError(value, rule=rule, remedy=remedy, network=network)
