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

A source tfds:NAME is prepared by TFDS itself, or, if there is a copy in
TFRecord format, converted record by record, with all of its features.
"""

import dataclasses
import re

from absl import flags, logging

from vit_jax import data
from vit_jax.data import decode
from vit_jax.prepare_data import (
  budget,
  finish,
  identical,
  parallel,
  releases,
  shards,
  tfds_copy,
)
from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data.images import Size
from vit_jax.runtime import command_line
from vit_jax.workdir import files

_SOURCE = flags.DEFINE_string(
  'source', None, 'Data spec, such as folder:/data/birds or tar:/data/winter21.'
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
  'max_pixels', decode.MAX_PIXELS, 'Set aside images with more pixels.'
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
  part = _parse_part(_PART.value)
  processes = _PROCESSES.value or parallel.cores()
  if _SOURCE.value.startswith('tfds:'):
    print(
      tfds_copy.prepare(
        *(_SOURCE.value, _TO.value, _DATA_DIR.value, part, processes)
      )
    )
    return
  job = _estimate(_describe(), processes)
  if _DRY_RUN.value:
    return
  if job_lib.is_done(job):
    job_lib.begin(job)  # Checks that it was this job.
    print(finish.summary(job))
    _tell_how_to_read(job)
    return
  job.state.mkdir(parents=True, exist_ok=True)
  job_lib.begin(job)
  if job.merged:
    identical.find(job, part, processes)
  records = {split: shards.records_of(job, split) for split in job.splits}
  every = job_lib.shards(job, records)
  mine = [
    shard
    for i, shard in enumerate(every)
    if i % part[1] == part[0] and not shards.is_written(job, shard)
  ]
  count = sum(shard.stop - shard.start for shard in mine)
  for _ in parallel.run(
    shards.write, job, mine, processes=processes, records=count, what='Wrote'
  ):
    pass
  left = [shard for shard in every if not shards.is_written(job, shard)]
  if left and not job_lib.is_done(job):
    logging.info(
      'This part is done. Other parts have %d of %d files left; the last one to'
      ' end writes the report.',
      *(len(left), len(every)),
    )
    return
  print(finish.finish(job, every))
  _tell_how_to_read(job)


def _describe() -> job_lib.Job:
  """Returns the job that the flags describe, without its shards."""
  spec = _SOURCE.value
  source = data.open_source(
    spec,
    data_dir=_DATA_DIR.value,
    image_key=_IMAGE_KEY.value,
    label_key=_LABEL_KEY.value,
    num_classes=_NUM_CLASSES.value,
    allow_damaged=_SKIP_DAMAGED.value,
  )
  splits = tuple(_SPLITS.value or source.info.splits)
  if unknown := set(splits) - set(source.info.splits):
    raise ValueError(
      f'--splits={",".join(splits)}: {spec} has no {sorted(unknown)}; its'
      f' splits are {list(source.info.splits)}.'
    )
  root = spec.partition(':')[2]
  name = _NAME.value or job_lib.dataset_name(
    re.sub(r'\.(tar|parquet)$', '', root.rstrip('/').rpartition('/')[2])
  )
  if name != job_lib.dataset_name(name):
    raise ValueError(
      f'--name={name}: TFDS wants lower case, digits and underscores, such as'
      f' {job_lib.dataset_name(name)}.'
    )
  if not re.fullmatch(r'\d+\.\d+\.\d+', _VERSION.value):
    raise ValueError(
      f'--version_number={_VERSION.value} must be three numbers, such as 1.0.0.'
    )
  merge = _MERGE.value == 'yes' or (
    _MERGE.value == 'auto'
    and not source.info.multi_label
    and releases.is_imagenet21k(source.info.class_names)
  )
  return job_lib.Job(
    source=source,
    root=str(files.absolute(root)) if root.startswith(('/', '~')) else root,
    target=files.absolute(_TO.value) / name / _VERSION.value,
    name=name,
    version=_VERSION.value,
    splits=splits,
    size=Size(_SHORTER_SIDE.value, _AREA.value, _QUALITY.value),
    max_pixels=_MAX_PIXELS.value,
    shuffled=_ORDER.value == 'shuffled',
    merged=merge,
  )


def _estimate(job: job_lib.Job, processes: int) -> job_lib.Job:
  """Tells the bytes and the time; returns the job with its shards."""
  estimates = {split: budget.estimate(job, split) for split in job.splits}
  budget.tell(estimates, processes)
  budget.check(job, sum(one.num_bytes for one in estimates.values()))
  counts = {
    split: min(_SHARDS.value, one.records)
    or job_lib.count_shards(one.num_bytes, one.records)
    for split, one in estimates.items()
  }
  return dataclasses.replace(job, shards=counts)


def _parse_part(text: str) -> tuple[int, int]:
  found = re.fullmatch(r'(\d+)/(\d+)', text)
  if not found or not int(found[1]) < int(found[2]):
    raise ValueError(
      f'--part={text}: expected K/N with K from 0 to N - 1, such as 0/4.'
    )
  return int(found[1]), int(found[2])


def _tell_how_to_read(job: job_lib.Job) -> None:
  folder = job.target.parent
  print(
    f'Read it as arrayrecord:{folder}, or as tfds:{job.name} with'
    f' --config.data.data_dir={folder.parent}'
  )


if __name__ == '__main__':
  command_line.run(main, required=('source', 'to'))
