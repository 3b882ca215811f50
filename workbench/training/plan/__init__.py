"""Settings: what was asked, under today's names, checked, and what is in force. `normalised` is where to begin."""

from workbench.training.plan.advice import stages_decide
from workbench.training.plan.batches import Arithmetic, Batch, arithmetic, batch, check_prompts, in_words
from workbench.training.plan.device import Machine
from workbench.training.plan.in_force import STAGES, Row, asked_of, built, check_in_force, in_force_table
from workbench.training.plan.names import ALIASES, ELSEWHERE, MOVED, nearest, renamed, translated
from workbench.training.plan.overrides import overridden
from workbench.training.plan.settings import check_lengths, field_names, normalised, settings
from workbench.training.plan.values import CHOICES, DEFAULTS, check_values, field_kinds

__all__ = [
    "ALIASES",
    "CHOICES",
    "DEFAULTS",
    "ELSEWHERE",
    "MOVED",
    "STAGES",
    "Arithmetic",
    "Batch",
    "Machine",
    "Row",
    "arithmetic",
    "asked_of",
    "batch",
    "built",
    "check_in_force",
    "check_lengths",
    "check_prompts",
    "check_values",
    "field_kinds",
    "field_names",
    "in_force_table",
    "in_words",
    "nearest",
    "normalised",
    "overridden",
    "renamed",
    "settings",
    "stages_decide",
    "translated",
]
