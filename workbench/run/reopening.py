"""What a run that resumes takes out of its record, kept aside until a new step is on record.

`.before` holds copies of what the first new step changes, and what was recorded after the
checkpoint; on the way back it is called `.put-back`. Each move is a rename, so that after a kill at
any moment the run can be put back as it was, byte by byte.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from workbench.base.kinds import Fields
from workbench.base.workspace import renamed, replace_folder, write_json
from workbench.run.parts import cut_short

_NAMES = "names.json"
# by the first new step
_CHANGED = ("manifest.json", "recipe.yaml", "metrics.jsonl", "events.jsonl", "held_out", "tasks")
_FOLDERS = ("rollouts", "checkpoints", "held_out", "tasks")


def removed(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Aside:
    """What was taken out of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aside, self.back = folder / ".before", folder / ".put-back"

    @property
    def kept(self) -> bool:
        """Whether anything is kept aside."""
        return self.aside.is_dir() or self.back.is_dir()

    def take_out(self, step: int) -> None:
        """Take out what was recorded after `step`, and copy what the next step changes."""
        with replace_folder(self.aside) as staged:
            for each in filter(Path.exists, map(self.folder.joinpath, _CHANGED)):
                (shutil.copytree if each.is_dir() else shutil.copy2)(each, staged / each.name)
            names: Fields = {}
            for name in _FOLDERS:
                (staged / name).mkdir(exist_ok=True)
                names[name] = [each.name for each in (self.folder / name).glob("*")]
            write_json(staged / _NAMES, names)
        checkpoints = self.folder / "checkpoints"
        torn = checkpoints.glob(".*.part")  # by a kill
        later = [
            each
            for kind in ("checkpoint", "best")
            for each in checkpoints.glob(f"{kind}-*")
            if (number := each.name.rpartition("-")[2]).isdecimal() and int(number) > step
        ]
        for each in [*torn, *later]:
            renamed(each, self.aside / "checkpoints" / each.name)
        cut_short(self.folder / "rollouts", step, self.aside / "rollouts")

    def drop(self) -> None:
        """Remove it: it is no longer needed."""
        gone = self.aside.with_suffix(".part")
        if self.aside.is_dir():
            renamed(self.aside, gone)  # at once: half of it could not be put back
        shutil.rmtree(gone, ignore_errors=True)

    def put_back(self) -> None:
        """Restore the run, byte by byte, to before. After a kill, call it again."""
        if self.aside.is_dir():
            for folder, names in json.loads((self.aside / _NAMES).read_bytes()).items():
                for each in (self.folder / folder).glob("*"):
                    # made since
                    if each.name not in names or (self.aside / folder / each.name).exists():
                        removed(each)
            renamed(self.aside, self.back)
        if self.back.is_dir():
            files = [each for each in map(self.back.joinpath, _CHANGED) if each.is_file()]
            for each in [*self.back.glob("*/*"), *files]:
                place = self.folder / each.relative_to(self.back)
                place.parent.mkdir(exist_ok=True)
                renamed(each, place)
            shutil.rmtree(self.back)
