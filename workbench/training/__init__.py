"""03: load a policy, plan a run, train it, and leave its record."""
