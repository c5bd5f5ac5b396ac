"""Data: random-access sources, operations on records, batches.

`open_source('folder:/data/flowers')` opens a data set and `View` selects the
records of a split expression such as `train[:98%]+validation`, or a random
tenth, `shuffled(train)[:10%]`. `python -m vit_jax.data` prints what an
expression selects.
"""

import importlib
import inspect
from collections.abc import Callable

from vit_jax.data import exclusion
from vit_jax.data.identity import digest as digest
from vit_jax.data.source import Picked as Picked
from vit_jax.data.source import Record as Record
from vit_jax.data.source import Source as Source
from vit_jax.data.source import SourceInfo as SourceInfo
from vit_jax.data.source import View as View
from vit_jax.data.source import read_labels as read_labels

# Kind of a data spec -> the class or function that opens it. MODULE:CLASS is
# imported when a data set is opened, as some need large libraries.
SOURCES: dict[str, str | Callable[..., Source]] = {
  'digits': 'vit_jax.data.sources.digits:Digits',
  'shapes': 'vit_jax.data.sources.shapes:Shapes',
  'folder': 'vit_jax.data.sources.folder:Folder',
  'classes': 'vit_jax.data.sources.folder:Classes',
  'arrayrecord': 'vit_jax.data.sources.tfds:ArrayRecord',
  'tfds': 'vit_jax.data.sources.tfds:Tfds',
  'hf': 'vit_jax.data.sources.hub:HuggingFace',
  'vtab': 'vit_jax.vtab.source:Vtab',
}


def open_source(
  spec: str,
  *,
  data_dir: str | None = None,
  image_key: str = 'image',
  label_key: str = 'label',
  num_classes: int | None = None,
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
      `tfds:`, `arrayrecord:` and `hf:` use this and the following two.
    label_key: the feature or column that holds the label.
    num_classes: number of classes of a label without names; 0 takes it from the
      data set.

  Raises:
    ValueError: the kind is unknown, its argument is missing, or the source
      refuses the argument; data of this kind are prepared first; or the list is
      about other data.
  """
  options = {
    'data_dir': data_dir or None,
    'image_key': image_key,
    'label_key': label_key,
    'num_classes': num_classes or None,
  }
  base, excluded = exclusion.split(spec)
  if excluded:
    return exclusion.Excluding(open_source(base, **options), excluded)
  kind, _, argument = spec.partition(':')
  if kind not in SOURCES:
    raise _spec_error(spec)
  opener = SOURCES[kind]
  if isinstance(opener, str):
    module, _, name = opener.partition(':')
    opener = getattr(importlib.import_module(module), name)
  signature = inspect.signature(opener)
  arguments = [argument] * bool(argument)
  taken = {k: v for k, v in options.items() if k in signature.parameters}
  try:
    signature.bind(*arguments, **taken)
  except TypeError as error:  # An argument is missing, or there is none.
    raise _spec_error(spec) from error
  return opener(*arguments, **taken)


def _spec_error(spec: str) -> ValueError:
  return ValueError(
    f'Data spec {spec!r} is unknown or incomplete; expected KIND or'
    f' KIND:ARGUMENT, where KIND is one of {", ".join(SOURCES)}. docs/data.md'
    ' explains them. Tar files are prepared first: python -m'
    ' vit_jax.prepare_data --source=tar:PATH --to=DIR'
  )
