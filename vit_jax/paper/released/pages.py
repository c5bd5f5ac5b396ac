"""The pages on released weights: accuracies, pictures, and what makes them."""

import dataclasses
import datetime
import pathlib
from collections.abc import Sequence
from typing import Any

from etils import epath

from vit_jax import data as data_lib
from vit_jax.configs import finetune
from vit_jax.interop import catalog
from vit_jax.pages import drawing
from vit_jax.paper import inside, items, page
from vit_jax.paper.page import texts
from vit_jax.paper.released import eval_only
from vit_jax.paper.released.files import (
  FIGURES,
  PRINTED,
  SETS,
  TUNED,
  Place,
  uses,
)
from vit_jax.paper.report import Cell, Number, Picture, Section, Table
from vit_jax.paper.runs import Results
from vit_jax.sweep import state
from vit_jax.sweep.spec import Run, Study
from vit_jax.workdir.files import absolute

WORD = 'released'
_IMAGENET = 'tfds:imagenet2012'
# The names of splits to evaluate on, in the order of preference.
_SPLITS = ('validation', 'val', 'test')
# Set config keys that change no accuracy, as the images are those of `evals`.
_FREE = ('data.', 'mesh.')
_NOTES = (
  'Table 5 has another fine-tuning at 384 px, without averaged weights; the'
  ' paper does not print its dropout. "README" is that of'
  ' github.com/google-research/vision_transformer: weights that were fine-tuned'
  ' at 384 px by their public code, by dropout, which is not known of a file;'
  ' and what the authors expect of a file for 224 px.',
  'Measured by vit_jax.main --eval_only'
  ' --config=configs/robustness.py:MODEL,SET,resolution=SIZE'
  ' --config.init.checkpoint=FILE: images are resized to the square of SIZE'
  ' that the file is for.',
)
_ABOUT = (
  "Nothing was trained here: all is from the files that the paper's authors"
  ' released, pre-trained on ImageNet-21k. The models of JFT-300M are not'
  ' public. The printed numbers are of other fine-tunings than the files, so'
  ' small differences mean nothing.'
)


def run(
  weights: str,
  workdir: pathlib.Path,
  *,
  data: str,
  keys: Sequence[str],
  only_list: bool,
  only_render: bool,
) -> None:
  """Evaluates and draws what is missing, and writes WORKDIR/released.

  Args:
    weights: the folder of the released files; '': that of the catalogue.
    workdir: may also hold a reproduction by runs, which stays as it is.
    data: see `find_images`.
    keys: config keys to set, KEY=VALUE.
    only_list: prints the files and does nothing else.
    only_render: evaluates nothing.

  Raises:
    ValueError: an evaluation failed, or the images cannot be read.
  """
  where = absolute(weights) if weights else catalog.folder()
  place = Place(where, workdir / WORD, keys)
  files = {name: place.find(name) for name in uses()}
  there = f'{sum(map(bool, files.values()))} of {len(files)} files, {where}'
  if only_list:
    for name, path in files.items():
      print(f'{catalog.entry(name).address}, for {", ".join(uses()[name])}')
      print(f'  {path or place.missing(name)}')
    print(there)
    return
  drawing.check_matplotlib()
  if weights and not where.is_dir():
    raise ValueError(f'--weights={weights}: there is no such folder.')
  images, lacking = find_images(data, keys)
  place = dataclasses.replace(place, images=images, lacking=lacking)
  place.folder.mkdir(parents=True, exist_ok=True)
  with state.lock(place.folder, holder='process that works on these pages'):
    failures = [] if only_render else evaluate(place)
    shown = [accuracies(place), *(figure(name, place) for name in FIGURES)]
    facts = {
      'weights': there,
      'images': ', split '.join([*images.values()][:2]) or 'missing',
      'date': datetime.date.today().isoformat(),
    }
    title = 'An Image is Worth 16x16 Words, from released weights'
    head = {'title': title, 'facts': facts, 'about': [_ABOUT]}
    page.write(shown, place.folder, **head)
  print(page.markdown(shown, **head))
  done = texts.summary(shown).get(texts.COMPLETE, 0)
  print(
    f'{place.folder}/index.html: {done} of {len(shown)} sections are complete.'
  )
  if failures:
    raise ValueError('\n'.join(failures))


