"""Becomes a run: `python -m vit_jax.sweep.worker PARENT CORES COMMAND...`.

Ties the process to the launcher PARENT and to the cores `0,1`, then turns into
the command, which inherits both. Standard output is the run's log.
"""

import ctypes
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; stays set over exec.


def main(parent: str, cores: str, *command: str) -> None:
  # A run that outlived its launcher would be started a second time by the next.
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() != int(parent):
    sys.exit(75)  # It died before the signal was arranged.
  # One whose launcher was killed may still be saving. The lock is the log's:
  # the command and its children hold it as long as any of them writes there.
  fcntl.flock(sys.stdout, fcntl.LOCK_EX)
  os.set_inheritable(sys.stdout.fileno(), True)
  if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, map(int, cores.split(',')))
  os.execvp(command[0], command)


if __name__ == '__main__':
  main(*sys.argv[1:])
