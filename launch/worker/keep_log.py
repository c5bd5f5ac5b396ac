"""Copies the log of an attempt into the work directory.

    python launch/worker/keep_log.py WORKDIR FILE NAME

writes WORKDIR/launch/logs/TIME-HOST-NAME.log, the last 8 MiB of FILE. WORKDIR
may be gs://, as in the run itself; this uses the same library.
"""

import os
import pathlib
import platform
import sys
import time

from etils import epath

LIMIT = 8 * 2**20  # Bytes.


def keep(workdir: str, file: pathlib.Path, name: str) -> str:
  """Copies the end of a log; returns what was written.

  Args:
    workdir: of the run.
    file: the log.
    name: says which attempt it is, and how it ended.
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
  if len(sys.argv) != 4:
    sys.exit('usage: python keep_log.py WORKDIR FILE NAME')
  print(
    'log kept in', keep(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3])
  )
