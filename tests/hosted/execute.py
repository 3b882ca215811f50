"""Run with the Python of the hosted venv: execute notebook IN with its own nbclient and kernel, and write OUT."""

import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

source, out = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
try:
    NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
except CellExecutionError:
    pass  # the cell's error output is in OUT
finally:
    nbformat.write(notebook, out)
