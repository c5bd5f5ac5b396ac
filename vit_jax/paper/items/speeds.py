"""Speeds of inference on the local device, which Figures 12 and 13 show."""

import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.paper.runs import Results

MODULE = 'vit_jax.inference_speed'
# Files in WORKDIR/measured: of the local device, and of the paper's device by
# its compiler.
LOCAL, V3 = 'figure12.json', 'figure12_v3.json'


def measure(results: Results, folder: pathlib.Path, data: str) -> None:
  """Measures the local device, in a separate process.

  At the paper's scale, a CPU would take days, so the TPU compiler, if it is
  installed, estimates a TPU v3 core instead.

  Raises:
    ValueError: measuring failed, or there is neither accelerator nor compiler.
  """
  words = ['--mini', f'--to={folder / LOCAL}']
  if results.scale == 'paper':
    words = [f'--to={folder / LOCAL}']
    if _platform() == 'cpu':
      words = ['--device=v3', f'--to={folder / V3}']
  result = subprocess.run([sys.executable, '-m', MODULE, *words], check=False)
  if result.returncode:
    raise ValueError(
      f'figure12: {_command(words)} ended with exit code'
      f' {result.returncode}; its output says why. The same command continues'
      ' where it ended.'
    )


def _command(words: Sequence[str]) -> str:
  return shlex.join(['python', '-m', MODULE, *words])


def _platform() -> str:
  """Returns JAX's platform, from another process: this one takes no device."""
  found = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.default_backend())'],
    capture_output=True,
    text=True,
    check=False,
  )
  words = found.stdout.split()
  if found.returncode or not words:
    last = (found.stderr.strip().splitlines() or ['no output.'])[-1]
    raise ValueError(
      'figure12: JAX finds no device to measure (exit code'
      f' {found.returncode}): {last} End the process that holds the device, or'
      ' set JAX_PLATFORMS=cpu to have the TPU compiler estimate a TPU v3.'
    )
  return words[-1]


def read(folder: pathlib.Path, scale: str) -> dict[str, store.Measured]:
  """Returns the measurements of a scale, by file name without suffix.

  Args:
    folder: WORKDIR/measured.
    scale: one of `SCALES`; all but the paper's time miniatures. Files of other
      models are left out.

  Raises:
    ValueError: a file is damaged.
  """
  return {
    name.removesuffix('.json'): measured
    for name in (LOCAL, V3)
    if (measured := store.read(folder / name))
    and measured.settings.scale == timed(scale)
  }


def progress(scale: str, folder: pathlib.Path) -> tuple[int, int]:
  """Returns how many measurements the fullest file has, and how many exist."""
  pairs = networks.pairs((), (), timed(scale))
  counts = [
    sum(measured.find(*pair) is not None for pair in pairs)
    for measured in read(folder, scale).values()
  ]
  return max(counts, default=0), len(pairs)


def timed(scale: str) -> str:
  """Returns the scale that is timed: all but the paper's time miniatures."""
  return 'paper' if scale == 'paper' else 'mini'


def at_pretraining_size(
  folder: pathlib.Path, results: Results
) -> tuple[store.Settings | None, Mapping[str, float]]:
  """Returns where it was measured, and model -> images per second.

  The speed is that of the local device, or else the compiler's estimate for the
  paper's device. If neither exists, there are no numbers.
  """
  size = networks.PRETRAINING_SIZE[timed(results.scale)]
  for measured in read(folder, results.scale).values():
    if found := measured.speeds(size):
      return measured.settings, found
  return None, {}


def described(settings: store.Settings) -> str:
  """Returns how the numbers were found."""
  how = 'Speed is measured'
  if settings.correction is not None:
    how = "Speed is the TPU compiler's estimate"
    if settings.correction != 1:
      how += f', times {settings.correction:g}'
  return (
    f'{how}, in {settings.dtype}, at the fastest batch size. A batch fits if,'
    ' by the compiler, its program takes at most'
    f' {settings.memory_bytes / 2**30:.2f} GiB.'
  )


def missing(folder: pathlib.Path, scale: str) -> str:
  """Returns what to do if nothing is measured yet."""
  words = ['--mini'] if timed(scale) == 'mini' else []
  return (
    f'Speeds are not measured yet at the scale {timed(scale)!r}. The item'
    ' figure12 measures them on this machine. To measure on another machine,'
    f' run {_command([*words, f"--to={LOCAL}"])} there, and copy the file to'
    f' {folder / LOCAL} here.'
    f' {_command([*words, "--device=v3", f"--to={folder / V3}"])} lets the TPU'
    ' compiler estimate a TPU v3.'
  )
