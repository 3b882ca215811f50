"""05: the trained policy as files that others can load, with the proof that they hold the trained adapter."""
