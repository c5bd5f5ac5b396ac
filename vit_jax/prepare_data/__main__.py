"""Prepares images once: verified, in files with random access, as TFDS's.

  python -m vit_jax.prepare_data --source=folder:/data/birds --to=/data/tfds
  python -m vit_jax.prepare_data --source=tar:/data/ILSVRC --to=gs://bucket/tfds
  python -m vit_jax.prepare_data --source=tar:/data/winter21 --to=/data/tfds
  python -m vit_jax.prepare_data --source=hf:ylecun/mnist --to=/data/tfds
  python -m vit_jax.prepare_data --source=tfds:cifar10 --to=/data/tfds

Writes DIR/NAME/VERSION in the layout of TensorFlow Datasets, with ArrayRecord
files, which TFDS reads as NAME, and this package as tfds:NAME (with
data.data_dir=DIR) or as arrayrecord:DIR/NAME.

Every image is decoded once. Its bytes stay as they are if every reader decodes
them to 8-bit RGB. Other formats, CMYK, 16 bits and animations are converted.
What cannot be decoded whole is listed in set_aside.csv. report.txt counts all.

First, the bytes and the time are estimated (--dry_run ends there). A killed
command goes on when it is started again; at most the files that were being
written are made again, with the same bytes. Many machines share the work if
each gets the same command with its own --part=K/N (0/4, 1/4, 2/4, 3/4), and a
DIR that all of them see.

A source is a data spec, or one of two kinds that only this command reads:

  tar:PATH   tar files with a tar file or a folder for each class
  wds:PATH   the shards of a WebDataset

A source tfds:NAME is prepared by TFDS itself, or, if there is a copy in
TFRecord format, converted record by record, with all of its features.
"""

import shlex
from collections.abc import Sequence

from absl import flags

from vit_jax import data
from vit_jax.data import exclusion
from vit_jax.data.ops import decoding
from vit_jax.prepare_data import parallel, prepare, tars, tfds_copy
from vit_jax.prepare_data.images import Size
from vit_jax.runtime import command_line

_SOURCE = flags.DEFINE_string(
  'source', None, 'Source, such as folder:/data/birds or tar:/data/winter21.'
)
_TO = flags.DEFINE_string(
  'to', None, 'Folder for prepared data sets, local or in a bucket.'
)
_NAME = flags.DEFINE_string(
  'name', '', "Name of the data set ('': the last part of the source)."
)
_VERSION = flags.DEFINE_string('version_number', '1.0.0', 'Version to write.')
_SPLITS = flags.DEFINE_list('splits', [], 'Splits to prepare (default: all).')
_SHORTER_SIDE = flags.DEFINE_integer(
  'shorter_side', 0, 'Shrink larger images to this shorter side in pixels.'
)
_AREA = flags.DEFINE_integer(
  'area', 0, 'Shrink larger images to this number of pixels.'
)
_QUALITY = flags.DEFINE_integer(
  'quality', 95, 'Quality of JPEGs that are written, 1 to 100.'
)
_MAX_PIXELS = flags.DEFINE_integer(
  'max_pixels', decoding.MAX_PIXELS, 'Set aside images with more pixels.'
)
_ORDER = flags.DEFINE_enum(
  'order',
  'shuffled',
  ['shuffled', 'source'],
  'shuffled: a fixed random order, so that train[:10%] is a random tenth.'
  " source: the source's own order, which reads faster from a hard disk or a"
  ' bucket.',
)
_MERGE = flags.DEFINE_enum(
  'merge',
  'auto',
  ['auto', 'yes', 'no'],
  'Whether copies of an image, equal to the byte, become one record with all of'
  ' their labels. This reads everything twice. auto: for ImageNet-21k.',
)
_SHARDS = flags.DEFINE_integer(
  'shards', 0, 'Files per split (0: of 256 MiB, at most 1,024).', lower_bound=0
)
_PROCESSES = flags.DEFINE_integer(
  'processes', 0, 'Processes to use (0: one per core).', lower_bound=0
)
_PART = flags.DEFINE_string('part', '0/1', "K/N: this machine's part of N.")
_DATA_DIR = flags.DEFINE_string(
  'data_dir', '', "For tfds: and vtab:, the folder of TFDS's data."
)
_IMAGE_KEY = flags.DEFINE_string(
  'image_key', 'image', 'Column or feature that holds the image.'
)
_LABEL_KEY = flags.DEFINE_string(
  'label_key', 'label', 'Column or feature that holds the label.'
)
_NUM_CLASSES = flags.DEFINE_integer(
  'num_classes', 0, 'Number of classes of labels without names.', lower_bound=0
)
_SKIP_DAMAGED = flags.DEFINE_bool(
  'skip_damaged',
  False,
  'Go on although tar files end early; the report names them.',
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Only estimate the bytes and the time.'
)


