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


def write(workdir: epath.PathLike, step: int, mesh: jax.sharding.Mesh) -> None:
  """Records this launch; call this only in process 0.

  Warns if the launch before had other devices, another mesh or other libraries,
  and says what that changes. If the directory cannot be written, this only
  warns, because other files of the run raise the error.

  Args:
    workdir: an existing directory.
    step: the step that the launch starts from.
    mesh: the device mesh.
  """
  try:
    _write_line(epath.Path(workdir), step, mesh)
    _write_requirements(epath.Path(workdir), step)
  except OSError as error:
    logging.warning(
      'The environment is not recorded: %s', errors.described(error)
    )


def _write_line(
  workdir: epath.Path, step: int, mesh: jax.sharding.Mesh
) -> None:
  device = mesh.devices.flat[0]
  devices = {
    'platform': device.platform,
    'device_kind': device.device_kind,
    'devices': mesh.size,
    'mesh': dict(mesh.shape),
    'processes': jax.process_count(),
  }
  line = {
    'time': _now(),
    'step': step,
    'commit': installed.commit(),
    'vit_jax': vit_jax.__version__,
    **installed.versions(),
    'runtime': device.client.platform_version,
    **devices,
  }
  # Writes the whole file again, because object stores cannot append. It is
  # short. Damaged lines are dropped.
  earlier = read(workdir)
  files.write_shared(
    workdir / FILE,
    ''.join(json.dumps(x) + '\n' for x in [*earlier, line]).encode(),
  )
  old = earlier[-1] if earlier else {}
  if found := [
    f'{k} {old[k]}, now {v}' for k, v in devices.items() if old.get(k, v) != v
  ]:
    logging.warning(
      'This launch has other devices than the one before (%s). From step %d on'
      ' rounding differs, because sums have another order. With dropout and'
      " dropout_rng='rbg' the masks differ, too. Images and their order do not"
      ' change.',
      *('; '.join(found), step),
    )


def _write_requirements(workdir: epath.Path, step: int) -> None:
  """Keeps an earlier list of other libraries under another name."""
  path = workdir / REQUIREMENTS
  python, _, rest = installed.freeze().partition('\n')
  text = (
    f'{python}\n# Installed at the launch of {_now()}, from step {step} on;'
    f' vit_jax itself is left out.\n{rest}'
  )
  if earlier := files.content(path).decode(errors='replace'):
    changed = installed.changes(earlier, text)
    if not changed:
      return
    names = (f'{path.stem}_{i}{path.suffix}' for i in itertools.count(1))
    kept = next(p for p in map(path.with_name, names) if not p.exists())
    files.write_shared(kept, earlier.encode())
    logging.warning(
      'This launch has another environment than the one before: %s. The run'
      ' goes on, but its numbers may differ from here on, in the last digits'
      ' or by more. To restore the earlier environment: %s',
      changed,
      shlex.join(['pip', 'install', '-r', str(kept)]),
    )
  files.write_shared(path, text.encode())


def _now() -> str:
  return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())


def read(workdir: epath.PathLike) -> list[dict[str, Any]]:
  """Returns the lines of a work directory, oldest first; [] if it has none."""
  lines = []
  for line in files.content(epath.Path(workdir) / FILE).splitlines():
    with contextlib.suppress(ValueError):
      found = json_text.loads(line)
      if isinstance(found, dict):
        lines.append(found)
  return lines


def commits(workdir: epath.PathLike) -> tuple[str, ...]:
  """Returns the commits of a run's launches, each once, oldest first."""
  found = [line.get('commit') for line in read(workdir)]
  return tuple(dict.fromkeys(filter(None, found)))
