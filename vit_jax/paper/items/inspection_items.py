"""Figures 6, 7, 10, 11 and 14 as items: what finished models look like inside.

The figures are drawn from weights (see `paper.pictures`) of runs of Tables 2, 5
and 6 and, in Figure 10, of one more run. Images are the runs' own held-out
ones.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from vit_jax import config as config_lib
from vit_jax.paper import pictures
from vit_jax.paper.claims import inspection_claims as claims
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.pictures import Drawn, Panel
from vit_jax.paper.report import Claim, Picture, Section
from vit_jax.paper.runs import Pretraining, Results

_LARGE = table_items.pretraining('ViT-L/16', values.JFT)
_LARGE_32 = table_items.pretraining('ViT-L/32', values.JFT)
_HYBRID = Pretraining('R50+ViT-L/16', values.JFT, 14)
# Number of images in mean distances, and in Figure 14.
_IMAGES = 128
# Number of images in Figure 6, which follows from its page in the paper.
_FEW = 6
_MINI_POSITIONS = (
  'In miniature, initial position embeddings are much larger than in the paper'
  ' (POSITION_STDDEV in configs/mini.py) and mostly stay as random as at first:'
  ' neighbours are hardly more similar than other positions.'
)


def figure6() -> Item:
  """Images beside the patches that attention takes them from (Section 4.5)."""
  return _item(
    'figure6',
    'What attention attends to',
    [Panel('rollout', 'ViT-L/16', _LARGE, _FEW)],
    "The paper's finding: the model attends to what the image is classified by."
    ' The maps are attention rollout (D.8): attention weights are averaged over'
    ' the heads of each block and multiplied over all blocks.',
  )


def figure7() -> Item:
  """Filters, position embeddings and attention distances (Section 4.5)."""

  def answer_claims(drawn: Drawn) -> Sequence[Claim]:
    found = _distances(drawn, 'ViT-L/16')
    return [
      claims.grows_with_depth('ViT-L/16', found),
      claims.some_heads_look_far('ViT-L/16', found),
    ]

  return _item(
    'figure7',
    'Filters, position embeddings and attention distance',
    [
      Panel('filters', 'ViT-L/32', _LARGE_32),
      Panel('position_similarity', 'ViT-L/32', _LARGE_32),
      Panel('attention_distance', 'ViT-L/16', _LARGE, _IMAGES),
    ],
    'Filters and position embeddings belong to ViT-L/32; attention distances'
    f" to ViT-L/16, as means over {_IMAGES} images. The paper's finding:"
    ' filters are a plausible basis of the structure of patches; patches that'
    ' are near, or in the same row or column, have similar position embeddings;'
    ' the distance grows with the depth, and some heads look far already in the'
    ' first blocks.',
    answer_claims,
  )


def figure10() -> Item:
  """Position embeddings by hyper-parameters (D.4)."""
  lower = Pretraining(
    'ViT-L/16',
    values.JFT,
    7,
    options=(('schedule.peak', 2e-4), ('optimizer.weight_decay', 0.01)),
    label='LR 2e-4, WD 0.01',
  )
  # Runs with Table 3's settings are shared with Tables 2 and 6.
  nodes = (lower, *(Pretraining('ViT-L/16', values.JFT, n) for n in (7, 14)))

  return _item(
    'figure10',
    'Position embeddings by hyper-parameters',
    [Panel('position_similarity', node.name, node) for node in nodes],
    'All are ViT-L/16. The titles have the learning rate (LR) and the weight'
    " decay (WD) of each run. The paper's finding: the pattern depends on the"
    ' length of the training, the learning rate and the weight decay.',
    title_of=_hyper_parameters,
  )


def _hyper_parameters(node: Pretraining, results: Results) -> str:
  """Returns a run's own length, rate and decay; its name if unfinished."""
  folder = results.folder(node)
  config = folder and config_lib.load(folder)
  if not config:
    return node.name
  length = f'{node.epochs:g} epochs'
  if not results.comparable:  # The epochs are only the paper's.
    length = f'{config["total_steps"]:,} steps'
  rate, decay = config['schedule']['peak'], config['optimizer']['weight_decay']
  return f'{length}, LR {rate:g}, WD {decay:g}'


def figure11() -> Item:
  """Attention distance of a ViT and a hybrid (D.7)."""
  hybrid, vit = 'R50+ViT-L/16', 'ViT-L/16'

  def answer_claims(drawn: Drawn) -> Sequence[Claim]:
    of_hybrid, of_vit = (_distances(drawn, name) for name in (hybrid, vit))
    return [claims.hybrids_look_less_locally(hybrid, of_hybrid, vit, of_vit)]

  return _item(
    'figure11',
    'Attention distance of a ViT and a hybrid',
    [
      Panel('attention_distance', vit, _LARGE, _IMAGES),
      Panel('attention_distance', hybrid, _HYBRID, _IMAGES),
    ],
    f"Means over {_IMAGES} images. The paper's finding: early blocks of the"
    " hybrid attend less locally, because the ResNet before them does a ViT's"
    ' local attention already.',
    answer_claims,
  )


def figure14() -> Item:
  """Figure 6 for many images (D.8)."""
  return _item(
    'figure14',
    'What attention attends to, in more images',
    [Panel('rollout', 'ViT-L/16', _LARGE, _IMAGES)],
    'As Figure 6, for more images, which are evenly spaced over the held-out'
    ' ones.',
  )


def _item(
  name: str,
  title: str,
  panels: Sequence[Panel],
  caption: str,
  answer_claims: Callable[[Drawn], Sequence[Claim]] = lambda drawn: (),
  title_of: Callable[[Pretraining, Results], str] | None = None,
) -> Item:
  """Makes an item that is one picture.

  Args:
    name: of the item.
    title: of the item.
    panels: see `pictures.draw`.
    caption: below the picture.
    answer_claims: returns the paper's claims about the picture, with our
      answers.
    title_of: returns the title of the panel of a run; None keeps its title.
  """

  def render(results: Results, folder: pathlib.Path) -> Section:
    shown = [
      dataclasses.replace(panel, title=title_of(panel.node, results))
      if title_of
      else panel
      for panel in panels
    ]
    drawn = pictures.draw(name, shown, results, folder)
    blocks = []
    if drawn.titles:
      blocks.append(Picture(title, f'{folder.name}/{name}', caption))
    positions = any(panel.kind == 'position_similarity' for panel in panels)
    notes = (_MINI_POSITIONS,) if positions and not results.comparable else ()
    return Section(
      name,
      title,
      (*blocks, *answer_claims(drawn)),
      notes=notes,
      missing=drawn.notes,
    )

  nodes = tuple(dict.fromkeys(panel.node for panel in panels))
  return Item(name, title, nodes, render)


def _distances(drawn: Drawn, title: str) -> claims.Distances | None:
  # The file may be left over from an earlier drawing with other panels.
  return claims.read(drawn.numbers, title) if title in drawn.titles else None