def find_images(
  spec: str, keys: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
  """Finds out what can be shown and evaluated.

  Args:
    spec: data spec of a copy of ImageNet. Its classes must be WordNet ids, but
      it may lack classes. Other photographs can be shown, not evaluated. '':
      TFDS's copy, if there is one.
    keys: config keys to set, KEY=VALUE.

  Returns:
    `images` and `lacking` of a `Place`.

  Raises:
    ValueError: `spec` cannot be read, or no split of it is for evaluation.
  """
  values = dict(key.partition('=')[::2] for key in keys)
  folder = values.get('data.data_dir')
  images, lacking = {}, {}
  try:
    info = data_lib.open_source(spec or _IMAGENET, data_dir=folder).info
    [split, *_] = [
      *(split for split in _SPLITS if split in info.splits),
      *(info.splits if len(info.splits) == 1 else ()),
    ] or ['']
    if not split:
      raise ValueError(
        f'{info.spec} has the splits {", ".join(info.splits)}; expected one of'
        f' {", ".join(_SPLITS)}, or a single split.'
      )
    images = {'dataset': spec or _IMAGENET, 'split': split}
    images['data_dir'] = folder or ''
    if unknown := sorted({*info.class_names} - {*eval_only.class_names()}):
      lacking['validation'] = (
        f"{info.spec} has classes that are not ImageNet's WordNet ids, such as"
        f' {unknown[0]!r}.'
      )
  except ValueError as error:
    if spec:
      raise
    lacking['validation'] = str(error).splitlines()[0]
  real = finetune.REAL
  try:
    data_lib.open_source(
      real['dataset'], data_dir=folder, label_key=real['label_key']
    )
  except ValueError as error:
    lacking['real'] = str(error).splitlines()[0]
  return images, lacking


def _kept(
  path: epath.Path, which: str, place: Place
) -> tuple[pathlib.Path, str, Any]:
  """Returns the first arguments of `eval_only`'s functions."""
  of = {
    'file': inside.ended(path),
    'data': finetune.REAL['dataset'],
    'set': sorted(key for key in place.keys if not key.startswith(_FREE)),
  }
  if which == 'validation':
    of['data'] = [place.images.get(key) for key in ('dataset', 'split')]
  return place.folder / 'evaluations', f'{path.stem},{which}', of


def evaluate(place: Place) -> list[str]:
  """Evaluates each file that is there on each set, once; returns failures."""
  failures = []
  for row in PRINTED.rows:
    entry, path = catalog.entry(f'{TUNED}{row}'), place.find(f'{TUNED}{row}')
    for which in {*SETS} - {*place.lacking} if path else ():
      kept = _kept(path, which, place)
      if eval_only.result(*kept):
        continue
      words = [f'--config.{key}' for key in place.keys]
      if which == 'validation':
        words += [
          f'--config.evals.validation.dataset={place.images["dataset"]}',
          f'--config.evals.validation.split={place.images["split"]}',
          '--config.evals.validation.classes=names',
        ]
      argument = f'{entry.model},{which},resolution={entry.image_size}'
      failures.append(eval_only.evaluate(*kept, argument, path, *words))
  return [why for why in failures if why]


def accuracies(place: Place) -> Section:
  """Returns the section on ImageNet and ImageNet-ReaL."""
  cells, missing, notes = {}, [], []
  for which, why in place.lacking.items():
    missing.append(f'Missing: the images of {SETS[which]}. {why}')
  for row in PRINTED.rows:
    name, ours = f'{TUNED}{row}', {}
    path = place.find(name)
    if path is None:
      missing.append(place.missing(name))
    for which in SETS if path else ():
      if found := eval_only.result(*_kept(path, which, place)):
        accuracy, count = (found[f'{which}/{m}'] for m in ('accuracy', 'count'))
        ours[which] = Number((100 * accuracy,), (name,))
        notes.append(f'Accuracy ({which}) on {count:,.0f} images.')
    size = catalog.entry(name).image_size
    for column in PRINTED.columns:
      which = 'real' if column == SETS['real'] else 'validation'
      # A file counts once, however many numbers it is compared with.
      first, paper = column in SETS.values(), PRINTED[row, column]
      if first or paper:
        place_in_table = f'{row}.npz, {size} px', column
        cells[place_in_table] = Cell(ours.get(which), paper, expected=first)
  return Section(
    PRINTED.name,
    PRINTED.title,
    [
      Table(
        'Accuracy in percent',
        [*dict.fromkeys(row for row, _ in cells)],
        PRINTED.columns,
        cells,
      )
    ],
    notes=[*dict.fromkeys(notes), *_NOTES],
    missing=missing,
  )


def figure(name: str, place: Place) -> Section:
  """Draws a figure as far as its files are there, and returns its section."""
  item, panels = items.ITEMS[name], FIGURES[name]
  files = {panel.node.name: place.find(panel.node.name) for panel in panels}
  missing = [place.missing(file) for file, path in files.items() if not path]
  there = [panel for panel in panels if files[panel.node.name]]
  if not place.images and any(panel.images for panel in there):
    missing.append(f'Missing: images. {place.lacking["validation"]}')
    there = [panel for panel in there if not panel.images]
  results = Results(
    [Study(file, finals=[Run(file, '')]) for file in files],
    {file: {} for file in files},
    workdir=files.get,
  )
  folder = place.folder / 'figures'
  drawn, failed = inside.draw(name, there, results, folder, place.images)
  used = [f'{f}.npz ({catalog.entry(f).image_size} px)' for f in files]
  papers = ' and '.join(node.name for node in item.shown('paper'))
  caption = ' '.join(
    [
      f"From {' and '.join(used)}, in place of the paper's {papers}. The images"
      ' are evenly spaced over the split.',
      *(claim.statement for claim in item.claims('paper')),
    ]
  )
  shown = [Picture(item.title, f'figures/{name}', caption)] if drawn else []
  return Section(name, item.title, shown, missing=[*missing, *failed])
