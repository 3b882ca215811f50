"""What goes beyond the five stages, a folder each; `base/instruments.py` is their table."""
