"""Every picture, table and progress bar, for the notebooks and the command line; nothing else
imports from here.
"""