def main() -> None:
  decoding.own_process()
  part = command_line.parse_part(_PART.value)
  processes = _PROCESSES.value or parallel.cores()
  if _SOURCE.value.startswith('tfds:'):
    _check_no_effect()
    print(
      tfds_copy.prepare(
        *(_SOURCE.value, _TO.value, _DATA_DIR.value, part, processes)
      )
    )
    return
  _check_read_by(_SOURCE.value.partition(':')[0])
  source, damaged = _open(_SOURCE.value)
  job = prepare.describe(
    source,
    _TO.value,
    name=_NAME.value,
    version=_VERSION.value,
    splits=_SPLITS.value,
    size=Size(_SHORTER_SIDE.value, _AREA.value, _QUALITY.value),
    max_pixels=_MAX_PIXELS.value,
    shuffled=_ORDER.value == 'shuffled',
    merged={'yes': True, 'no': False}.get(_MERGE.value),
    shards=_SHARDS.value,
    processes=processes,
    damaged=damaged,
  )
  if _DRY_RUN.value:
    return
  report = prepare.run(job, part=part, processes=processes)
  if report:
    folder = job.target.parent
    print(
      f'{report}\nRead it as arrayrecord:{folder}, or as tfds:{job.name} with'
      f' {shlex.quote(f"--config.data.data_dir={folder.parent}")}'
    )


def _open(spec: str) -> tuple[data.Source, Sequence[str]]:
  """Opens a source; also returns what is wrong with its tar files."""
  base, excluded = exclusion.split(spec)
  kind, _, path = base.partition(':')
  if kind in tars.KINDS:
    found = tars.Tars(kind, path, skip_damaged=_SKIP_DAMAGED.value)
    reduced = exclusion.Excluding(found, excluded) if excluded else found
    return reduced, found.damaged
  source = data.open_source(
    spec,
    data_dir=_DATA_DIR.value,
    image_key=_IMAGE_KEY.value,
    label_key=_LABEL_KEY.value,
    num_classes=_NUM_CLASSES.value,
  )
  return source, ()


# TFDS's records are copied as they are, so these would do nothing.
_NOT_OF_TFDS = (
  *(_NAME, _VERSION, _SPLITS, _SHORTER_SIDE, _AREA, _QUALITY, _MAX_PIXELS),
  *(_ORDER, _MERGE, _SHARDS, _IMAGE_KEY, _LABEL_KEY, _NUM_CLASSES),
  *(_SKIP_DAMAGED, _DRY_RUN),
)


def _check_no_effect() -> None:
  """Raises ValueError for a flag that a source `tfds:` would ignore."""
  ignored = [
    f'--{flag.name}' for flag in _NOT_OF_TFDS if flag.value != flag.default
  ]
  if ignored:
    raise ValueError(
      f'{", ".join(ignored)}: the records of {_SOURCE.value} are prepared as'
      ' TFDS stores them. Leave this out; then prepare the result again, as'
      ' --source=arrayrecord:DIR/NAME with another --name.'
    )


# Flags, and the kinds of source that read them.
_READ_BY = (
  ((_IMAGE_KEY, _LABEL_KEY, _NUM_CLASSES), ('arrayrecord', 'hf')),
  ((_SKIP_DAMAGED,), ('tar', 'wds')),
)


def _check_read_by(kind: str) -> None:
  """Raises ValueError for a flag that a kind of source would ignore."""
  for options, kinds in _READ_BY:
    ignored = [f'--{f.name}' for f in options if f.value != f.default]
    if ignored and kind not in kinds:
      raise ValueError(
        f'{", ".join(ignored)} has no effect on {kind}: data; only'
        f' {", ".join(f"{reader}:" for reader in kinds)} have what it names.'
        ' Leave it out.'
      )


if __name__ == '__main__':
  command_line.run(main, required=('source', 'to'))
