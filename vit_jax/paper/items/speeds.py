"""Speeds of inference on the local device, which Figures 12 and 13 show."""

import pathlib
import shlex
import subprocess
import sys

from vit_jax.inference_speed import networks, store
from vit_jax.paper.runs import Results

# In WORKDIR/measured.
FILE = 'figure12.json'


def _command(*words: str) -> list[str]:
  return ['-m', 'vit_jax.inference_speed', *words]


def measure(results: Results, folder: pathlib.Path, data: str) -> None:
  """Measures the local device, in a separate process.

  At the paper's scale, a CPU would take days, so the TPU compiler, if it is
  installed, estimates a TPU v3 core instead.

  Raises:
    ValueError: measuring failed, or there is neither accelerator nor compiler.
  """
  words = [f'--to={folder / FILE}']
  if results.scale != 'paper':
    words = ['--mini', *words]
  elif _on_cpu():
    words = ['--device=v3', *words]
  command = _command(*words)
  result = subprocess.run([sys.executable, *command], check=False)
  if result.returncode:
    raise ValueError(
      f'figure12: {shlex.join(["python", *command])} ended with exit code'
      f' {result.returncode}; its output says why. The same command continues'
      ' where it ended.'
    )


def _on_cpu() -> bool:
  """Asks another process whether JAX has a CPU only: this takes no device."""
  found = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.default_backend())'],
    capture_output=True,
    text=True,
    check=False,
  )
  # Where JAX fails, measuring says why.
  return found.stdout.split()[-1:] == ['cpu']


def read(folder: pathlib.Path, scale: str) -> store.Measured | None:
  """Returns the measurements, None if there are none of this scale.

  Args:
    folder: WORKDIR/measured.
    scale: one of `SCALES`.

  Raises:
    ValueError: the file is damaged.
  """
  measured = store.read(folder / FILE)
  there = measured and measured.settings.scale == timed(scale)
  return measured if there else None


def progress(scale: str, folder: pathlib.Path) -> tuple[int, int]:
  """Returns how many measurements are done, and how many exist."""
  pairs, measured = networks.pairs((), (), timed(scale)), read(folder, scale)
  return sum(bool(measured and measured.find(*p)) for p in pairs), len(pairs)


def timed(scale: str) -> str:
  """Returns the scale that is timed: all but the paper's time miniatures."""
  return 'paper' if scale == 'paper' else 'mini'


def described(settings: store.Settings) -> str:
  """Returns how the numbers were found."""
  how = 'Speed is measured'
  if settings.correction is not None:
    how = "Speed is the TPU compiler's estimate"
  return (
    f'{how} for one {settings.unit}, in {settings.dtype}, at the fastest batch'
    ' size. A batch fits if, by the compiler, its program takes at most'
    f' {settings.memory_bytes / 2**30:.2f} GiB.'
  )


def missing(folder: pathlib.Path, scale: str) -> str:
  """Returns what to do if nothing is measured yet."""
  words = ['--mini'] if timed(scale) == 'mini' else []
  command = shlex.join(['python', *_command(*words, f'--to={FILE}')])
  return (
    f'Speeds are not measured yet at the scale {timed(scale)!r}. The item'
    ' figure12 measures them on this machine. To measure on another machine,'
    f' run {command} there, and copy the file to {folder / FILE} here.'
  )
