"""The sections of the page: accuracies beside printed numbers, and pictures."""

import os
import pathlib
from collections.abc import Mapping

from etils import epath

from vit_jax.interop import catalog
from vit_jax.paper import inside
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import (
  IMAGENET,
  IMAGENET21K,
  REAL,
  Value,
  read_table,
)
from vit_jax.paper.released import evaluating, files
from vit_jax.paper.released.evaluating import Images
from vit_jax.paper.report import Cell, Number, Picture, Section, Table

_SETS = {evaluating.VALIDATION: IMAGENET, evaluating.REAL: REAL}
_TABLE_5, _README = 'Table 5', "Authors' README, {}"
# Accuracies of released ImageNet-21k weights, fine-tuned, in percent, by the
# README of github.com/google-research/vision_transformer: at 384 px by dropout,
# and at 224 px.
RELEASED = read_table(
  'released',
  'ImageNet',
  ('dropout 0.0', 'dropout 0.1', '224 px'),
  """
  R50+ViT-B/16  83.72  85.08  -
  ViT-B/16      84.53  84.12  81.2
  ViT-B/32      81.66  81.31  -
  ViT-L/16      84.47  85.05  82.7
  ViT-L/32      81.89  81.13  -
  """,
)
# What differs between a file and what is printed.
_OTHER_RUN = (
  'another fine-tuning at 384 px, without averaged weights; the paper does not'
  ' print its dropout'
)
_DROPOUT = (
  'fine-tuned at 384 px by their public code; which dropout the file had is not'
  ' known here'
)
_EXPECTED = 'what the authors expect of this file'
_MEASURED = (
  'Measured by vit_jax.main --eval_only'
  ' --config=configs/robustness.py:MODEL,validation+real,resolution=SIZE'
  ' --config.init.checkpoint=FILE: images are resized to the square of SIZE'
  ' that the file is for. The catalogue has no ViT-H/14 that is fine-tuned on'
  ' ImageNet.'
)
_MEANS = f'Distances are means over up to {files.IMAGES} images.'
_ATTENDS = (
  'ViT-L/16',
  'The model attends to what the image is classified by.',
)
# Figure -> its title, which model of the paper the files stand for, and the
# paper's finding.
_FIGURES = {
  'figure6': ('What attention attends to', *_ATTENDS),
  'figure7': (
    'Filters, position embeddings and attention distance',
    'ViT-L/32 (filters and positions) and ViT-L/16 (distances)',
    'Filters are a plausible basis of the structure of patches; near patches,'
    ' and those of a row or column, have similar position embeddings; the'
    ' distance grows with the depth, and some heads look far already in the'
    f' first blocks. {_MEANS}',
  ),
  'figure11': (
    'Attention distance of a ViT and a hybrid',
    'ViT-L/16 and R50x1+ViT-L/16',
    'Early blocks of the hybrid attend less locally. Of the hybrids in'
    " imagenet21k/, only R50+ViT-B/16 has the paper's 14x14 patches, so both"
    f' are B/16 here. {_MEANS}',
  ),
  'figure14': ('What attention attends to, in more images', *_ATTENDS),
}


def printed(name: str, which: str) -> dict[str, Value]:
  """Returns what a file's accuracy is compared with, and what differs.

  Args:
    name: of the file in the catalogue.
    which: 'validation' or 'real'.

  Returns:
    Column of the table -> the printed number, whose note is what differs.
  """
  entry, found = catalog.entry(name), {}
  small = entry.image_size == 224
  if not small and entry.model in table5.PAPER.columns:
    value = table5.PAPER[f'{IMAGENET21K}: {_SETS[which]}', entry.model]
    found[_TABLE_5] = value.noted(f'{_TABLE_5}: {_OTHER_RUN}')
  for column in RELEASED.columns if which == evaluating.VALIDATION else ():
    if small == (column == '224 px'):
      title, note = _README.format(column), _EXPECTED if small else _DROPOUT
      value = RELEASED[entry.model, column]
      found[title] = value.noted(f'{title}: {note}')
  return found


