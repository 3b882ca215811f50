"""What a run leaves on disk, and the words for it: all that the stages share. It knows no torch, no
trl, no unsloth.
"""
