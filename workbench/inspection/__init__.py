"""04: what the run bought, and how it got there."""
