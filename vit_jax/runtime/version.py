"""The text that `--version` prints: facts for a bug report."""

import contextlib
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping

import vit_jax
from vit_jax.runtime import installed

# Seconds to wait for the devices. On a slice of several machines they may wait
# for processes on the other machines, which do not run now.
PATIENCE = 60.0

_ROOT = pathlib.Path(__file__).parents[2]
# launch/pack.sh adds this folder to shipped code, which has no repository.
_SHIPPED = 'launch_record'
# setup.py adds this file to an installed package, which has no repository.
_BUILT = 'vit_jax/COMMIT'
# Seconds: a repository on a network disk must not hold up a run.
_GIT_PATIENCE = 10.0

# Runs in its own process, because a driver may crash, hang or keep the memory.
_ASK = """
import sys
try:
  import jax
  found = jax.devices()
except Exception as error:
  sys.exit(' '.join(f'{type(error).__name__}: {error}'.split()))
print(len(found), found[0].platform, found[0].device_kind)
"""


def text() -> str:
  """Returns lines on the code, the libraries, the system and the devices.

  Never raises.
  """
  lines = {
    'vit_jax': f'{vit_jax.__version__}, commit {commit() or "unknown"}',
    **installed.versions(),
    'system': platform.platform(),
    'devices': devices(),
  }
  return '\n'.join(f'{name} {found}' for name, found in lines.items())


def devices(patience: float = PATIENCE) -> str:
  """Returns the number and kind of JAX's devices, or why JAX finds none.

  Args:
    patience: seconds to wait for them.
  """
  try:
    done = subprocess.run(
      [sys.executable, '-c', _ASK],
      # A run on the same machine may hold most of a GPU's memory.
      env={**os.environ, 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      errors='replace',
      check=False,
      timeout=patience,
    )
  except subprocess.TimeoutExpired:
    return f'unknown: they did not open within {patience:g} seconds'
  except OSError as error:
    return f'unknown: {error}'
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
    return f'unknown: {lines[-1]}'
  return done.stdout.strip().splitlines()[-1]


def commit(root: pathlib.Path = _ROOT) -> str:
  """Returns the commit of this code, such as `0b97a35...`; never raises.

  Args:
    root: the folder that holds `vit_jax`.

  Returns:
    40 hexadecimal digits, followed by `+` if tracked files were changed, or by
    `?` if git took too long to tell. For an installed package, the commit at
    build time. '' if the code is in no repository, or not tracked by the
    repository around it.
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
    return head + '?'
  return head + '+' * bool(changed)


def _git(root: pathlib.Path, *words: str) -> str:
  # A hook of another repository may have set GIT_DIR. Without optional locks,
  # this read does not get in the way of a git command that writes.
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
    timeout=_GIT_PATIENCE,
  ).stdout
