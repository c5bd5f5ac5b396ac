"""A run's work directory, local or in a bucket: files, metrics and owner."""
