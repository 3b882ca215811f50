"""05: a run's policy as files that others can load, with the proof that they hold what was trained.

`artefacts` makes them, `proving` loads each back in a process of its own and holds it against the live policy, `passport` says
what they are made of. A proof goes from cheap to dear: files and tensors, token ids, what the artefact writes.
"""
