"""Copies the log of an attempt into the work directory.

    python launch/worker/keep_log.py WORKDIR FILE NAME

writes the last 8 MiB of FILE to WORKDIR/launch/logs/TIME-HOST-NAME.log. WORKDIR
may be gs://, because this uses the same library as the run.
"""

import os
import pathlib
import platform
import sys
import time

from etils import epath

LIMIT = 8 * 2**20  # Bytes.


def keep(workdir: str, file: pathlib.Path, name: str) -> str:
  """Copies the end of a log; returns the path of the copy.

  Args:
    workdir: work directory of the run.
    file: the log.
    name: a name that tells the attempt and its exit code.
  """
  folder = epath.Path(workdir) / 'launch' / 'logs'
  folder.mkdir(parents=True, exist_ok=True)
  moment = time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())
  target = folder / f'{moment}-{platform.node()}-{name}.log'
  with file.open('rb') as source:
    source.seek(max(0, os.path.getsize(file) - LIMIT))
    target.write_bytes(source.read())
  return str(target)


if __name__ == '__main__':
  _, directory, log, attempt = sys.argv
  print('log kept in', keep(directory, pathlib.Path(log), attempt))
