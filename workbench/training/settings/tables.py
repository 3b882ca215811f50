"""The tables of settings: what is data, one YAML file for each module that reads it."""

from __future__ import annotations

from pathlib import Path

import yaml

from workbench.kinds import Fields


def read_table(name: str) -> Fields:
    """A whole file of this folder."""
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
