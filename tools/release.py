"""Whether a tag may be published: `python tools/release.py v0.1.0` says what does not agree with
it, and exits with 1.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def wrong(tag: str, root: Path = ROOT) -> list[str]:
    """What stands against publishing `tag` from this tree: its version, its section in the
    changelog, the repository's address.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, address = project["version"], project["urls"]["Repository"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    first = next(iter(re.findall(r"(?m)^## (.*)$", changelog)), "no section")
    reasons = []
    if tag != f"v{version}":
        reasons.append(f"tag {tag}: the version in pyproject.toml is {version}")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", first):
        reasons.append(f"CHANGELOG.md begins with '{first}': write '{version} (YEAR-MONTH-DAY)'")
    if "/OWNER/" in address:
        reasons.append(f"Repository = {address}: set it, then run tools/setup_cell.py")
    return reasons


if __name__ == "__main__":
    reasons = wrong(sys.argv[1])
    print(*reasons, sep="\n", file=sys.stderr)
    sys.exit(int(bool(reasons)))
