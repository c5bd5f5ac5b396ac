"""What `--version` prints: all that a bug report should say of a machine."""

import os
import platform
import subprocess
import sys

import vit_jax
from vit_jax import environment

# Seconds for the devices: on a slice of several machines they may wait for the
# processes of the others, which are not there.
PATIENCE = 60.0

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
    'vit_jax': f'{vit_jax.__version__}, commit'
    f' {environment.commit() or "unknown"}',
    **environment.versions(),
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
