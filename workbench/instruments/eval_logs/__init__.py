"""An evaluation as a log of inspect_ai."""
