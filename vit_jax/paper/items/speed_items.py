"""Figure 12 as an item: measured on the local device, without runs."""

import pathlib
import shlex
import subprocess
import sys
from collections.abc import Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.pages import drawing
from vit_jax.paper import plots
from vit_jax.paper.claims import speed_answers
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Picture, Section
from vit_jax.paper.runs import Results

MODULE = 'vit_jax.inference_speed'
# Files in WORKDIR/measured: of the local device, and of the paper's device by
# its compiler.
LOCAL, V3 = 'figure12.json', 'figure12_v3.json'
_TITLE = 'Inference speed and largest batch by input size'
_FINDING = (
  "The paper's finding (Appendix D.5): ViTs are about as fast as comparable"
  ' ResNets. For large ViTs, clearly larger batches fit into the memory than'
  ' for ResNets.'
)


def figure12() -> Item:
  """Speed and memory of inference, by input size (Appendix D.5)."""
  return Item('figure12', _TITLE, (), _render, _measure, progress)


def _measure(scale: str, folder: pathlib.Path) -> None:
  """Measures the local device, in a separate process.

  At the paper's scale, a CPU would take days, so the TPU compiler, if it is
  installed, estimates a TPU v3 core instead.

  Raises:
    ValueError: measuring failed, or there is neither accelerator nor compiler.
  """
  words = ['--mini', f'--to={folder / LOCAL}']
  if scale == 'paper':
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


def scale_of(scale: str) -> str:
  """Returns the scale that is timed: all but the paper's time miniatures."""
  return 'paper' if scale == 'paper' else 'mini'


def read(folder: pathlib.Path, scale: str) -> dict[str, store.Measured]:
  """Returns the measurements of a scale, by file name without suffix.

  Args:
    folder: WORKDIR/measured.
    scale: 'mini' or 'paper'; files of the other one are left out.

  Raises:
    ValueError: a file is damaged.
  """
  return {
    name.removesuffix('.json'): measured
    for name in (LOCAL, V3)
    if (measured := store.read(folder / name))
    and measured.settings.scale == scale
  }


def progress(scale: str, folder: pathlib.Path) -> tuple[int, int]:
  """Returns how many measurements the fullest file has, and how many exist."""
  scale = scale_of(scale)
  pairs = networks.pairs((), (), scale)
  counts = [
    sum(measured.find(*pair) is not None for pair in pairs)
    for measured in read(folder, scale).values()
  ]
  return max(counts, default=0), len(pairs)


def _render(results: Results, pictures: pathlib.Path) -> Section:
  folder = pictures.parent / 'measured'
  found = read(folder, scale_of(results.scale))
  there = progress(scale_of(results.scale), folder)
  if not found:
    _draw({}, 'core', pictures / 'figure12', results.mark)
    # Empty axes show that the figure is missing.
    picture = Picture(_TITLE, f'{pictures.name}/figure12', _FINDING)
    return Section(
      'figure12',
      _TITLE,
      (picture, *speed_answers.of_measured(None, scale_of(results.scale))),
      measured=there,
      missing=(_missing(folder, scale_of(results.scale)),),
    )
  blocks, answered = [], []
  for stem, measured in found.items():
    points = {
      (entry.model, entry.size): (entry.images_per_second, entry.largest_batch)
      for entry in measured.entries
      # The axial models are Figure 13's, in the same file.
      if 'Axial' not in entry.model
    }
    settings = measured.settings
    _draw(points, settings.unit, pictures / stem, results.mark)
    blocks.append(
      Picture(
        f'{_TITLE}: {settings.device}',
        f'{pictures.name}/{stem}',
        f'{_FINDING} {_described(settings)}',
      )
    )
    answered += speed_answers.of_measured(measured, settings.scale)
  return Section('figure12', _TITLE, (*blocks, *answered), measured=there)


def _draw(points, unit: str, stem: pathlib.Path, mark: str) -> None:
  drawing.save(
    plots.figure12(points, unit=unit),
    stem,
    plots.figure12_rows(points),
    mark=mark,
  )


def _described(settings: store.Settings) -> str:
  how = 'Speed is measured'
  if settings.correction is not None:
    how = "Speed is the TPU compiler's estimate"
    if settings.correction != 1:
      how += f', times {settings.correction:g}'
  sizes = ''
  if settings.scale == 'mini':
    sizes = (
      ' In miniature, the models are those of configs/mini.py, and the images'
      ' are smaller in proportion.'
    )
  return (
    f'{how}, in {settings.dtype}, at the fastest batch size. A batch fits if,'
    ' by the compiler, its program takes at most'
    f' {settings.memory_bytes / 2**30:.2f} GiB.{sizes}'
  )


def _missing(folder: pathlib.Path, scale: str) -> str:
  own = [] if scale == 'paper' else [f'--{scale}']
  return (
    f'Speeds are not measured yet at the scale {scale!r}. The item figure12'
    ' measures them on this machine. To measure on another machine, run'
    f' {_command([*own, f"--to={LOCAL}"])} there, and copy the file to'
    f' {folder / LOCAL} here. Or let the TPU compiler estimate the speed of a'
    ' TPU v3, without measuring:'
    f' {_command([*own, "--device=v3", f"--to={folder / V3}"])}'
  )
