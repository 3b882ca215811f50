"""What made a hack grow: the same run without the suspect."""
