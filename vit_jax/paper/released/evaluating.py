"""Accuracies of released files on ImageNet and ImageNet-ReaL.

Each file is evaluated once, by `vit_jax.main --eval_only` in a process of its
own. FOLDER/evaluations/FILE.json keeps the results, each with what it is of:
the file's size and time, the data, and the config keys that were set.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.configs import finetune
from vit_jax.interop import catalog
from vit_jax.paper.released import eval_only, files

# Sets of configs/robustness.py.
VALIDATION, REAL = 'validation', 'real'
IMAGENET = 'tfds:imagenet2012'
# A set with fewer images is not whole. Of the 50,000 images, those without a
# label do not count in ImageNet-ReaL.
WHOLE = {VALIDATION: 50_000, REAL: 40_000}
# The names of splits to evaluate on, in the order of preference.
_SPLITS = ('validation', 'val', 'test')
_FOLDER = 'evaluations'


@dataclasses.dataclass(frozen=True)
class Images:
  """The images to evaluate on and to show.

  Attributes:
    spec: data spec of the copy of ImageNet, or of other photographs.
    split: of it.
    data_dir: folder of TFDS's data; '' is the default.
    missing: sets that cannot be evaluated, and why.
    to_show: whether there are images for pictures.
  """

  spec: str
  split: str
  data_dir: str
  missing: Mapping[str, str]
  to_show: bool


def find_images(spec: str, keys: Sequence[str]) -> Images:
  """Finds out what can be evaluated and shown.

  Args:
    spec: data spec of a copy of ImageNet. Its classes must be WordNet ids, but
      it may lack classes. Other photographs can be shown, not evaluated. '':
      TFDS's copy, if there is one.
    keys: config keys to set, KEY=VALUE.

  Raises:
    ValueError: `spec` cannot be read, or no split of it is for evaluation.
  """
  data_dir = dict(key.partition('=')[::2] for key in keys).get(
    'data.data_dir', ''
  )
  missing, split, to_show = {}, 'validation', True
  try:
    source = data.open_source(spec or IMAGENET, data_dir=data_dir or None)
  except ValueError as error:
    if spec:
      raise
    missing[VALIDATION] = _first_line(error)
    to_show = False
  else:
    split = _split(source.info)
    if unknown := sorted(
      {*source.info.class_names} - {*eval_only.class_names()}
    ):
      missing[VALIDATION] = (
        f"{source.info.spec} has classes that are not ImageNet's WordNet ids,"
        f' such as {unknown[0]!r}.'
      )
  try:
    data.open_source(
      finetune.REAL['dataset'],
      data_dir=data_dir or None,
      label_key=finetune.REAL['label_key'],
    )
  except ValueError as error:
    missing[REAL] = _first_line(error)
  return Images(spec or IMAGENET, split, data_dir, missing, to_show)


def _first_line(error: ValueError) -> str:
  return str(error).splitlines()[0]


def _split(info: data.SourceInfo) -> str:
  found = [split for split in _SPLITS if split in info.splits]
  if not found and len(info.splits) > 1:
    raise ValueError(
      f'{info.spec} has the splits {", ".join(info.splits)}; expected one of'
      f' {", ".join(_SPLITS)}, or a single split.'
    )
  return found[0] if found else next(iter(info.splits))


def results(
  name: str,
  path: epath.Path,
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> dict[str, dict[str, float]]:
  """Returns the kept results of a file: set -> `accuracy` and `count`.

  Args:
    name: of the file in the catalogue.
    path: of the file.
    images: see `find_images`.
    keys: config keys to set, KEY=VALUE.
    folder: where results are kept.
  """
  identities = {which: _identity(which, path, images, keys) for which in WHOLE}
  return eval_only.results(_kept(name, folder), identities)


def evaluate(
  name: str,
  path: epath.Path,
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> str:
  """Evaluates a file on the sets that are there and have no result yet.

  An interrupted evaluation goes on after the last finished set.

  Args:
    name: of the file in the catalogue. The others are as for `results`.

  Returns:
    Why it failed; '' if it did not, or if there was nothing to do.
  """
  known = results(name, path, images, keys, folder)
  wanted = {
    which: _identity(which, path, images, keys)
    for which in WHOLE
    if which not in known and which not in images.missing
  }
  if not wanted:
    return ''
  return eval_only.evaluate(
    path.name,
    _kept(name, folder),
    wanted,
    command(name, path, list(wanted), images, keys, folder),
    ('accuracy', 'count'),
  )


def command(
  name: str,
  path: epath.Path,
  sets: Sequence[str],
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> list[str]:
  """Returns the module and the flags that evaluate a file, but --workdir."""
  entry = catalog.entry(name)
  words = []
  if VALIDATION in sets:
    words = [
      f'--config.evals.validation.dataset={images.spec}',
      f'--config.evals.validation.split={images.split}',
      '--config.evals.validation.classes=names',
    ]
  return eval_only.command(
    f'{entry.model},{"+".join(sets)},resolution={entry.image_size}',
    path,
    folder / _FOLDER,
    *words,
    *(f'--config.{key}' for key in keys if _is_for(key, sets)),
  )


def _identity(
  which: str, path: epath.Path, images: Images, keys: Sequence[str]
) -> dict[str, Any]:
  """Returns all that a result depends on, as JSON has it."""
  data_set = [finetune.REAL['dataset']]
  if which == VALIDATION:
    data_set = [images.spec, images.split]
  return {
    'file': files.version(path),
    'data': data_set,
    'set': sorted(
      key for key in keys if _is_for(key, [which]) and _changes_results(key)
    ),
  }


def _is_for(key: str, sets: Sequence[str]) -> bool:
  """Whether a set config key is not one of other sets only."""
  section, _, rest = key.partition('.')
  return section != 'evals' or rest.partition('.')[0] in sets


def _changes_results(key: str) -> bool:
  """Whether a set config key may change an accuracy."""
  name = key.partition('=')[0]
  is_free = name.startswith(config_lib.FREE_KEYS) or name.endswith('batch_size')
  # What evaluations do is free for a training run, not here.
  return not is_free or (
    name.startswith('evals.') and not name.endswith('.batch_size')
  )


def _kept(name: str, folder: pathlib.Path) -> pathlib.Path:
  return folder / _FOLDER / f'{name.rpartition("/")[2]}.json'
