"""A job of the suite in a process of its own: `run.py --job ...`, with its words in a log, ended
when its time is over.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from gpu.setting import TOY, Setting

RUN = Path(__file__).with_name("run.py")


def own_process(
    setting: Setting, log: str, *words: str, limit_s: float, **environment: str
) -> tuple[int | None, str]:
    """Run `run.py` with the setting's own options and `words`, and wait for it.

    Args:
        log: name of the file in the work folder that keeps what it prints.
        limit_s: it is killed after so many seconds, with all that it has started.
        environment: variables over this process's own.

    Returns:
        (exit status, None if it was killed; the last lines that it printed).
    """
    command = [
        sys.executable, str(RUN), "--device", setting.device, "--out", str(setting.out), "--work",
            str(setting.work),
        "--minutes", f"{max(limit_s, 1) / 60:.3f}", *(["--toy"] if setting.sizes is TOY else []),
        *(["--fresh"] if setting.fresh else []), *(f"--only={text}" for text in setting.only),
            *words,
    ]  # fmt: skip
    file = setting.work / "logs" / f"{log}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        status: int | None
        try:
            status = process.wait(timeout=max(limit_s, 1))
        except BaseException as error:
            # also an Interrupt of this process: nothing that it started goes on
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return status, "\n".join(lines[-12:])


def _end(process: subprocess.Popen) -> None:
    """Kill a process and all that it has started; kernels and trainers have sessions of their
    own.
    """
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()
