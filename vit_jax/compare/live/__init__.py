"""A live page of runs in progress, for a browser on this machine."""
