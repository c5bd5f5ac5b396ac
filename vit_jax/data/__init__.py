"""Data: random-access sources, operations on records, batches.

`open_source('folder:/data/flowers')` opens a data set and `View` selects the
records of a split expression such as `train[:98%]+validation`, or a random
tenth, `shuffled(train)[:10%]`. `python -m vit_jax.data` prints what an
expression selects.
"""

import functools
import importlib
import inspect
from collections.abc import Callable

from vit_jax.data import balance, exclusion
from vit_jax.data.balance import class_balance
from vit_jax.data.identity import digest
from vit_jax.data.source import (
  Picked,
  Record,
  Source,
  SourceInfo,
  View,
  read_labels,
)

__all__ = [
  'Picked',
  'Record',
  'Source',
  'SourceInfo',
  'View',
  'balance',
  'class_balance',
  'digest',
  'exclusion',
  'open_source',
  'read_labels',
]


# Kind of a data spec -> (what opens it, its form). The former is a class or
# function, or MODULE:CLASS, which is imported when a data set is opened: some
# need large libraries.
SOURCES: dict[str, tuple[str | Callable[..., Source], str]] = {
  'digits': ('vit_jax.data.sources.digits:Digits', 'digits[:13589]'),
  'shapes': ('vit_jax.data.sources.shapes:Shapes', 'shapes[:FACTOR]'),
  'folder': ('vit_jax.data.sources.folder:Folder', 'folder:PATH'),
  'classes': ('vit_jax.data.sources.folder:Classes', 'classes:PATH'),
  'tfds': ('vit_jax.data.sources.tfds:Tfds', 'tfds:NAME[/CONFIG][:VERSION]'),
  'arrayrecord': ('vit_jax.data.sources.tfds:ArrayRecord', 'arrayrecord:PATH'),
  'tar': ('vit_jax.data.sources.tars:Tar', 'tar:PATH'),
  'wds': ('vit_jax.data.sources.tars:WebDataset', 'wds:PATH'),
  'parquet': ('vit_jax.data.sources.tables:Parquet', 'parquet:PATH'),
  'hf': ('vit_jax.data.sources.tables:HuggingFace', 'hf:NAME_OR_PATH'),
  'mix': (
    'vit_jax.data.sources.mixture:Mixture',
    'mix:SPEC@WEIGHT+SPEC@WEIGHT',
  ),
  'vtab': ('vit_jax.vtab.source:Vtab', 'vtab:TASK'),
}


def open_source(
  spec: str,
  *,
  data_dir: str | None = None,
  image_key: str = 'image',
  label_key: str = 'label',
  num_classes: int | None = None,
  allow_damaged: bool = False,
) -> Source:
  """Opens the data set that a data spec names.

  A kind of source takes those of the options that concern it.

  Args:
    spec: `KIND` or `KIND:ARGUMENT`, such as `digits:13589`; `,exclude=FILE`
      after it leaves the examples in a list out, see `exclusion`.
    data_dir: for `tfds:` and `vtab:`, the folder of the prepared TFDS data (''
      means TFDS's default); for `shapes:`, the folder in which to keep rendered
      scenes ('' keeps none).
    image_key: the TFDS feature, or the column, that holds the image. Only
      `tfds:`, `arrayrecord:`, `hf:` and `parquet:` use this and the following
      two.
    label_key: the feature or column that holds the label.
    num_classes: number of classes of a label without names; 0 takes it from the
      data set.
    allow_damaged: for `tar:` and `wds:`, whether tar files may end early; the
      source then has the attribute `damaged`, a list of messages.

  Raises:
    ValueError: the kind is unknown, its argument is missing, or the source
      refuses the argument; or the list is about other data.
  """
  options = {
    'data_dir': data_dir or None,
    'image_key': image_key,
    'label_key': label_key,
    'num_classes': num_classes or None,
    'allow_damaged': allow_damaged,
  }
  open_part = functools.partial(open_source, **options)
  base, excluded = exclusion.split(spec)
  if excluded:
    return exclusion.Excluding(open_part(base), excluded)
  kind, _, argument = spec.partition(':')
  opener, _ = SOURCES.get(kind, (None, ''))
  if opener is None or not (argument or kind in ('digits', 'shapes')):
    forms = '\n  '.join(form for _, form in SOURCES.values())
    raise ValueError(
      f'Data spec {spec!r} is unknown or incomplete; docs/data.md explains the'
      f' choices:\n  {forms}'
    )
  if isinstance(opener, str):
    module, _, name = opener.partition(':')
    opener = getattr(importlib.import_module(module), name)
  options['open_part'] = open_part
  taken = inspect.signature(opener).parameters
  return opener(
    *[argument] * bool(argument),
    **{key: value for key, value in options.items() if key in taken},
  )
