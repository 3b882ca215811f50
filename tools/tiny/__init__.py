"""The factory of the embedded policy: `python -m tools.tiny.build`, from the root of the
repository.
"""
