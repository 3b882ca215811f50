"""02: completions -> numbers."""
