"""One completion token by token, under base and trained."""
