"""A process: its command line, log and signals, and the other processes."""
