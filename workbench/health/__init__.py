"""Is a run ill, and with what: verdicts with evidence, cause and remedy. `examine_run` for a recorded run."""

from workbench.health.diagnosis import diagnose, examine_run, facts_of, worsened
from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, STATES, WARNING, Facts, Verdict

__all__ = [
    "ALARM", "NOTE", "OK", "SKIPPED", "STATES", "WARNING",
    "Facts", "Verdict", "diagnose", "examine_run", "facts_of", "worsened",
]  # fmt: skip
