"""Writes features of images: `python -m vit_jax.features --checkpoint=PATH ...`

  --checkpoint=runs/birds --to=features photos             folders and files
  --checkpoint=augreg/B_16 --data=tfds:cifar10 --split=train --to=features/train
  --checkpoint=... --data=folder:/data/birds --split=train --to=gs://b/features
  ... --layer=block_5                                      an inner block
  ... --format=npz --dtype=float16 --shard_size=50000

The files are features-00000-of-00010.parquet and so on, with the columns index,
name, label and features, and _metadata.json: checkpoint, model, data, layer,
preprocessing, versions. Plain files and folders give no labels. The same
command continues an interrupted one: it keeps the shards that are complete,
and refuses a directory with features of other weights, images or settings.

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name from vit_jax/interop/catalog.py. Layers are
pre_logits (the head's input), encoded, logits, and block_0, block_1, ... of a
ViT or stage_1, ... of a ResNet; tokens are pooled as the model pools them.
Parquet needs pyarrow: pip install "vit-paper-jax[parquet]".

Exit codes: 0 all images have features; 1 an error; 3 some images could not be
read. They are named, and the others are written.
"""

import dataclasses
import sys
from collections.abc import Sequence

from absl import flags, logging

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.features import extraction, store
from vit_jax.inspection import model_flags, subject
from vit_jax.models import layers
from vit_jax.predict import images, predictor
from vit_jax.runtime import command_line, printable
from vit_jax.workdir import files

flags.adopt_module_key_flags(model_flags)
_DATA = flags.DEFINE_string(
  'data', None, 'Data spec, such as tfds:cifar10, in place of files.'
)
_SPLIT = flags.DEFINE_string(
  'split', 'train', 'Split expression of --data, as in vit_jax.data.'
)
_TO = flags.DEFINE_string('to', None, 'Directory for the features.')
_LAYER = flags.DEFINE_string(
  'layer', layers.DEFAULT, 'Layer whose output is written.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'parquet', store.FORMATS, 'Kind of the files.'
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'float32', extraction.DTYPES, 'Dtype in the files.'
)
_COMPUTE_DTYPE = flags.DEFINE_enum(
  'compute_dtype',
  'auto',
  predictor.DTYPES,
  'The compute dtype; auto: float32 on CPUs, bfloat16 on TPUs and GPUs.',
)
_SHARD_SIZE = flags.DEFINE_integer(
  'shard_size',
  100_000,
  'Images of a file; the memory holds the features of one.',
  lower_bound=1,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  'Most images of a batch, over all devices; by default 16 a CPU, or 128 a GPU'
  ' or TPU core.',
  lower_bound=1,
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', '', "Folder of the prepared TFDS data ('': TFDS's default)."
)
_IMAGE_KEY = flags.DEFINE_string(
  'image_key', 'image', 'TFDS feature that holds the image.'
)
_LABEL_KEY = flags.DEFINE_string(
  'label_key', 'label', 'TFDS feature that holds the label.'
)
_NUM_CLASSES = flags.DEFINE_integer(
  'num_classes',
  0,
  'Number of classes of a TFDS label without class names.',
  lower_bound=0,
)


def main(words: Sequence[str]) -> None:
  view = _view(words)
  model = predictor.load(
    model_flags.CHECKPOINT.value,
    batch_size=_BATCH_SIZE.value,
    dtype=_COMPUTE_DTYPE.value,
    **model_flags.arguments(),
  )
  if _DATA.value and not config_lib.is_located(_DATA.value):
    # As in the evaluations: TFDS's images stay as they are stored.
    model.preprocess = dataclasses.replace(model.preprocess, upright=False)
  logging.info('%s', printable.text(str(model)))
  for note in model.notes:
    logging.warning('%s', note)
  to = files.absolute(_TO.value)
  facts = extraction.extract(
    model,
    view,
    to,
    layer=_LAYER.value,
    suffix=_FORMAT.value,
    dtype=_DTYPE.value,
    shard_size=_SHARD_SIZE.value,
  )
  logging.info('Features of %s images are in %s.', f'{facts["rows"]:,}', to)
  if facts['unreadable']:
    logging.warning(
      '%d of %d images could not be read: %s.',
      *(facts['unreadable'], facts['images']),
      ', '.join(facts['unreadable_names'][:20])
      + (', ...' if facts['unreadable'] > 20 else ''),
    )
    sys.exit(command_line.UNREADABLE)


def _view(words: Sequence[str]) -> extraction.View:
  if bool(words) == bool(_DATA.value):
    raise ValueError(
      f'--data={_DATA.value} and files {list(words)}: give one of them.'
    )
  if words:
    return images.from_paths(subject.find_images(words))
  source = data.open_source(
    _DATA.value,
    data_dir=_DATA_DIR.value,
    image_key=_IMAGE_KEY.value,
    label_key=_LABEL_KEY.value,
    num_classes=_NUM_CLASSES.value,
  )
  return data.View(source, _SPLIT.value)


if __name__ == '__main__':
  command_line.run(
    main,
    required=('checkpoint', 'to'),
    arguments='image files and folders of them, such as photos',
    optional=True,
  )
