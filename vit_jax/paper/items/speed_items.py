"""Figure 12 as an item: measured on the device at hand, not from runs."""

import pathlib
import subprocess
import sys

from vit_jax.compare import drawing
from vit_jax.inference_speed import networks, store
from vit_jax.paper import plots
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Picture, Section
from vit_jax.paper.runs import Results

MODULE = 'vit_jax.inference_speed'
# Of WORKDIR/measured: the device at hand, and the paper's, by its compiler.
LOCAL, V3 = 'figure12.json', 'figure12_v3.json'
_TITLE = 'Inference speed and largest batch by input size'
_FINDING = (
  "The paper's finding (Appendix D.5): ViTs are about as fast as comparable"
  ' ResNets, and large ones have clearly larger batches.'
)


def figure12() -> Item:
  """Speed and memory of inference, by input size (Appendix D.5)."""
  return Item('figure12', _TITLE, (), _render, _measure, progress)


def _measure(scale: str, folder: pathlib.Path) -> None:
  """Measures the device at hand, in a process of its own.

  At the paper's scale a CPU would take days, and is of no interest: then the
  figure is of a TPU v3 core, by its compiler, if that is installed.

  Raises:
    ValueError: it failed, or there is neither accelerator nor compiler.
  """
  words = ['--mini', f'--to={folder / LOCAL}']
  if scale == 'paper':
    words = [f'--to={folder / LOCAL}']
    if _platform() == 'cpu':
      words = ['--device=v3', f'--to={folder / V3}']
  result = subprocess.run([sys.executable, '-m', MODULE, *words], check=False)
  if result.returncode:
    raise ValueError(
      f'figure12: python -m {MODULE} {" ".join(words)} ended with'
      f' {result.returncode}; what it printed says why. The same command goes'
      ' on where it ended.'
    )


def _platform() -> str:
  """JAX's here; asked elsewhere, as this process may not take the device."""
  found = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.default_backend())'],
    capture_output=True,
    text=True,
    check=False,
  )
  words = found.stdout.split()
  if found.returncode or not words:
    last = (found.stderr.strip().splitlines() or ['it said nothing'])[-1]
    raise ValueError(
      'figure12: JAX finds no device to measure (exit code'
      f' {found.returncode}): {last} End what holds the device, or set'
      ' JAX_PLATFORMS=cpu to have the TPU compiler estimate a TPU v3.'
    )
  return words[-1]


def read(folder: pathlib.Path, scale: str) -> dict[str, store.Measured]:
  """The measurements of a scale, by the name of their file without its end.

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
  """How much the file that has most has of what is measured; see `Item`."""
  pairs = networks.pairs((), (), scale)
  counts = [
    sum(measured.find(*pair) is not None for pair in pairs)
    for measured in read(folder, scale).values()
  ]
  return max(counts, default=0), len(pairs)


def _render(results: Results, pictures: pathlib.Path) -> Section:
  folder = pictures.parent / 'measured'
  found = read(folder, results.scale)
  there = progress(results.scale, folder)
  if not found:
    _draw({}, 'core', pictures / 'figure12')
    # What is missing is not hidden: axes without lines say so.
    picture = Picture(_TITLE, f'{pictures.name}/figure12', _FINDING)
    return Section(
      'figure12',
      _TITLE,
      (picture,),
      measured=there,
      missing=(_missing(folder, results.scale),),
    )
  blocks = []
  for stem, measured in found.items():
    points = {
      (entry.model, entry.size): (entry.images_per_second, entry.largest_batch)
      for entry in measured.entries
      # Figure 13's are beside them.
      if 'Axial' not in entry.model
    }
    settings = measured.settings
    _draw(points, settings.unit, pictures / stem)
    blocks.append(
      Picture(
        f'{_TITLE}: {settings.device}',
        f'{pictures.name}/{stem}',
        f'{_FINDING} {_described(settings)}',
      )
    )
  return Section('figure12', _TITLE, blocks, measured=there)


def _draw(points, unit: str, stem: pathlib.Path) -> None:
  drawing.save(
    plots.figure12(points, unit=unit), stem, plots.figure12_rows(points)
  )


def _described(settings: store.Settings) -> str:
  how = 'Speed is measured'
  if settings.correction is not None:
    how = f"Speed is the TPU compiler's estimate, times {settings.correction:g}"
  sizes = ''
  if settings.scale == 'mini':
    sizes = (
      ' In miniature: the models of configs/mini.py, images in proportion.'
    )
  return (
    f'{how}, best over batch sizes, in {settings.dtype}; a batch fits if its'
    f' program takes at most {settings.memory_bytes / 2**30:.2f} GiB, by the'
    f' compiler.{sizes}'
  )


def _missing(folder: pathlib.Path, scale: str) -> str:
  return (
    f'Nothing was measured yet at the scale {scale!r}: python -m {MODULE}'
    f' --to={folder / LOCAL} does so on an accelerator, with --mini'
    f' on a CPU; --device=v3 --to={folder / V3} has the TPU compiler'
    ' estimate it.'
  )
