"""The released files that are needed, and what is printed of them."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax.interop import catalog
from vit_jax.paper.inside import Panel
from vit_jax.paper.items.figures.from_weights import IMAGES
from vit_jax.paper.numbers import IMAGENET, REAL, printed

# Sets of configs/robustness.py -> where Table 5 prints numbers of them.
SETS = {'validation': f'{IMAGENET}, Table 5', 'real': f'{REAL}, Table 5'}
TUNED = 'imagenet21k+imagenet2012/'
# Accuracies in percent after ImageNet-21k, by Table 5 at 384 px and by the
# README of github.com/google-research/vision_transformer: at 384 px by dropout,
# and at 224 px. The catalogue has no fine-tuned ViT-H/14.
PRINTED = printed('accuracies')


@dataclasses.dataclass(frozen=True)
class File:
  """A released file, in place of a run; `name` is that of the catalogue."""

  name: str


def _panel(kind: str, name: str, images: int = 0) -> Panel:
  return Panel(kind, catalog.entry(name).model, File(name), images)


# The files before fine-tuning have the paper's 224 px. Of their hybrids, only
# R50+ViT-B/16 has the paper's grid, 14x14, so it is beside ViT-B/16.
FIGURES = {
  'figure6': [_panel('rollout', f'{TUNED}ViT-L_16', 6)],
  'figure7': [
    _panel('filters', 'imagenet21k/ViT-L_32'),
    _panel('position_similarity', 'imagenet21k/ViT-L_32'),
    _panel('attention_distance', 'imagenet21k/ViT-L_16', IMAGES),
  ],
  'figure11': [
    _panel('attention_distance', 'imagenet21k/ViT-B_16', IMAGES),
    _panel('attention_distance', 'imagenet21k/R50+ViT-B_16', IMAGES),
  ],
  'figure14': [_panel('rollout', f'{TUNED}ViT-L_16', IMAGES)],
}


@dataclasses.dataclass(frozen=True)
class Place:
  """What the pages are made of, and where.

  Attributes:
    weights: folder of the released files.
    folder: WORKDIR/released.
    keys: config keys to set, KEY=VALUE.
    images: `dataset`, `split` and `data_dir` of the images to show; empty if
      there are none.
    lacking: sets of `SETS` that cannot be evaluated, and why.
  """

  weights: epath.Path
  folder: pathlib.Path
  keys: Sequence[str] = ()
  images: Mapping[str, str] = dataclasses.field(default_factory=dict)
  lacking: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def find(self, name: str) -> epath.Path | None:
    """Returns the file of a name of the catalogue; None without one."""
    path = self.weights / catalog.entry(name).local
    return path if path.exists() else None

  def missing(self, name: str) -> str:
    """Returns a sentence on a missing file: its name, and how to get it."""
    entry = catalog.entry(name)
    way, *_ = catalog.fetch_commands(name, self.weights / entry.local)
    return f'Missing: the file {entry.address}. To fetch it: {way}'


def uses() -> dict[str, list[str]]:
  """Returns name of a file -> the sections that need it, each once."""
  found = {f'{TUNED}{row}': [PRINTED.name] for row in PRINTED.rows}
  for figure, panels in FIGURES.items():
    for name in dict.fromkeys(panel.node.name for panel in panels):
      found.setdefault(name, []).append(figure)
  return found
