"""Records the code, libraries and devices of each launch in the work directory.

`WORKDIR/environment.jsonl` has a line for each launch that had steps to do, so
it shows whether a run was resumed with other code. `WORKDIR/requirements.txt`
lists all that was installed at the newest launch, for pip. Earlier lists are in
`requirements_1.txt` and so on, oldest first. launch/worker/setup.sh can install
exactly these versions.
"""

import contextlib
import itertools
import json
import shlex
import time
from typing import Any

import jax
from absl import logging
from etils import epath

import vit_jax
from vit_jax.runtime import errors, installed, json_text
from vit_jax.workdir import files

FILE = 'environment.jsonl'
REQUIREMENTS = 'requirements.txt'


def write(
  workdir: epath.PathLike, step: int, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Adds a line for this launch; call this only in process 0.

  If the previous launch had other devices or another mesh, a warning says what
  that changes. If the directory cannot be written, this only warns, because
  other files of the run raise the error.

  Args:
    workdir: an existing directory.
    step: the step that the launch starts from.
    mesh: the device mesh.

  Returns:
    The line: `time` (UTC), `step`, `commit` (see `installed.commit`), versions,
    the devices and the number of processes.
  """
  device = mesh.devices.flat[0]
  line = {
    'time': _now(),
    'step': step,
    'commit': installed.commit(),
    'vit_jax': vit_jax.__version__,
    **installed.versions(),
    'platform': device.platform,
    'runtime': device.client.platform_version,
    'device_kind': device.device_kind,
    'devices': mesh.size,
    'mesh': dict(mesh.shape),
    'processes': jax.process_count(),
  }
  # Writes the whole file again, because object stores cannot append. It is
  # short. Damaged lines are dropped.
  earlier = read(workdir)
  text = ''.join(json.dumps(old) + '\n' for old in [*earlier, line])
  if _write(epath.Path(workdir) / FILE, text) and earlier:
    _tell_other_devices(earlier[-1], line)
  return line


def _write(path: epath.Path, text: str) -> bool:
  """Writes a file, or warns; returns whether that worked."""
  try:
    with files.atomic(path) as temporary:
      temporary.write_text(text)
  except OSError as error:
    logging.warning('%s was not written: %s', path, errors.described(error))
    return False
  return True


def _tell_other_devices(old: dict[str, Any], now: dict[str, Any]) -> None:
  """Warns if other devices change the numbers of the run."""
  keys = ('platform', 'device_kind', 'devices', 'mesh', 'processes')
  differing = [k for k in keys if k in old and old[k] != now[k]]
  if differing:
    logging.warning(
      'This launch has other devices than the one before (%s). From step %d on'
      ' rounding differs, because sums have another order. With dropout and'
      " dropout_rng='rbg' the masks differ, too. Images and their order do not"
      ' change.',
      '; '.join(f'{k} {old[k]}, now {now[k]}' for k in differing),
      now['step'],
    )


def write_requirements(workdir: epath.PathLike, step: int) -> str:
  """Writes the list of installed libraries; call this only in process 0.

  If the file lists another environment, a warning says what changed, and the
  earlier file is kept under another name. If the directory cannot be written,
  this only warns.

  Args:
    workdir: an existing directory.
    step: the step that the launch starts from.

  Returns:
    The changes since the previous launch, see `installed.changes`; '' if there
    are none, or if this is the first launch.
  """
  path = epath.Path(workdir) / REQUIREMENTS
  python, _, rest = installed.freeze().partition('\n')
  text = (
    f'{python}\n# Installed at the launch of {_now()}, from step {step} on;'
    f' vit_jax itself is left out.\n{rest}'
  )
  changed = ''
  if earlier := _text(path):
    changed = installed.changes(installed.parse(earlier), installed.parse(text))
    if not changed:
      return ''
    names = (f'{path.stem}_{i}{path.suffix}' for i in itertools.count(1))
    kept = next(p for p in map(path.with_name, names) if not p.exists())
    _write(kept, earlier)
    logging.warning(
      'This launch has another environment than the one before: %s. The run'
      ' goes on, but its numbers may differ from here on, in the last digits'
      ' or by more. To restore the earlier environment: %s',
      changed,
      shlex.join(['pip', 'install', '-r', str(kept)]),
    )
  _write(path, text)
  return changed


def _text(path: epath.Path) -> str:
  """Returns the text of a file; '' if the file does not exist."""
  try:
    return path.read_bytes().decode(errors='replace')
  except FileNotFoundError:
    return ''


def _now() -> str:
  return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())


def read(workdir: epath.PathLike) -> list[dict[str, Any]]:
  """Returns the lines of a work directory, oldest first; [] if it has none."""
  lines = []
  for line in _text(epath.Path(workdir) / FILE).splitlines():
    with contextlib.suppress(ValueError):
      found = json_text.loads(line)
      if isinstance(found, dict):
        lines.append(found)
  return lines


def commits(workdir: epath.PathLike) -> tuple[str, ...]:
  """Returns the commits of a run's launches, each once, oldest first."""
  found = [line.get('commit') for line in read(workdir)]
  return tuple(dict.fromkeys(filter(None, found)))
