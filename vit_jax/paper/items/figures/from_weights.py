"""Figures 6, 11 and 14, and what is drawn from weights in others.

The runs are of Tables 2, 5 and 6 and, in Figure 10, one more. Images are the
runs' own held-out ones. Figures 7 and 10 are in `positions`.
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vit_jax.paper import claims, inside
from vit_jax.paper.claims import Claim, Mean
from vit_jax.paper.inside import NUMBERS, Panel, maps
from vit_jax.paper.item import Item, function, table
from vit_jax.paper.report import Missing, Picture
from vit_jax.paper.runs import Pretraining, Results

# Number of images in mean distances, and in Figure 14.
IMAGES = 128
# Attention is studied in it.
LARGE = Pretraining('ViT-L/16', epochs=14)


def picture(
  name: str,
  title: str,
  panels: Sequence[Panel],
  caption: str,
  results: Results,
  folder: pathlib.Path,
) -> Iterator[Picture | Missing]:
  """Draws panels, see `inside.draw`; yields the blocks of an item."""
  drawn, missing = inside.draw(name, panels, results, folder)
  if drawn:
    yield Picture(title, f'{folder.name}/{name}', caption)
  yield from map(Missing, missing)


def item(
  name: str,
  title: str,
  panels: Callable[[str], Sequence[Panel]] | Sequence[Panel],
  caption: str,
  **options: Any,
) -> Item:
  """Makes an item that is one picture from weights.

  Args:
    name: of the item.
    title: of the item.
    panels: scale -> the panels, see `inside.draw`; or those of all scales.
    caption: below the picture.
    **options: further attributes of `Item`.
  """
  panels = function(panels)
  return Item(
    name,
    title,
    lambda results, folder: picture(
      name, title, panels(results.scale), caption, results, folder
    ),
    lambda scale: [*dict.fromkeys(panel.node for panel in panels(scale))],
    **options,
  )


# Figures 6 and 14: what attention takes images from (4.5, D.8). ---------------

FIGURE6 = item(
  'figure6',
  'What attention attends to',
  # The number of images follows from the figure's page in the paper.
  [Panel('rollout', LARGE.model, LARGE, 6)],
  "The paper's finding: the model attends to the parts of an image that matter"
  ' for its class. The maps show attention rollout (D.8): in each block,'
  ' attention weights are averaged over the heads; then the averages of all'
  ' blocks are multiplied.',
)


FIGURE14 = item(
  'figure14',
  'What attention attends to, in more images',
  [Panel('rollout', LARGE.model, LARGE, IMAGES)],
  'As Figure 6, for more images. They are taken at equal intervals from the'
  ' held-out images.',
)


# Figure 11: attention distance of a ViT and a hybrid (D.7). -------------------

_HYBRID = Pretraining('R50+ViT-L/16', epochs=14)
_EARLY = NUMBERS['early_distance']
_CLAIM = Claim(
  'hybrid_looks_farther',
  'Early blocks of a hybrid attend less locally than those of a ViT (4.5,'
  ' D.7, Figure 11).',
  {
    'mean distance in the first quarter of the blocks: hybrid minus ViT': (
      _EARLY(_HYBRID) - _EARLY(LARGE)
    )
  },
)

FIGURE11 = item(
  'figure11',
  'Attention distance of a ViT and a hybrid',
  [
    Panel('attention_distance', start.model, start, IMAGES)
    for start in (LARGE, _HYBRID)
  ],
  f'Attention distances are means over {IMAGES} images.',
  claims=[_CLAIM],
)


# A ResNet's receptive field beside attention distance (4.5). ------------------

_RESNET = Pretraining('BiT-R50x1', epochs=7)


def _field(which: str, stage: int | None) -> Mean:
  return claims.inside(
    f'receptive_field_{which}',
    f'effective receptive field after the {which} stage, in px',
    1,
    lambda workdir: maps.receptive_field(workdir, stage),
  )(_RESNET)


_FIELDS = 'BiT-R50x1, receptive field'
_DISTANCES = 'ViT-L/16, attention distance'
_CELLS = {
  (_FIELDS, 'early'): _field('first', 1),
  (_FIELDS, 'late'): _field('last', None),
  (_DISTANCES, 'early'): _EARLY(LARGE),
  (_DISTANCES, 'late'): NUMBERS['late_distance'](LARGE),
}
_GROWS = Claim(
  'grows_with_depth',
  "A ResNet's receptive field grows with the depth, as attention distance"
  ' does in a ViT (4.5).',
  {
    f'growth of the {what} of {row.partition(",")[0]}': _CELLS[row, 'late']
    - _CELLS[row, 'early']
    for what, row in (('field', _FIELDS), ('distance', _DISTANCES))
  },
)

RECEPTIVE_FIELD = table(
  'receptive_field',
  'Receptive field of a ResNet, and attention distance of a ViT',
  _CELLS,
  heading='In px',
  claims=[_GROWS],
  notes=[
    'The receptive field is the mean distance of pixels, weighted by the'
    ' absolute gradient of the features in the middle of the image'
    ' (arXiv:1701.04128), over 16 held-out images. Early and late are the first'
    ' and the last stage, or the first and the last quarter of the blocks.'
  ],
)
