"""Writes features of images: `python -m vit_jax.features --checkpoint=PATH ...`

  --checkpoint=runs/birds --to=features photos             folders and files
  --checkpoint=augreg/B_16 --data=tfds:cifar10 --split=train --to=features/train
  --checkpoint=... --data=folder:/data/birds --split=train --to=gs://b/features
  ... --layer=block_5                                      an inner block
  ... --layer=block_11/norm/patches                        all of its patches
  ... --format=npz --dtype=float16 --shard_size=50000

The files are features-00000-of-00010.parquet and so on, with the columns index,
name, label and features, and _metadata.json: checkpoint, model, data, layer,
preprocessing, versions. Plain files and folders give no labels. The same
command continues an interrupted one: it keeps the shards that are complete,
and refuses a directory with features of other weights, images or settings.

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name from vit_jax/interop/catalog.py. Layers are
pre_logits (the head's input), encoded, logits, and block_0, block_1, ... of a
ViT or stage_1, ... of a ResNet; tokens are pooled as the model pools them. What
may follow a layer changes that:

  block_11/cls          the class token, without registers and the like
  block_11/patches      all patches, rows and columns of vectors
  block_11/norm/patches, block_11/norm/cls, block_11/norm
                        the same, or pooled, after the model's last norm

encoded is after that norm: encoded/patches and encoded/cls are the features of
DINOv2's papers. Patches are [rows, columns, D] in .npz files; in Parquet, which
has one list per image, np.stack(table.features).reshape(-1, *shape) gives them,
with the shape of _metadata.json. Neighbours and probes need vectors: a layer
without /patches. Parquet needs pyarrow: pip install "vit-paper-jax[parquet]".

Exit codes: 0 all images have features; 1 an error; 3 some images could not be
read. They are named in _metadata.json, and the others are written.
"""

import dataclasses
import sys
from collections.abc import Sequence

from absl import flags, logging

from vit_jax import config as config_lib
from vit_jax import data, images
from vit_jax.models import layers
from vit_jax.predict import commands, extraction, store
from vit_jax.predict.store import Stored
from vit_jax.runtime import command_line
from vit_jax.workdir import files

__all__ = ['Stored']


def _define_flags() -> None:
  """Defines the flags: not on an import, which is made for `Stored`."""
  commands.define_flags('compute_dtype')
  flags.DEFINE_string(
    'data', None, 'Data spec, such as tfds:cifar10, in place of files.'
  )
  flags.DEFINE_string(
    'split', 'train', 'Split expression of --data, as in vit_jax.data.'
  )
  flags.DEFINE_string('to', None, 'Directory for the features.')
  flags.DEFINE_string(
    'layer',
    layers.DEFAULT,
    'Layer whose output is written, with /norm, /cls or /patches after it.',
  )
  flags.DEFINE_enum('format', 'parquet', store.FORMATS, 'Kind of the files.')
  flags.DEFINE_enum(
    'dtype', 'float32', extraction.DTYPES, 'Dtype in the files.'
  )
  flags.DEFINE_integer(
    'shard_size',
    None,
    'Images of a file, whose features the memory holds; by default 100,000, or'
    ' fewer with 100,000 patches.',
    lower_bound=1,
  )
  # Also defined only here.
  from vit_jax.data import source_flags

  flags.adopt_module_key_flags(source_flags)


def main(words: Sequence[str]) -> None:
  given = flags.FLAGS
  view = _view(words)
  model = commands.from_flags('compute_dtype')
  if given.data and not config_lib.is_located(given.data):
    # As in the evaluations: TFDS's images stay as they are stored.
    model.preprocess = dataclasses.replace(model.preprocess, upright=False)
  to = files.absolute(given.to)
  facts = extraction.extract(
    model,
    view,
    to,
    layer=given.layer,
    suffix=given.format,
    dtype=given.dtype,
    shard_size=given.shard_size,
  )
  logging.info('Features of %s images are in %s.', f'{facts["rows"]:,}', to)
  if facts['unreadable']:
    logging.warning(
      '%d of %d images could not be read: %s names them.',
      *(facts['unreadable'], facts['images'], store.METADATA),
    )
    sys.exit(command_line.UNREADABLE)


def _view(words: Sequence[str]) -> extraction.View:
  from vit_jax.data import source_flags

  given = flags.FLAGS
  images.check_one(words, data=given.data)
  if words:
    return images.from_paths(images.find(words))
  source = data.open_source(given.data, **source_flags.arguments())
  return data.View(source, given.split)


if __name__ == '__main__':
  _define_flags()
  command_line.run(
    main,
    required=('checkpoint', 'to'),
    arguments='image files and folders of them, such as photos',
    optional=True,
  )
