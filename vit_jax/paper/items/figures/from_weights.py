"""What Figures 6, 7, 10, 11 and 14 share: they are drawn from weights.

The runs are of Tables 2, 5 and 6 and, in Figure 10, one more. Images are the
runs' own held-out ones.
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vit_jax.paper import inside
from vit_jax.paper.inside import Panel
from vit_jax.paper.item import Item, function
from vit_jax.paper.report import Missing, Picture
from vit_jax.paper.runs import Pretraining, Results

# Number of images in mean distances, and in Figure 14.
IMAGES = 128
# Attention is studied in it.
LARGE = Pretraining('ViT-L/16', epochs=14)
MINI_POSITIONS = (
  'In most models of scale mini, the random initial position embeddings are'
  ' larger than in the paper (configs/mini.py). Such models learn positions in'
  ' fewer steps, but after training their position embeddings still look like'
  ' noise. So the models whose position embeddings are shown here begin with'
  ' numbers as small as in the paper, and are trained for four times as many'
  ' steps as other miniatures. To save time, they are miniatures of ViT-B/16,'
  ' while the paper shows ViT-L. We decided all of this after other miniatures'
  ' had shown only noise (LOG.md).'
)


def small_positions(
  epochs: float, *, options: tuple = (), label: str = ''
) -> Pretraining:
  """Returns a miniature whose positions begin as small as in the paper.

  It needs more steps than the other miniatures to learn them, so it is smaller.
  """
  return Pretraining(
    'ViT-B/16',
    epochs=epochs,
    options=(('model.position_stddev', 0.02), *options),
    label=', '.join(filter(None, ('small initial positions', label))),
  )


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
