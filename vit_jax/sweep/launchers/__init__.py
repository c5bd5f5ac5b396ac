"""Where the runs of a sweep run.

Each launcher is a class with these members:

  slots            the number of runs at a time
  interval         seconds between polls
  survives         whether runs continue when this process dies
  start(run)       starts a run; returns a handle, which is kept on disk
  poll(handle)     returns the exit code, negative for a signal; None during the
                   run
  stop(handle)     asks a run to save and to end
"""
