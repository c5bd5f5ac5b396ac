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
from vit_jax.paper.claims import inspection_claims
from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.claims.inspection_claims import (
  FIGURE_10,
  HYBRID,
  LARGE,
  STUDIED,
)
from vit_jax.paper.items.item import Item
from vit_jax.paper.pictures import Panel
from vit_jax.paper.report import Picture, Section
from vit_jax.paper.runs import Pretraining, Results

# Number of images in mean distances, and in Figure 14.
_IMAGES = 128
# Number of images in Figure 6, which follows from its page in the paper.
_FEW = 6
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


def figure6() -> Item:
  """Images beside the patches that attention takes them from (Section 4.5)."""
  return _item(
    'figure6',
    'What attention attends to',
    lambda scale: [Panel('rollout', 'ViT-L/16', LARGE, _FEW)],
    "The paper's finding: the model attends to the parts of an image that"
    ' matter for its class. The maps show attention rollout (D.8): in each'
    ' block, attention weights are averaged over the heads; then the averages'
    ' of all blocks are multiplied.',
  )


def figure7() -> Item:
  """Filters, position embeddings and attention distances (Section 4.5)."""

  def panels(scale: str) -> list[Panel]:
    studied = STUDIED[scale]
    return [
      Panel('filters', studied.model, studied),
      Panel('position_similarity', studied.model, studied),
      Panel('attention_distance', LARGE.model, LARGE, _IMAGES),
    ]

  return _item(
    'figure7',
    'Filters, position embeddings and attention distance',
    panels,
    "The paper's finding: the first filters look like a basis for the structure"
    ' of patches. Patches that are near each other, or in the same row or'
    ' column, have similar position embeddings. The attention distance grows'
    ' with the depth, but some heads look far already in the first blocks.'
    f' Attention distances are means over {_IMAGES} images.',
    inspection_claims.figure7,
  )


def figure10() -> Item:
  """Position embeddings by hyper-parameters (D.4)."""
  return _item(
    'figure10',
    'Position embeddings by hyper-parameters',
    lambda scale: [
      Panel('position_similarity', node.name, node) for node in FIGURE_10[scale]
    ],
    'All panels show the same model, trained with other settings. The title of'
    ' a panel has the length of the training, the learning rate (LR) and the'
    " weight decay (WD). The paper's finding: the pattern of the position"
    ' embeddings depends on these settings.',
    inspection_claims.figure10,
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
  return _item(
    'figure11',
    'Attention distance of a ViT and a hybrid',
    lambda scale: [
      Panel('attention_distance', vit, LARGE, _IMAGES),
      Panel('attention_distance', hybrid, HYBRID, _IMAGES),
    ],
    "The paper's finding: the early blocks of a hybrid attend less locally than"
    ' those of a ViT. The ResNet before these blocks may already do what local'
    ' attention does in a ViT. Attention distances are means over'
    f' {_IMAGES} images.',
    inspection_claims.figure11,
  )


def figure14() -> Item:
  """Figure 6 for many images (D.8)."""
  return _item(
    'figure14',
    'What attention attends to, in more images',
    lambda scale: [Panel('rollout', 'ViT-L/16', LARGE, _IMAGES)],
    'As Figure 6, for more images. They are taken at equal intervals from the'
    ' held-out images.',
  )


def _item(
  name: str,
  title: str,
  panels: Callable[[str], Sequence[Panel]],
  caption: str,
  claims: Callable[[str], Sequence[Claim]] = lambda scale: (),
  title_of: Callable[[Pretraining, Results], str] | None = None,
) -> Item:
  """Makes an item that is one picture.

  Args:
    name: of the item.
    title: of the item.
    panels: returns the panels at a scale, see `pictures.draw`.
    caption: below the picture.
    claims: returns the paper's claims about the picture at a scale.
    title_of: returns the title of the panel of a run; None keeps its title.
  """

  def render(results: Results, folder: pathlib.Path) -> Section:
    shown = [
      dataclasses.replace(panel, title=title_of(panel.node, results))
      if title_of
      else panel
      for panel in panels(results.structure)
    ]
    drawn = pictures.draw(name, shown, results, folder)
    blocks = []
    if drawn.titles:
      blocks.append(Picture(title, f'{folder.name}/{name}', caption))
    positions = any(panel.kind == 'position_similarity' for panel in shown)
    notes = (_MINI_POSITIONS,) if positions and not results.comparable else ()
    return Section(
      name,
      title,
      blocks,
      notes=notes,
      missing=drawn.notes,
    )

  def nodes(scale: str) -> tuple[Pretraining, ...]:
    return tuple(dict.fromkeys(panel.node for panel in panels(scale)))

  return Item(
    name,
    title,
    nodes('paper'),
    render,
    in_miniature=nodes('mini'),
    claims=claims,
  )
