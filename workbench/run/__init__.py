"""What a run leaves on disk, and the words for it: the only thing that the stages share.

Knows no torch, no trl, no unsloth.
"""
