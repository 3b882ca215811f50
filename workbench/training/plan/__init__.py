"""What a recipe's settings become: `settings.normalised` is where to begin."""

from workbench.training.plan.batches import Batch, batch, check_prompts, in_words
from workbench.training.plan.device import Machine
from workbench.training.plan.in_force import asked_of, built, check_in_force, in_force_table
from workbench.training.plan.names import overridden, renamed
from workbench.training.plan.settings import check_lengths, field_names, normalised, stages_decide
from workbench.training.plan.values import DEFAULTS, check_values, field_kinds

__all__ = [
    "DEFAULTS", "Batch", "Machine", "asked_of", "batch", "built", "check_in_force", "check_lengths", "check_prompts",
    "check_values", "field_kinds", "field_names", "in_force_table", "in_words", "normalised", "overridden", "renamed",
    "stages_decide",
]  # fmt: skip
