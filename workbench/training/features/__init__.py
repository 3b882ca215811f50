"""The features around a run. Their hooks are called in this order: ratios are taken of what
`Unpadded` puts in the trainer's place, for one.
"""

from workbench.base.instruments import plugged
from workbench.training.feature import Feature
from workbench.training.features.adaptive import Adaptive
from workbench.training.features.difficulty import MeasuredDifficulty
from workbench.training.features.fitting import MemoryFit
from workbench.training.features.held_out import HeldOut
from workbench.training.features.ratios import RatioWatch
from workbench.training.features.trackers import Trackers
from workbench.training.features.turns import Turns
from workbench.training.features.warm_start import WarmStart
from workbench.training.features.watchdog import HealthWatch

FEATURES: tuple[type[Feature], ...] = (
    MeasuredDifficulty,
    Turns,
    *plugged("features").values(),
    HealthWatch,
    Adaptive,
    RatioWatch,
    MemoryFit,
    WarmStart,
    HeldOut,
    Trackers,
)
