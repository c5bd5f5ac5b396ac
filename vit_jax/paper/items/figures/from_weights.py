"""What Figures 6, 7, 10, 11 and 14 share: they are drawn from weights.

The runs are of Tables 2, 5 and 6 and, in Figure 10, one more. Images are the
runs' own held-out ones.
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence

from vit_jax.paper import inside
from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import Panel
from vit_jax.paper.item import Item
from vit_jax.paper.report import Missing, Picture
from vit_jax.paper.runs import Pretraining, Results, structure

# Number of images in mean distances, and in Figure 14.
IMAGES = 128
# Attention is studied in these.
LARGE = Pretraining('ViT-L/16', epochs=14)
HYBRID = Pretraining('R50+ViT-L/16', epochs=14)
_MINI_POSITIONS = (
  'Before training, position embeddings are random. In most miniatures, the'
  ' random numbers are larger than in the paper (configs/mini.py). Such'
  ' miniatures learn positions in fewer steps, but after training their'
  ' position embeddings still look like noise. So the models whose position'
  ' embeddings are shown here begin with numbers as small as in the paper.'
  ' Their names say "small initial positions". With small initial numbers, a'
  ' model needs more steps to learn positions. So these models are trained for'
  ' four times as many steps as other miniatures. To save time, the position'
  ' embeddings are those of miniatures of ViT-B/16, while the paper shows those'
  ' of ViT-L. We decided all of this after other miniatures had shown only'
  ' noise (LOG.md).'
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


def item(
  name: str,
  title: str,
  panels: Callable[[Results], Sequence[Panel]],
  starts: Callable[[str], Sequence[Pretraining]],
  caption: str,
  claims: Callable[[str], Sequence[Claim]] = lambda scale: (),
  positions: bool = False,
) -> Item:
  """Makes an item that is one picture from weights.

  Args:
    name: of the item.
    title: of the item.
    panels: returns the panels, see `inside.draw`.
    starts: returns the pre-trainings that it shows at a `structure`.
    caption: below the picture.
    claims: see `Item`.
    positions: whether it shows position embeddings.
  """

  def blocks(
    results: Results, folder: pathlib.Path
  ) -> Iterator[Picture | Missing]:
    drawn, missing = inside.draw(name, panels(results), results, folder)
    if drawn:
      yield Picture(title, f'{folder.name}/{name}', caption)
    yield from map(Missing, missing)

  return Item(
    name,
    title,
    blocks,
    lambda scale: [*dict.fromkeys(starts(structure(scale)))],
    claims,
    lambda results: (
      [_MINI_POSITIONS] if positions and not results.comparable else []
    ),
  )
