"""What each launch of a run ran on, in its directory: code, libraries, devices.

`WORKDIR/environment.jsonl` has a line for each launch that had something to do,
so that a run that was resumed with changed code says so.
"""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jaxlib
import optax
from absl import logging
from etils import epath

import vit_jax
from vit_jax.interop import files

FILE = 'environment.jsonl'

_ROOT = pathlib.Path(__file__).parents[1]
# launch/pack.sh leaves it in the code that it ships, which has no repository.
_SHIPPED = 'launch_record'
# Distributions whose versions tell two environments apart.
_LIBRARIES = (
  *('jax', 'jaxlib', 'libtpu', 'jax-cuda13-plugin', 'jax-cuda12-plugin'),
  *('flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy'),
)
# In an installed package, which has no repository either (setup.py).
_BUILT = 'vit_jax/COMMIT'
# Seconds: a repository on a network disk must not hold up a run.
_PATIENCE = 10.0


def write(
  workdir: epath.PathLike, step: int, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Adds the line of this launch; call it in the first process only.

  A directory that can't be written to is a warning here, as other files of the
  run say so too.

  Args:
    workdir: an existing directory.
    step: that the launch goes on from.
    mesh: the devices.

  Returns:
    The line: `time` (UTC), `step`, `commit` (see `commit`), versions, and what
    devices there are of how many processes.
  """
  device = mesh.devices.flat[0]
  line = {
    'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
    'step': step,
    'commit': commit(),
    'vit_jax': vit_jax.__version__,
    'python': platform.python_version(),
    'jax': jax.__version__,
    'jaxlib': jaxlib.__version__,
    'flax': flax.__version__,
    'optax': optax.__version__,
    'platform': device.platform,
    'runtime': device.client.platform_version,
    'device_kind': device.device_kind,
    'devices': mesh.size,
    'processes': jax.process_count(),
  }
  path = epath.Path(workdir) / FILE
  try:
    # Anew as a whole: object stores can not append, and it is short. What is
    # cut off or no JSON is dropped.
    text = ''.join(json.dumps(old) + '\n' for old in [*read(workdir), line])
    with files.atomic(path) as temporary:
      temporary.write_text(text)
  except OSError as error:
    logging.warning('%s was not written: %s', path, error)
  return line


def versions() -> dict[str, str]:
  """Distribution -> version, of those that are installed."""
  found = {}
  for name in _LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


def read(workdir: epath.PathLike) -> list[dict[str, Any]]:
  """The lines of a work directory, oldest first; [] if it has none."""
  path = epath.Path(workdir) / FILE
  try:
    text = path.read_text()
  except FileNotFoundError:
    return []
  lines = []
  for line in text.splitlines():
    with contextlib.suppress(json.JSONDecodeError):
      found = json.loads(line)
      if isinstance(found, dict):
        lines.append(found)
  return lines


def commits(workdir: epath.PathLike) -> tuple[str, ...]:
  """The commits that a run's launches ran, each once, oldest first."""
  found = [line.get('commit') for line in read(workdir)]
  return tuple(dict.fromkeys(filter(None, found)))


def commit(root: pathlib.Path = _ROOT) -> str:
  """The commit of this code, such as `0b97a35...`, never raising.

  Args:
    root: the folder that holds `vit_jax`.

  Returns:
    40 hexadecimal digits, with `+` if files that git knows were changed, and
    `?` if there was not the time to tell. Of an installed package: as it was
    when it was built. '' if the code is in no repository, or is not known to
    the one around it.
  """
  with contextlib.suppress(OSError, UnicodeDecodeError):
    shipped = root / _SHIPPED
    if (shipped / 'commit').is_file():
      changed = (shipped / 'local.diff').stat().st_size > 0
      return (shipped / 'commit').read_text().strip() + '+' * changed
  with contextlib.suppress(OSError, UnicodeDecodeError):
    return (root / _BUILT).read_text().strip()
  try:
    _git(root, 'ls-files', '--error-unmatch', 'vit_jax/__init__.py')
    head = _git(root, 'rev-parse', 'HEAD').strip()
  except (OSError, ValueError, subprocess.SubprocessError):
    return ''
  try:
    changed = _git(root, 'status', '--porcelain', '--untracked-files=no')
  except (OSError, ValueError, subprocess.SubprocessError):
    return head + '?'  # It took too long to look.
  return head + '+' * bool(changed)


def _git(root: pathlib.Path, *words: str) -> str:
  # A hook of another repository may have set GIT_DIR, and a run that only
  # looks must leave the index's lock to those that write.
  kept: Mapping[str, str] = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith('GIT_')
  }
  return subprocess.run(
    ['git', '-C', os.fspath(root), *words],
    env={**kept, 'GIT_OPTIONAL_LOCKS': '0'},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    check=True,
    timeout=_PATIENCE,
  ).stdout
