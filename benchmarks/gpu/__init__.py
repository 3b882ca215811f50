"""The GPU suite: what only a GPU can show, and the same at toy size on a CPU. `run.py` is its
command.
"""
