"""05: a run's policy as files that others can load, with the proof that they hold what was trained.

`making` writes them, `proving` loads each back in a separate process and compares it with the live
policy, `passport` records what they are made of. A proof goes level by level, cheapest first: files
and tensors, token ids, what the artefact writes.
"""
