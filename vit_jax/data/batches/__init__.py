"""How batches are made: which records, by which threads and processes."""
