"""What `--version` prints: all that a bug report should say of a machine."""

import contextlib
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping

import vit_jax
from vit_jax.runtime import installed

# Seconds for the devices: on a slice of several machines they may wait for the
# processes of the others, which are not there.
PATIENCE = 60.0

_ROOT = pathlib.Path(__file__).parents[2]
# launch/pack.sh leaves it in the code that it ships, which has no repository.
_SHIPPED = 'launch_record'
# In an installed package, which has no repository either (setup.py).
_BUILT = 'vit_jax/COMMIT'
# Seconds: a repository on a network disk must not hold up a run.
_GIT_PATIENCE = 10.0

# A process of its own, as a driver may end it, hang, or keep the memory.
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
  """A line for each: the code, libraries, system and devices; never fails."""
  lines = {
    'vit_jax': f'{vit_jax.__version__}, commit {commit() or "unknown"}',
    **installed.versions(),
    'system': platform.platform(),
    'devices': devices(),
  }
  return '\n'.join(f'{name} {found}' for name, found in lines.items())


def devices(patience: float = PATIENCE) -> str:
  """How many devices JAX finds, and of which kind; or why it finds none.

  Args:
    patience: seconds to wait for them.
  """
  try:
    done = subprocess.run(
      [sys.executable, '-c', _ASK],
      # Beside a run, which has most of a GPU's memory.
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
    said = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
    return f'unknown: {said[-1]}'
  return done.stdout.strip().splitlines()[-1]


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
    timeout=_GIT_PATIENCE,
  ).stdout
