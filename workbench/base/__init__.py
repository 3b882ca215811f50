"""What all of the package stands on: files and folders, errors, progress, processes, caches."""
