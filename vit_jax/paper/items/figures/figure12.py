"""Figure 12: speed and memory of inference by image size (Appendix D.5).

It needs no runs: files of `vit_jax.inference_speed` answer the claims.
"""

import pathlib
from collections.abc import Iterator

from vit_jax.inference_speed import store
from vit_jax.paper import plots
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items import speed_claims, speeds
from vit_jax.paper.report import Missing
from vit_jax.paper.runs import Results

_TITLE = 'Inference speed and largest batch by input size'


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  folder = pictures.parent / 'measured'
  found = speeds.read(folder, results.scale)
  # Empty axes show that the figure is missing.
  for stem, measured in (found or {'figure12': None}).items():
    title, caption = _TITLE, 'Models that do not fit the memory are not drawn.'
    if measured:
      title = f'{_TITLE}: {measured.settings.device}'
      caption += f' {speeds.described(measured.settings)}'
    figure, marks = _draw(measured)
    yield plots.save(stem, title, caption, figure, marks, pictures, results)
  for measured in found.values() or [None]:
    yield from speed_claims.of_measured(measured, speeds.timed(results.scale))
  if not found:
    yield Missing(speeds.missing(folder, results.scale))


def _draw(measured: store.Measured | None):
  """Returns the figure of a device, and its marks.

  Both axes are logarithmic, so models that do not fit the memory are not drawn.
  """
  marks = [
    plots.Mark(entry.model, entry.size, float(number), None, 1, panel)
    for entry in (measured.entries if measured else ())
    # The axial models are Figure 13's, in the same file.
    if 'Axial' not in entry.model
    for panel, number in (
      ('left', entry.images_per_second),
      ('right', entry.largest_batch),
    )
    if number
  ]
  unit = measured.settings.unit if measured else 'core'
  figure = plots.lines(
    marks,
    x_label='Input size (px)',
    y_label=(
      f'Peak speed (images/s/{unit})',
      f'Largest batch that fits a {unit}',
    ),
    panels={'left': '', 'right': ''},
    log_y=True,
    x_ticks=sorted({mark.x for mark in marks}),
    height=3.5,
  )
  return figure, marks


ITEM = Item(
  'figure12',
  _TITLE,
  _blocks,
  measure=speeds.measure,
  measured=speeds.progress,
)
