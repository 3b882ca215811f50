"""02: can the rewards pay, and what would a cheat earn?"""
