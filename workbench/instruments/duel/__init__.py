"""Which recipe is better: runs against runs, seed by seed."""
