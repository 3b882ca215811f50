"""Other people's records of a run."""
