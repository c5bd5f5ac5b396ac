"""Data: random-access sources, operations on records, batches.

`open_source('folder:/data/flowers')` opens a data set and `View` selects the
records of a split expression such as `train[:98%]+validation`, or a random
tenth, `shuffled(train)[:10%]`. `python -m vit_jax.data` prints what an
expression selects.
"""

import functools
import inspect

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
from vit_jax.data.sources.digits import Digits
from vit_jax.data.sources.folder import Classes, Folder
from vit_jax.data.sources.mixture import Mixture
from vit_jax.data.sources.shapes import Shapes
from vit_jax.data.sources.tables import HuggingFace, Parquet
from vit_jax.data.sources.tars import Tar, WebDataset
from vit_jax.data.sources.tfds import ArrayRecord, Tfds
from vit_jax.data.sources.vtab_tasks import Vtab

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
  complete = argument or kind in ('digits', 'shapes')
  if kind not in SOURCES or not complete:
    usages = '\n  '.join(usage for _, usage in SOURCES.values())
    raise ValueError(
      f'Data spec {spec!r} is unknown or incomplete; choose one of\n  {usages}'
    )
  opener = SOURCES[kind][0]
  options['open_part'] = open_part
  taken = inspect.signature(opener).parameters
  return opener(
    *[argument] * bool(argument),
    **{key: value for key, value in options.items() if key in taken},
  )
