"""A run's directory, on a disk or in a bucket: files, numbers and owner."""
