"""Services for every process: command line, log, signals, other processes."""
