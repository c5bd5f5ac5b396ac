"""What any process needs: command line, log, signals, and other processes."""
