"""The released files that are needed, and where they are on this machine."""

from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.interop import catalog

# Files whose accuracies are measured, in the order of the table. There is no
# fine-tuned ViT-H/14 in the catalogue.
FINE_TUNED = (
  'imagenet21k+imagenet2012/ViT-B_16',
  'imagenet21k+imagenet2012/ViT-B_32',
  'imagenet21k+imagenet2012/ViT-L_16',
  'imagenet21k+imagenet2012/ViT-L_32',
  'imagenet21k+imagenet2012/R50+ViT-B_16',
  'imagenet21k+imagenet2012/ViT-B_16-224',
  'imagenet21k+imagenet2012/ViT-L_16-224',
)
# Images in mean attention distances and in Figure 14, as in the paper.
IMAGES = 128
# Figure -> its panels: what is shown (see `inside.Panel`), of which file, in
# how many images. The files before fine-tuning have the paper's 224 px. Of
# their hybrids, only R50+ViT-B/16 has the paper's grid, 14x14, so it is beside
# ViT-B/16.
FIGURES: dict[str, Sequence[tuple[str, str, int]]] = {
  'figure6': (('rollout', 'imagenet21k+imagenet2012/ViT-L_16', 6),),
  'figure7': (
    ('filters', 'imagenet21k/ViT-L_32', 0),
    ('position_similarity', 'imagenet21k/ViT-L_32', 0),
    ('attention_distance', 'imagenet21k/ViT-L_16', IMAGES),
  ),
  'figure11': (
    ('attention_distance', 'imagenet21k/ViT-B_16', IMAGES),
    ('attention_distance', 'imagenet21k/R50+ViT-B_16', IMAGES),
  ),
  'figure14': (('rollout', 'imagenet21k+imagenet2012/ViT-L_16', IMAGES),),
}
ACCURACIES = 'accuracies'


def uses() -> dict[str, list[str]]:
  """Returns name of a file -> the sections that need it, each once."""
  found = {name: [ACCURACIES] for name in FINE_TUNED}
  for figure, panels in FIGURES.items():
    for name in dict.fromkeys(name for _, name, _ in panels):
      found.setdefault(name, []).append(figure)
  return found


def find(name: str, folder: epath.Path) -> epath.Path | None:
  """Returns the local file of a name of the catalogue; None without one.

  Args:
    name: such as `imagenet21k/ViT-B_16`.
    folder: holds the file in the bucket's own sub-folder, `imagenet21k`, or
      itself. Files before and after fine-tuning have the same name, so without
      a sub-folder the number of classes tells which one it is.

  Raises:
    ValueError: a file without a sub-folder cannot be read.
  """
  entry = catalog.entry(name)
  path = folder / entry.local
  if path.exists():
    return path
  path = folder / path.name
  if not path.exists():
    return None
  with path.open('rb') as file, np.load(file) as arrays:
    classes = arrays['head/bias'].size if 'head/bias' in arrays else None
  return path if classes == entry.num_classes else None


def version(path: epath.Path) -> list[int]:
  """Returns what changes with a file: its size in bytes, and its time in s."""
  found = path.stat()
  return [found.length, int(found.mtime)]


def missing(name: str, folder: epath.Path) -> str:
  """Returns a sentence on a missing file: its name, and how to get it."""
  entry = catalog.entry(name)
  way, *_ = catalog.fetch_commands(name, folder / entry.local)
  return f'Missing: the file {entry.address}. To fetch it: {way}'


def listing(folder: epath.Path) -> str:
  """Returns lines on each file: its place, its uses, and how to get it."""
  lines, there, sections = [], 0, uses()
  for name, needed_by in sections.items():
    entry, path = catalog.entry(name), find(name, folder)
    lines += [entry.address, f'  for: {", ".join(needed_by)}']
    if path:
      there += 1
      lines.append(f'  found: {path}')
    else:
      way, *_ = catalog.fetch_commands(name, folder / entry.local)
      lines += ['  missing; fetch it with', f'    {way}']
  lines.append(f'{there} of {len(sections)} files are in {folder}.')
  return '\n'.join(lines)
