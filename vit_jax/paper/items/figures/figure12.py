"""Figure 12: speed and memory of inference by image size (Appendix D.5).

It needs no runs: a file of `vit_jax.inference_speed` answers the claims.
"""

import pathlib
from collections.abc import Iterator

from vit_jax.inference_speed import networks
from vit_jax.paper import plots
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items import speed_claims, speeds
from vit_jax.paper.report import Missing, Number
from vit_jax.paper.runs import Results

_TITLE = 'Inference speed and largest batch by input size'


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  folder = pictures.parent / 'measured'
  measured = speeds.read(folder, results.scale)
  title, caption = _TITLE, 'Models that do not fit the memory are not drawn.'
  if measured:
    title = f'{_TITLE}: {measured.settings.device}'
    caption += f' {speeds.described(measured.settings)}'
  points = [
    (entry.model, entry.size, Number((float(found),), ('',)), panel)
    for entry in (measured.entries if measured else ())
    # The axial models are Figure 13's, in the same file.
    if 'Axial' not in entry.model
    for panel, found in (
      ('left', entry.images_per_second),
      ('right', entry.largest_batch),
    )
    if found  # The y axis is logarithmic.
  ]
  yield plots.picture(
    *('figure12', title, caption, points, pictures, results),
    x_label='Input size (px)',
    y_label=('Peak speed (images/s)', 'Largest batch that fits'),
    panels={'left': '', 'right': ''},
    log_y=True,
    x_ticks=networks.SIZES[speeds.timed(results.scale)],
  )
  yield from speed_claims.of_measured(measured, speeds.timed(results.scale))
  if not measured:
    yield Missing(speeds.missing(folder, results.scale))


ITEM = Item(
  'figure12',
  _TITLE,
  _blocks,
  measure=speeds.measure,
  measured=speeds.progress,
)
