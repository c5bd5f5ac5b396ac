"""Copies what the archive says of its code into the work directory.

    python launch/worker/record.py WORKDIR COMMAND...

writes WORKDIR/launch/TIME-COMMIT/{commit,local.diff,packed,left_out,command}.
WORKDIR may be gs://, as in the run itself; this uses the same library.
"""

import pathlib
import shlex
import sys

from etils import epath

RECORD = pathlib.Path(__file__).parents[2] / 'launch_record'


def record(source: pathlib.Path, workdir: str, command: list[str]) -> str:
  """Writes the record of a launch.

  Args:
    source: `launch_record/` of an unpacked archive of pack.sh.
    workdir: of the run.
    command: what is run.

  Returns:
    The directory that was written.
  """
  packed = (source / 'packed').read_text().strip().replace(':', '')
  commit = (source / 'commit').read_text().strip()
  target = epath.Path(workdir) / 'launch' / f'{packed}-{commit[:12]}'
  target.mkdir(parents=True, exist_ok=True)
  for file in sorted(source.iterdir()):
    (target / file.name).write_bytes(file.read_bytes())
  (target / 'command').write_text(shlex.join(command) + '\n')
  return str(target)


if __name__ == '__main__':
  if len(sys.argv) < 3:
    sys.exit('usage: python record.py WORKDIR COMMAND...')
  if not RECORD.is_dir():
    sys.exit(f'error: no {RECORD}: this code was not packed by pack.sh.')
  print('code recorded in', record(RECORD, sys.argv[1], sys.argv[2:]))
