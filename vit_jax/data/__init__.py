"""Data: random-access sources, operations on records, batches.

`open_source('folder:/data/flowers')` opens a data set and `View` selects the
records of a split expression such as `train[:98%]+validation`, or a random
tenth, `shuffled(train)[:10%]`. `python -m vit_jax.data` prints what an
expression selects.
"""

import functools

from vit_jax.data import balance, exclusion
from vit_jax.data.balance import class_balance
from vit_jax.data.digits import Digits
from vit_jax.data.folder import Classes, Folder
from vit_jax.data.huggingface import HuggingFace
from vit_jax.data.identity import digest
from vit_jax.data.mixture import Mixture
from vit_jax.data.parquet import Parquet
from vit_jax.data.shapes import Shapes
from vit_jax.data.source import (
  Picked,
  Record,
  Source,
  SourceInfo,
  View,
  read_labels,
)
from vit_jax.data.tars import Tar, WebDataset
from vit_jax.data.tfds import ArrayRecord, Tfds
from vit_jax.data.vtab_tasks import Vtab

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

# Kind of a data spec -> (its class, its line in the list of choices).
SOURCES = {
  'digits': (
    Digits,
    'digits[:13589]: real 8x8 scans of the given digits, or of all ten',
  ),
  'shapes': (
    Shapes,
    'shapes[:FACTOR]: rendered scenes, labelled with one of their factors',
  ),
  'folder': (
    Folder,
    'folder:PATH: image files, PATH/{class}/*.jpg or PATH/{split}/{class}/*',
  ),
  'classes': (
    Classes,
    'classes:PATH: the same; each folder in PATH is a class',
  ),
  'tfds': (Tfds, 'tfds:NAME[/CONFIG][:VERSION]: a prepared TFDS data set'),
  'arrayrecord': (
    ArrayRecord,
    'arrayrecord:PATH: a folder that prepare_data or TFDS has written',
  ),
  'tar': (Tar, 'tar:PATH: tar files with a folder or a tar file per class'),
  'wds': (WebDataset, 'wds:PATH: the shards of a WebDataset'),
  'parquet': (Parquet, 'parquet:PATH: Parquet files with an image column'),
  'hf': (
    HuggingFace,
    "hf:NAME_OR_PATH: a data set of Hugging Face's library `datasets`",
  ),
  'mix': (
    Mixture,
    'mix:SPEC@WEIGHT+SPEC@WEIGHT: several data sets, by their weights',
  ),
  'vtab': (Vtab, 'vtab:TASK: one of the 19 tasks of VTAB-1k, from TFDS data'),
}


def open_source(
  spec: str,
  *,
  data_dir: str = '',
  image_key: str = 'image',
  label_key: str = 'label',
  num_classes: int = 0,
  allow_damaged: bool = False,
) -> Source:
  """Opens the data set that a data spec names.

  Args:
    spec: `KIND` or `KIND:ARGUMENT`, such as `digits:13589`; `,exclude=FILE`
      after it leaves the examples in a list out, see `exclusion`.
    data_dir: for `tfds:` and `vtab:`, the folder of the prepared TFDS data (''
      means TFDS's default); for `shapes:`, the folder in which to keep rendered
      scenes ('' keeps none).
    image_key: the TFDS feature, or the column, that holds the image. Only
      `tfds:`, `arrayrecord:`, `hf:` and `parquet:` use this and the following
      arguments.
    label_key: the feature or column that holds the label.
    num_classes: number of classes of a label without names; 0 takes it from the
      data set.
    allow_damaged: for `tar:` and `wds:`, whether tar files may end early; the
      source then has the attribute `damaged`, a list of messages.

  Raises:
    ValueError: the kind is unknown, its argument is missing, or the source
      refuses the argument; or the list is about other data.
  """
  base, excluded = exclusion.split(spec)
  if excluded:
    whole = open_source(
      base,
      data_dir=data_dir,
      image_key=image_key,
      label_key=label_key,
      num_classes=num_classes,
      allow_damaged=allow_damaged,
    )
    return exclusion.Excluding(whole, excluded)
  kind, _, argument = spec.partition(':')
  complete = argument or kind in ('digits', 'shapes')
  if kind not in SOURCES or not complete:
    usages = '\n  '.join(usage for _, usage in SOURCES.values())
    raise ValueError(
      f'Data spec {spec!r} is unknown or incomplete; choose one of\n  {usages}'
    )
  options = {}
  if kind in ('tfds', 'vtab', 'shapes'):
    options['data_dir'] = data_dir or None
  if kind in ('tfds', 'arrayrecord', 'hf', 'parquet'):
    options |= {
      'image_key': image_key,
      'label_key': label_key,
      'num_classes': num_classes or None,
    }
  if kind in ('tar', 'wds'):
    options['allow_damaged'] = allow_damaged
  if kind == 'mix':
    options['open_part'] = functools.partial(
      open_source,
      data_dir=data_dir,
      image_key=image_key,
      label_key=label_key,
      num_classes=num_classes,
      allow_damaged=allow_damaged,
    )
  arguments = [argument] if argument else []
  return SOURCES[kind][0](*arguments, **options)
