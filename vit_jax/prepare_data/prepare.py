"""Prepares a source, from the estimate to the report."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Sequence

from absl import logging

from vit_jax.data import exclusion
from vit_jax.data.ops import decoding
from vit_jax.data.source import Source
from vit_jax.prepare_data import (
  budget,
  finish,
  identical,
  parallel,
  releases,
  shards,
)
from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data.images import Size
from vit_jax.workdir import files

# A half of a file that nobody has written to for so many seconds is left over
# from a killed command, and not another command's.
_ABANDONED = 3600.0


def describe(
  source: Source,
  to: str,
  *,
  name: str = '',
  version: str = '1.0.0',
  splits: Sequence[str] = (),
  size: Size | None = None,
  max_pixels: int = decoding.MAX_PIXELS,
  shuffled: bool = True,
  merged: bool | None = None,
  shards: int = 0,
  processes: int = 1,
  damaged: Sequence[str] = (),
) -> job_lib.Job:
  """Describes a job; tells the bytes and the time that it takes.

  Args:
    source: the images.
    to: the folder of prepared data sets, local or remote.
    name: name of the data set; '' is made of the source's.
    version: three numbers with dots.
    splits: the splits to prepare; () means all.
    size: the largest size of stored images.
    max_pixels: images with more pixels are set aside.
    shuffled: whether records are in pseudo-random order, else the source's.
    merged: whether identical images become one record with several labels; None
      means for ImageNet-21k.
    shards: number of files of a split; 0 chooses it.
    processes: number of processes, for the estimate of time.
    damaged: what is wrong with the source, for the report.

  Raises:
    ValueError: a name is not one of TFDS's, a split is unknown, or the disk has
      no room.
  """
  spec = source.info.spec
  splits = tuple(splits or source.info.splits)
  if unknown := set(splits) - set(source.info.splits):
    raise ValueError(
      f'splits={",".join(splits)}: {spec} has no {sorted(unknown)}; its splits'
      f' are {list(source.info.splits)}.'
    )
  if len(set(splits)) < len(splits):
    raise ValueError(f'splits={",".join(splits)}: name each split once.')
  root = exclusion.split(spec)[0].partition(':')[2]
  name = name or job_lib.dataset_name(
    root.rstrip('/').rpartition('/')[2].removesuffix('.tar')
  )
  if name != job_lib.dataset_name(name):
    raise ValueError(
      f'name={name}: TFDS wants lower case, digits and underscores, such as'
      f' {job_lib.dataset_name(name)}.'
    )
  if not re.fullmatch(r'\d+\.\d+\.\d+', version):
    raise ValueError(f'version={version} must be three numbers, as in 1.0.0.')
  if merged is None:
    merged = not source.info.multi_label and releases.is_imagenet21k(
      source.info.class_names
    )
  job = job_lib.Job(
    source=source,
    root=str(files.absolute(root)) if root.startswith(('/', '~')) else root,
    target=files.absolute(to) / name / version,
    name=name,
    version=version,
    splits=splits,
    size=size or Size(),
    max_pixels=max_pixels,
    shuffled=shuffled,
    merged=merged,
    damaged=damaged,
  )
  estimates = {split: budget.estimate(job, split) for split in splits}
  budget.tell(estimates, processes)
  budget.check(job, sum(one.num_bytes for one in estimates.values()))
  counts = {
    split: min(shards, one.records)
    or job_lib.count_shards(one.num_bytes, one.records)
    for split, one in estimates.items()
  }
  return dataclasses.replace(job, shards=counts)


def run(
  job: job_lib.Job, *, part: tuple[int, int] = (0, 1), processes: int = 1
) -> str:
  """Does a job, or what is left of it.

  Args:
    job: from `describe`.
    part: (k, n): this machine's part of n.
    processes: number of processes.

  Returns:
    The report; '' if other parts are not done.

  Raises:
    ValueError: the target holds another data set, or another job was begun.
  """
  done = job_lib.is_done(job)
  job_lib.begin(job)
  if done:
    return finish.summary(job)
  try:
    return _run(job, part, processes)
  except FileNotFoundError:
    # Another command has ended the job meanwhile, and removed its state.
    if job_lib.is_done(job):
      return finish.summary(job)
    raise


def _run(job: job_lib.Job, part: tuple[int, int], processes: int) -> str:
  if part[1] == 1:  # Else it may be another part's, which is being written.
    for left in job.state.glob('*.tmp'):
      # Another command may rename its file at this moment.
      with contextlib.suppress(FileNotFoundError):
        if time.time() - left.stat().mtime > _ABANDONED:
          left.unlink()
  if job.merged:
    identical.find(job, part, processes)
  records = {split: shards.records_of(job, split) for split in job.splits}
  every = job_lib.shards(job, records)
  mine = [
    shard
    for i, shard in enumerate(every)
    if i % part[1] == part[0] and not shards.is_written(job, shard)
  ]
  for _ in parallel.run(
    *(shards.write, job, mine),
    processes=processes,
    records=sum(shard.stop - shard.start for shard in mine),
    what='Wrote',
  ):
    pass
  left = [shard for shard in every if not shards.is_written(job, shard)]
  if not left:
    return finish.finish(job, every)
  if job_lib.is_done(job):  # Another part has just written the report.
    return finish.summary(job)
  logging.info(
    'This part is done. Other parts have %d of %d files left; the last one to'
    ' end writes the report.',
    *(len(left), len(every)),
  )
  return ''
