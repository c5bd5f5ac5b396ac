"""Records the code, libraries and devices of each launch in the work directory.

`WORKDIR/environment.jsonl` has a line for each launch that had steps to do, so
it shows whether a run was resumed with other code. `WORKDIR/requirements.txt`
lists all that was installed at the newest launch, for pip;
launch/worker/setup.sh can install exactly these versions.
"""

import contextlib
import json
import time
from typing import Any

import jax
from absl import logging
from etils import epath

import vit_jax
from vit_jax.runtime import installed, json_text
from vit_jax.workdir import files

FILE = 'environment.jsonl'
REQUIREMENTS = 'requirements.txt'


def write(
  workdir: epath.PathLike, step: int, mesh: jax.sharding.Mesh, config: str
) -> None:
  """Records this launch; call this only in process 0.

  If the environment cannot be read or written, this only warns: other files of
  the run raise the error.

  Args:
    workdir: an existing directory.
    step: the step that the launch starts from.
    mesh: the device mesh.
    config: a digest of the config, as far as the state depends on it.
  """
  try:
    _write(epath.Path(workdir), step, mesh, config)
  except Exception as error:  # Such as of a broken distribution.
    logging.warning(
      'The environment is not recorded: %s: %s', type(error).__name__, error
    )


def _write(
  workdir: epath.Path, step: int, mesh: jax.sharding.Mesh, config: str
) -> None:
  device = mesh.devices.flat[0]
  line = {
    'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
    'step': step,
    'config': config,
    'commit': installed.commit(),
    'vit_jax': vit_jax.__version__,
    **installed.versions(),
    'runtime': device.client.platform_version,
    'platform': device.platform,
    'device_kind': device.device_kind,
    'devices': mesh.size,
    'mesh': dict(mesh.shape),
    'processes': jax.process_count(),
  }
  # Writes the whole file again, because object stores cannot append. It is
  # short. Damaged lines are dropped.
  lines = ''.join(json.dumps(one) + '\n' for one in [*read(workdir), line])
  files.write_shared(workdir / FILE, lines.encode())
  files.write_shared(workdir / REQUIREMENTS, installed.requirements().encode())


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
