"""What each launch of a run ran on, in its directory: code, libraries, devices.

`WORKDIR/environment.jsonl` has a line for each launch that had something to do,
so that a run that was resumed with changed code says so.
`WORKDIR/requirements.txt` is all that was installed in the newest of them, as
pip takes it; what launches before a change had is in `requirements_1.txt`, and
so on, oldest first. launch/worker/setup.sh installs exactly that.
"""

import contextlib
import itertools
import json
import time
from typing import Any

import jax
from absl import logging
from etils import epath

import vit_jax
from vit_jax.runtime import installed, json_text, version
from vit_jax.workdir import files

__all__ = [
  'FILE',
  'REQUIREMENTS',
  'commits',
  'read',
  'write',
  'write_requirements',
]

FILE = 'environment.jsonl'
REQUIREMENTS = 'requirements.txt'


def write(
  workdir: epath.PathLike, step: int, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Adds the line of this launch; call it in the first process only.

  If the launch before had other devices or another mesh, a warning says what
  that changes. A directory that can't be written to is a warning here, as other
  files of the run say so too.

  Args:
    workdir: an existing directory.
    step: that the launch goes on from.
    mesh: the devices.

  Returns:
    The line: `time` (UTC), `step`, `commit` (see `version.commit`), versions,
    the devices and the number of processes.
  """
  device = mesh.devices.flat[0]
  line = {
    'time': _now(),
    'step': step,
    'commit': version.commit(),
    'vit_jax': vit_jax.__version__,
    **installed.versions(),
    'platform': device.platform,
    'runtime': device.client.platform_version,
    'device_kind': device.device_kind,
    'devices': mesh.size,
    'mesh': dict(mesh.shape),
    'processes': jax.process_count(),
  }
  path = epath.Path(workdir) / FILE
  try:
    # Anew as a whole: object stores can not append, and it is short. What is
    # cut off or no JSON is dropped.
    earlier = read(workdir)
    text = ''.join(json.dumps(old) + '\n' for old in [*earlier, line])
    with files.atomic(path) as temporary:
      temporary.write_text(text)
  except OSError as error:
    logging.warning('%s was not written: %s', path, error)
  else:
    _tell_other_devices(earlier, line)
  return line


def _tell_other_devices(earlier: list[dict[str, Any]], now: dict) -> None:
  """Logs what is not bitwise as it would have been."""
  keys = ('platform', 'device_kind', 'devices', 'mesh', 'processes')
  # Launches of before the mesh was noted lack it.
  old = {k: earlier[-1][k] for k in keys if earlier and k in earlier[-1]}
  differing = [k for k in old if old[k] != now[k]]
  if differing:
    logging.warning(
      'Other devices than at the launch before (%s). From step %d on numbers'
      ' are rounded otherwise, as sums are in another order; with dropout and'
      " dropout_rng='rbg' the masks are other ones, too. Images and their order"
      ' stay.',
      '; '.join(f'{k} {old[k]}, now {now[k]}' for k in differing),
      now['step'],
    )


def write_requirements(workdir: epath.PathLike, step: int) -> str:
  """Writes what is installed; call it in the first process only.

  If another environment is recorded there, a warning says what changed, and
  the earlier file gets a name of its own. A directory that can't be written to
  is a warning, too.

  Args:
    workdir: an existing directory.
    step: that the launch goes on from.

  Returns:
    What changed since the launch before, see `installed.changes`; '' if
    nothing did, or this is the first.
  """
  path = epath.Path(workdir) / REQUIREMENTS
  python, _, rest = installed.freeze().partition('\n')
  text = (
    f'{python}\n# Installed at the launch of {_now()}, from step {step} on;'
    f' vit_jax itself is left out.\n{rest}'
  )
  changed = ''
  try:
    earlier = _text(path)
    if earlier:
      old = installed.parse(earlier)
      changed = installed.changes(old, installed.parse(text))
      if not changed:
        return ''
      kept = _keep(path, earlier)
      logging.warning(
        'This launch has another environment than the one before: %s. The run'
        ' goes on; its numbers may differ from here on in the last digits, or'
        ' by more. What it had is in %s: pip install -r of that gives it back.',
        changed,
        kept,
      )
    with files.atomic(path) as temporary:
      temporary.write_text(text)
  except OSError as error:
    logging.warning('%s was not written: %s', path, error)
  return changed


def _keep(path: epath.Path, text: str) -> epath.Path:
  """Writes an earlier file under the next name that is free."""
  names = (f'{path.stem}_{i}{path.suffix}' for i in itertools.count(1))
  kept = next(p for p in map(path.with_name, names) if not p.exists())
  with files.atomic(kept) as temporary:
    temporary.write_text(text)
  return kept


def _text(path: epath.Path) -> str:
  """'' if there is no such file."""
  try:
    return path.read_bytes().decode(errors='replace')
  except FileNotFoundError:
    return ''


def _now() -> str:
  return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())


def read(workdir: epath.PathLike) -> list[dict[str, Any]]:
  """The lines of a work directory, oldest first; [] if it has none."""
  lines = []
  for line in _text(epath.Path(workdir) / FILE).splitlines():
    with contextlib.suppress(ValueError):
      found = json_text.loads(line)
      if isinstance(found, dict):
        lines.append(found)
  return lines


def commits(workdir: epath.PathLike) -> tuple[str, ...]:
  """The commits that a run's launches ran, each once, oldest first."""
  found = [line.get('commit') for line in read(workdir)]
  return tuple(dict.fromkeys(filter(None, found)))
