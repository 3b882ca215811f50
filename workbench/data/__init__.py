"""01: rows -> a Task's prompts."""
