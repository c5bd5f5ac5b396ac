"""Becomes a run: ties this process to its launcher, then runs a command.

  python -m vit_jax.sweep.launchers.worker PARENT CORES COMMAND...

This process ends with the launcher PARENT, and uses only CORES, such as `0,1`.
The command inherits both. Standard output is the run's log.
"""

import ctypes
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; stays set over exec.


def main(parent: str, cores: str, *command: str) -> None:
  # If a run outlived its launcher, the next launcher would start it twice.
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() != int(parent):
    sys.exit(75)  # The launcher died before prctl took effect.
  # An earlier process of this run may still be saving, so wait for its lock on
  # the log. The command and its children hold the lock as long as they live.
  fcntl.flock(sys.stdout, fcntl.LOCK_EX)
  os.set_inheritable(sys.stdout.fileno(), True)
  if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, map(int, cores.split(',')))
  os.execvp(command[0], command)


if __name__ == '__main__':
  main(*sys.argv[1:])