def accuracies(
  weights: epath.Path, images: Images, folder: pathlib.Path
) -> Section:
  """Returns the section on ImageNet and ImageNet-ReaL.

  Args:
    weights: the folder of the files.
    images: see `evaluating.find_images`.
    folder: where results are kept.
  """
  known, missing = {}, []
  for name in files.FINE_TUNED:
    path = files.find(name, weights)
    if path is None:
      missing.append(files.missing(name, weights))
      continue
    found = evaluating.results(name, path, images, folder)
    known |= {(name, which): result for which, result in found.items()}
  missing = [
    f'Missing: {_SETS[which]}, so there are no accuracies on it. {why}'
    for which, why in images.missing.items()
    if which not in {which for _, which in known}
  ] + missing
  tables, notes = [], []
  for which, title in _SETS.items():
    counts = {int(r['count']) for (_, w), r in known.items() if w == which}
    whole = evaluating.WHOLE[which]
    notes += [
      f'{title}: accuracy on {count:,} images'
      + ('.' if count >= whole else ', which are not all.')
      for count in sorted(counts)
    ]
    tables.append(_table(which, known, min(counts, default=whole) >= whole))
  return Section(
    files.ACCURACIES,
    'Released files on ImageNet',
    tables,
    notes=[*notes, _MEASURED],
    missing=missing,
  )


def _table(
  which: str,
  known: Mapping[tuple[str, str], Mapping[str, float]],
  comparable: bool,
) -> Table:
  cells = {}
  for name in files.FINE_TUNED:
    row = f'{name.rpartition("/")[2]}.npz, {catalog.entry(name).image_size} px'
    ours = None
    if result := known.get((name, which)):
      ours = Number((100 * result['accuracy'],), (name,))
    # Without a printed number, ours stands alone in the first column.
    found = printed(name, which) or {_TABLE_5: None}
    for place, (column, paper) in enumerate(found.items()):
      # A file counts once, however many numbers it is compared with.
      cells[row, column] = Cell(ours, paper, expected=not place)
  rows, columns = (dict.fromkeys(labels) for labels in zip(*cells, strict=True))
  return Table(_SETS[which], [*rows], [*columns], cells, comparable=comparable)


def figure(
  item: str, weights: epath.Path, images: Images, folder: pathlib.Path
) -> Section:
  """Draws a figure as far as its files are there, and returns its section.

  Args:
    item: a key of `files.FIGURES`.
    weights: the folder of the files.
    images: to show.
    folder: where the figure goes, WORKDIR/released/figures.
  """
  wanted, notes = [], []
  for kind, name, count in files.FIGURES[item]:
    path = files.find(name, weights)
    if path is None:
      notes.append(files.missing(name, weights))
    elif count and not images.split:
      notes.append(
        f'Missing: the images for {kind.replace("_", " ")}.'
        f' {images.missing[evaluating.VALIDATION]}'
      )
    else:
      panel = {
        'kind': kind,
        'title': catalog.entry(name).model,
        'images': count,
        'run': f'{name}.npz',
        'workdir': os.fspath(path),
        'ended': files.version(path),
      }
      if count:
        panel['images_from'] = {
          'dataset': images.spec,
          'split': images.split,
          'data_dir': images.data_dir,
        }
      wanted.append(panel)
  drawn, left_out = inside.draw_wanted(item, wanted, folder, notes=notes)
  title = _FIGURES[item][0]
  pictures = [Picture(title, f'{folder.name}/{item}', _caption(item))]
  return Section(item, title, pictures if drawn else (), missing=left_out)


def _caption(item: str) -> str:
  """Returns which files stand for the paper's models, and the images."""
  _, model, finding = _FIGURES[item]
  names = dict.fromkeys(name for _, name, _ in files.FIGURES[item])
  used = ' and '.join(
    f'{name}.npz ({catalog.entry(name).image_size} px)' for name in names
  )
  return (
    f"From {used}, in place of the paper's {model}; no weights that saw"
    f" JFT-300M are public. The paper's finding: {finding} The images are"
    ' evenly spaced over the split.'
  )
