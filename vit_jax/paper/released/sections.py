"""The sections of the page: accuracies beside printed numbers, and pictures."""

import os
import pathlib
from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax.interop import catalog
from vit_jax.paper import inside
from vit_jax.paper.items.tables import table2, table5
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
_TABLE_5, _TABLE_2 = 'Table 5', 'Table 2'
_README = "Authors' README, dropout {}"
_README_224 = "Authors' README, 224 px"
_COLUMNS = {
  evaluating.VALIDATION: (
    *(_TABLE_5, _TABLE_2, _README.format('0.0'), _README.format('0.1')),
    _README_224,
  ),
  evaluating.REAL: (_TABLE_5, _TABLE_2),
}
# Accuracies of released ImageNet-21k weights, fine-tuned, in percent, by the
# README of github.com/google-research/vision_transformer: at 384 px by dropout,
# and at 224 px.
RELEASED = read_table(
  'released',
  'ImageNet',
  ('0.0', '0.1'),
  """
  R50+ViT-B/16  83.72  85.08
  ViT-B/16      84.53  84.12
  ViT-B/32      81.66  81.31
  ViT-L/16      84.47  85.05
  ViT-L/32      81.89  81.13
  """,
)
RELEASED_224 = {'ViT-B/16': Value(81.2), 'ViT-L/16': Value(82.7)}
# What differs between a file and what is printed.
_OTHER_RUN = (
  'another fine-tuning at 384 px, without averaged weights; the paper does not'
  ' print its dropout'
)
_LARGER = (
  'mean of 3 fine-tunings at 512 px with averaged weights; the file is for'
  ' {size} px, and whether its weights are averaged is not known'
)
_AT_384 = 'fine-tuned and tested at 384 px, the file at 224 px'
_DROPOUT = (
  'fine-tuned at 384 px by their public code; which dropout the file had is not'
  ' known here'
)
_EXPECTED = 'what the authors expect of this file'

# Images in mean attention distances and in Figure 14, as in the paper; and in
# Figure 6, as the items have them.
_IMAGES, _FEW = 128, 6
_TITLES = {
  'figure6': 'What attention attends to',
  'figure7': 'Filters, position embeddings and attention distance',
  'figure11': 'Attention distance of a ViT and a hybrid',
  'figure14': 'What attention attends to, in more images',
}
# Which model of the paper the files stand for, and the paper's finding.
_CAPTIONS = {
  'figure6': (
    'ViT-L/16',
    'The model attends to what the image is classified by.',
  ),
  'figure7': (
    'ViT-L/32 (filters and positions) and ViT-L/16 (distances)',
    'Filters are a plausible basis of the structure of patches; near patches,'
    ' and those of a row or column, have similar position embeddings; the'
    ' distance grows with the depth, and some heads look far already in the'
    ' first blocks.',
  ),
  'figure11': (
    'ViT-L/16 and R50x1+ViT-L/16',
    'Early blocks of the hybrid attend less locally. Of the hybrids in'
    " imagenet21k/, only R50+ViT-B/16 has the paper's 14x14 patches, so both"
    ' are B/16 here.',
  ),
}
_CAPTIONS['figure14'] = _CAPTIONS['figure6']


def printed(name: str, which: str) -> dict[str, Value]:
  """Returns what a file's accuracy is compared with, and what differs.

  Args:
    name: of the file in the catalogue.
    which: 'validation' or 'real'.

  Returns:
    Column of the table -> the printed number, whose note is what differs.
  """
  entry = catalog.entry(name)
  model, small = entry.model, entry.image_size == 224
  row, column = _SETS[which], f'{model}, {IMAGENET21K}'
  found = {}
  if model in table5.PAPER.columns:
    value = table5.PAPER[f'{IMAGENET21K}: {row}', model]
    found[_TABLE_5] = value, _AT_384 if small else _OTHER_RUN
  if column in table2.PAPER.columns:
    value = table2.PAPER[row, column]
    found[_TABLE_2] = value, _LARGER.format(size=entry.image_size)
  if which == evaluating.VALIDATION and not small:
    for dropout in ('0.0', '0.1'):
      value = RELEASED[model, dropout]
      found[_README.format(dropout)] = value, _DROPOUT
  elif which == evaluating.VALIDATION:
    found[_README_224] = RELEASED_224[model], _EXPECTED
  return {
    column: value.noted(f'{column}: {note}')
    for column, (value, note) in found.items()
  }


