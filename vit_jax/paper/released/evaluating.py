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
# Set config keys that change no accuracy, as the images are those of `evals`.
_FREE = ('data.', 'mesh.')


@dataclasses.dataclass(frozen=True)
class Images:
  """The images to evaluate on and to show.

  Attributes:
    spec: data spec of the copy of ImageNet, or of other photographs.
    split: of it; '' if there are no images.
    missing: sets that cannot be evaluated, and why.
    keys: config keys to set, KEY=VALUE.
    data_dir: folder of TFDS's data; '' is the default.
  """

  spec: str
  split: str
  missing: Mapping[str, str]
  keys: Sequence[str] = ()
  data_dir: str = ''


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
  missing, split = {}, ''
  values = dict(key.partition('=')[::2] for key in keys)
  data_dir = values.get('data.data_dir', '')
  try:
    info = data.open_source(spec or IMAGENET, data_dir=data_dir or None).info
  except ValueError as error:
    if spec:
      raise
    missing[VALIDATION] = str(error).splitlines()[0]
  else:
    split = _split(info)
    unknown = sorted({*info.class_names} - {*eval_only.class_names()})
    if unknown:
      missing[VALIDATION] = (
        f"{info.spec} has classes that are not ImageNet's WordNet ids, such as"
        f' {unknown[0]!r}.'
      )
  try:
    real = finetune.REAL
    data.open_source(
      real['dataset'], data_dir=data_dir or None, label_key=real['label_key']
    )
  except ValueError as error:
    missing[REAL] = str(error).splitlines()[0]
  return Images(spec or IMAGENET, split, missing, keys, data_dir)


def _split(info: data.SourceInfo) -> str:
  found = [split for split in _SPLITS if split in info.splits]
  if not found and len(info.splits) > 1:
    raise ValueError(
      f'{info.spec} has the splits {", ".join(info.splits)}; expected one of'
      f' {", ".join(_SPLITS)}, or a single split.'
    )
  return found[0] if found else next(iter(info.splits))


def results(
  name: str, path: epath.Path, images: Images, folder: pathlib.Path
) -> dict[str, dict[str, float]]:
  """Returns the kept results of a file: set -> `accuracy` and `count`.

  Args:
    name: of the file in the catalogue.
    path: of the file.
    images: see `find_images`.
    folder: where results are kept.
  """
  return eval_only.results(_kept(name, folder), _identities(path, images))


def evaluate(
  name: str, path: epath.Path, images: Images, folder: pathlib.Path
) -> str:
  """Evaluates a file on the sets that are there, if one has no result yet.

  An interrupted evaluation goes on after the last finished set.

  Args: as for `results`.

  Returns:
    Why it failed; '' if it did not, or if there was nothing to do.
  """
  wanted = {
    which: of
    for which, of in _identities(path, images).items()
    if which not in images.missing
  }
  if wanted.keys() <= results(name, path, images, folder).keys():
    return ''
  entry, words = catalog.entry(name), []
  if VALIDATION in wanted:
    words = [
      f'--config.evals.validation.dataset={images.spec}',
      f'--config.evals.validation.split={images.split}',
      '--config.evals.validation.classes=names',
    ]
  kept = _kept(name, folder)
  command = eval_only.command(
    f'{entry.model},{"+".join(wanted)},resolution={entry.image_size}',
    path,
    kept.parent,
    *words,
    *(f'--config.{key}' for key in images.keys),
  )
  return eval_only.evaluate(
    path.name, kept, wanted, command, ('accuracy', 'count')
  )


def _identities(path: epath.Path, images: Images) -> dict[str, dict[str, Any]]:
  """Returns set -> all that its result depends on, as JSON has it."""
  sets = {
    VALIDATION: [images.spec, images.split],
    REAL: [finetune.REAL['dataset']],
  }
  keys = sorted(key for key in images.keys if not key.startswith(_FREE))
  of = files.version(path)
  return {
    which: {'file': of, 'data': data_set, 'set': keys}
    for which, data_set in sets.items()
  }


def _kept(name: str, folder: pathlib.Path) -> pathlib.Path:
  return folder / 'evaluations' / f'{name.rpartition("/")[2]}.json'
