"""What to be sure of before, during and after a run, ticked from the evidence."""
