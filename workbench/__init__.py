"""The GRPO workbench: five notebooks, and the small package beneath them.

The folders carry the notebooks' names, and imports go one way::

    run <- dataset <- rewards <- tiny <- tasks <- train <- (inspection, export) <- views <- cli, notebooks

Importing this package imports no library; each stage brings its own when it is used.
"""

import os

__version__ = "0.1.0"

# OpenMP threads that wait by spinning fight over the cores with whatever else runs: with one other busy process on two
# cores, sampling from the embedded policy was measured ten times slower than with threads that soon go to sleep, and
# with both cores free it is as fast. The variables are read once, when torch loads OpenMP, so they are set here, before
# anything can have loaded it; a value that is set already is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