def accuracies(
  found: Mapping[str, epath.Path],
  weights: epath.Path,
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> Section:
  """Returns the section on ImageNet and ImageNet-ReaL.

  Args:
    found: name -> path of the files that are there.
    weights: the folder to which missing files belong.
    images: see `evaluating.find_images`.
    keys: config keys to set, KEY=VALUE.
    folder: where results are kept.
  """
  known = {
    name: evaluating.results(name, found[name], images, keys, folder)
    for name in files.FINE_TUNED
    if name in found
  }
  missing = [
    f'Missing: {_SETS[which]}, so there are no accuracies on it. {why}'
    for which, why in images.missing.items()
    if not any(which in results for results in known.values())
  ]
  missing += [
    files.missing(name, weights)
    for name in files.FINE_TUNED
    if name not in found
  ]
  counts = {
    which: {
      int(results[which]['count'])
      for results in known.values()
      if which in results
    }
    for which in _SETS
  }
  notes = [
    f'{_SETS[which]}: accuracy on {count:,} images'
    + ('.' if count >= evaluating.WHOLE[which] else ', which are not all.')
    for which in _SETS
    for count in sorted(counts[which])
  ]
  return Section(
    files.ACCURACIES,
    'Released files on ImageNet',
    [_table(which, known, counts[which]) for which in _SETS],
    notes=[*notes, _MEASURED],
    missing=missing,
  )


_MEASURED = (
  'Measured by vit_jax.main --eval_only'
  ' --config=configs/robustness.py:MODEL,validation+real,resolution=SIZE'
  ' --config.init.checkpoint=FILE: images are resized to the square of SIZE'
  ' that the file is for. The catalogue has no ViT-H/14 that is fine-tuned on'
  ' ImageNet.'
)


def _table(
  which: str,
  known: Mapping[str, Mapping[str, Mapping[str, float]]],
  counts: set[int],
) -> Table:
  cells, rows = {}, {}
  for name in files.FINE_TUNED:
    entry = catalog.entry(name)
    row = f'{name.rpartition("/")[2]}.npz, {entry.image_size} px'
    rows[row] = None
    result, ours = known.get(name, {}).get(which), None
    if result:
      ours = Number((100 * result['accuracy'],), (name,))
    # Without a printed number, ours stands alone in the first column.
    found = printed(name, which) or {_TABLE_5: None}
    for place, (column, paper) in enumerate(found.items()):
      # A file counts once, however many numbers it is compared with.
      cells[row, column] = Cell(ours, paper, expected=not place)
  return Table(
    _SETS[which],
    list(rows),
    _COLUMNS[which],
    cells,
    comparable=all(count >= evaluating.WHOLE[which] for count in counts),
  )


def figure(
  item: str,
  found: Mapping[str, epath.Path],
  weights: epath.Path,
  images: Images,
  folder: pathlib.Path,
) -> Section:
  """Draws a figure as far as its files are there, and returns its section.

  Args:
    item: a key of `files.FIGURES`.
    found: name -> path of the files that are there.
    weights: the folder to which missing files belong.
    images: to show.
    folder: where the figure goes, WORKDIR/released/figures.
  """
  wanted, notes = [], []
  for kind, name in files.FIGURES[item]:
    count = {'rollout': _IMAGES if item == 'figure14' else _FEW}.get(kind, 0)
    count = _IMAGES if kind == 'attention_distance' else count
    if name not in found:
      notes.append(files.missing(name, weights))
    elif count and not images.to_show:
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
        'workdir': os.fspath(found[name]),
        'ended': files.version(found[name]),
      }
      if count:
        panel['images_from'] = {
          'dataset': images.spec,
          'split': images.split,
          'data_dir': images.data_dir,
        }
      wanted.append(panel)
  drawn, left_out = inside.draw_wanted(item, wanted, folder, notes=notes)
  blocks = []
  if drawn:
    blocks.append(
      Picture(_TITLES[item], f'{folder.name}/{item}', _caption(item))
    )
  return Section(item, _TITLES[item], blocks, missing=left_out)


def _caption(item: str) -> str:
  """Returns which files stand for the paper's models, and the images."""
  panels = files.FIGURES[item]
  model, finding = _CAPTIONS[item]
  names = dict.fromkeys(name for _, name in panels)
  stand = ' and '.join(
    f'{name}.npz ({catalog.entry(name).image_size} px)' for name in names
  )
  verb = 'stands' if len(names) == 1 else 'stand'
  text = (
    f"{stand} {verb} for the paper's {model}; no weights that saw JFT-300M are"
    f" public. The paper's finding: {finding}"
  )
  if 'attention_distance' in dict(panels):
    text += f' Distances are means over up to {_IMAGES} images.'
  return f'{text} The images are evenly spaced over the split.'
