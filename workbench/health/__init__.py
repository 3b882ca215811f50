"""What is wrong with a run: verdicts with evidence, cause and remedy. `examine_run` for a recorded
run.
"""

from workbench.health.diagnosis import Watchdog, config_of, diagnose, examine_run, worsened
from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, STATES, WARNING, RunConfig, Verdict

__all__ = [
    "ALARM", "NOTE", "OK", "SKIPPED", "STATES", "WARNING",
    "RunConfig", "Verdict", "Watchdog", "config_of", "diagnose", "examine_run", "worsened",
]  # fmt: skip
