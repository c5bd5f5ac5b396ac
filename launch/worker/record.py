"""Copies launch_record/, which describes the code, to the work directory.

    python launch/worker/record.py WORKDIR COMMAND...

writes WORKDIR/launch/TIME-COMMIT/{commit,local.diff,packed,left_out,command}.
The same code with another command adds command_2, and so on. WORKDIR may be
gs://, because this uses the same library as the run.
"""

import itertools
import os
import pathlib
import shlex
import sys

from etils import epath

RECORD = pathlib.Path(__file__).parents[2] / 'launch_record'


def record(source: pathlib.Path, workdir: str, command: list[str]) -> str:
  """Writes the record of a launch; returns the directory of the record.

  Args:
    source: `launch_record/` of an unpacked archive of pack.sh.
    workdir: work directory of the run.
    command: the command that is run.
  """
  packed = (source / 'packed').read_text().strip().replace(':', '')
  commit = (source / 'commit').read_text().strip()
  target = epath.Path(workdir) / 'launch' / f'{packed}-{commit[:12]}'
  target.mkdir(parents=True, exist_ok=True)
  for file in sorted(source.iterdir()):
    (target / file.name).write_bytes(file.read_bytes())
  text = shlex.join(command) + '\n'
  for number in itertools.count(1):
    file = target / ('command' if number == 1 else f'command_{number}')
    if not file.exists():
      file.write_text(text)
      break
    # A restart repeats the command and is not a new launch.
    if file.read_text() == text:
      break
  return str(target)


def check_mount(workdir: str, mounts: str) -> None:
  """Checks that a work directory is not in a mounted bucket.

  Args:
    workdir: work directory of the run.
    mounts: the text of /proc/mounts on this machine.

  Raises:
    ValueError: it lies in a mount of Cloud Storage FUSE.
  """
  if '://' in workdir:
    return
  path = pathlib.Path(os.path.realpath(workdir))
  # Use the deepest mount point that contains the path. If several mounts share
  # it, use the last one.
  table = [line.split()[:3] for line in mounts.splitlines()]
  above = [mount for mount in table if path.is_relative_to(mount[1])]
  above.sort(key=lambda mount: len(pathlib.Path(mount[1]).parts))
  source, _, kind = above[-1]
  if kind == 'fuse.gcsfuse':
    raise ValueError(
      f'--workdir={workdir} lies in the mounted bucket {source!r}, where'
      ' saving is not safe, as it renames a directory. Expected'
      f' --workdir=gs://{source}/..., which needs no mount.'
    )


if __name__ == '__main__':
  if not RECORD.is_dir():
    sys.exit(
      f'error: {RECORD} is missing: this code was not packed by pack.sh.'
    )
  try:
    check_mount(sys.argv[1], pathlib.Path('/proc/mounts').read_text())
  except ValueError as error:
    sys.exit(f'error: {error}')
  print('code recorded in', record(RECORD, sys.argv[1], sys.argv[2:]))
