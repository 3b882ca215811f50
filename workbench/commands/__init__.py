"""The command line, and what only a command does."""
