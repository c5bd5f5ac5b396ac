"""Prepares images once: verified, in files with random access, as TFDS's.

  python -m vit_jax.prepare_data --source=folder:/data/birds --to=/data/tfds
  python -m vit_jax.prepare_data --source=tar:/data/ILSVRC --to=gs://bucket/tfds
  python -m vit_jax.prepare_data --source=tar:/data/winter21 --to=/data/tfds
  python -m vit_jax.prepare_data --source=hf:ylecun/mnist --to=/data/tfds

Writes DIR/NAME/1.0.0 in the layout of TensorFlow Datasets, with ArrayRecord
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

A source is a data spec, or tar:PATH, which only this command reads: tar files
with a tar file or a folder for each class.
"""

import shlex

import joblib
from absl import flags

from vit_jax import data
from vit_jax.data import source_flags
from vit_jax.data.ops import decoding
from vit_jax.prepare_data import prepare, tars
from vit_jax.prepare_data.images import Size
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(source_flags)
_SOURCE = flags.DEFINE_string(
  'source', None, 'Source, such as folder:/data/birds or tar:/data/winter21.'
)
_TO = flags.DEFINE_string(
  'to', None, 'Folder for prepared data sets, local or in a bucket.'
)
_NAME = flags.DEFINE_string(
  'name', '', "Name of the data set ('': the last part of the source)."
)
_SPLITS = flags.DEFINE_list('splits', [], 'Splits to prepare (default: all).')
_SHORTER_SIDE = flags.DEFINE_integer(
  'shorter_side', 0, 'Shrink larger images to this shorter side in pixels.', 0
)
_AREA = flags.DEFINE_integer(
  'area', 0, 'Shrink larger images to this number of pixels.', 0
)
_QUALITY = flags.DEFINE_integer(
  'quality', 95, 'Quality of JPEGs that are written.', 1, 100
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
_MERGE = flags.DEFINE_bool(
  'merge',
  False,
  'Images equal to the byte become one image with the labels of all copies.',
)
_SHARDS = flags.DEFINE_integer(
  'shards', 0, 'Files per split (0: of 256 MiB, at most 1,024).', lower_bound=0
)
_PROCESSES = flags.DEFINE_integer(
  'processes', 0, 'Processes to use (0: one per core).', lower_bound=0
)
_PART = flags.DEFINE_string('part', '0/1', "K/N: this machine's part of N.")
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
  processes = _PROCESSES.value or joblib.cpu_count()
  job = prepare.describe(
    _open(_SOURCE.value),
    _TO.value,
    name=_NAME.value,
    splits=_SPLITS.value,
    size=Size(_SHORTER_SIDE.value, _AREA.value, _QUALITY.value),
    max_pixels=_MAX_PIXELS.value,
    shuffled=_ORDER.value == 'shuffled',
    merged=_MERGE.value,
    count=_SHARDS.value,
    processes=processes,
  )
  if _DRY_RUN.value:
    return
  if report := prepare.run(job, part=part, processes=processes):
    folder = job.target.parent
    print(
      f'{report}\nRead it as arrayrecord:{folder}, or as tfds:{job.name} with'
      f' {shlex.quote(f"--config.data.data_dir={folder.parent}")}'
    )


def _open(spec: str) -> data.Source:
  kind, _, path = spec.partition(':')
  if kind == 'tar':
    return tars.Tars(path, skip_damaged=_SKIP_DAMAGED.value)
  return data.open_source(spec, **source_flags.arguments())


if __name__ == '__main__':
  command_line.run(main, required=('source', 'to'))
