"""Prepares a source, from the estimate to the report."""

import dataclasses
import json
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from PIL import Image

from vit_jax.data import exclusion
from vit_jax.data.ops import decoding
from vit_jax.data.source import Source, View
from vit_jax.prepare_data import images, merging, report
from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data.job import Job
from vit_jax.runtime import distributed, printable
from vit_jax.workdir import files

# Shards keep one open file each. Larger ones take longer to make again.
_SHARD_BYTES = 256 * 2**20
_SHARD_RECORDS = 65_536
_MOST_SHARDS = 1024
_SAMPLES = 200  # Images of a split that an estimate reads.
_GIB = 2**30


def describe(
  source: Source,
  to: str,
  *,
  name: str = '',
  splits: Sequence[str] = (),
  count: int = 0,
  processes: int = 1,
  **options: Any,
) -> Job:
  """Describes a job; tells the bytes and the time that it takes.

  Args:
    source: the images.
    to: the folder of prepared data sets, local or remote.
    name: name of the data set; '' is made of the source's.
    splits: the splits to prepare; () means all.
    count: number of files of a split; 0 chooses it.
    processes: number of processes, for the estimate of time.
    **options: further attributes of a `Job`.

  Raises:
    ValueError: a name is not one of TFDS's, a split is unknown, or images that
      are no files in folders of classes are to be merged.
  """
  info = source.info
  splits = tuple(dict.fromkeys(splits or info.splits))
  if unknown := set(splits) - set(info.splits):
    raise ValueError(
      f'splits={",".join(splits)}: {info.spec} has no {sorted(unknown)}; its'
      f' splits are {list(info.splits)}.'
    )
  kind, _, root = exclusion.split(info.spec)[0].partition(':')
  base = root.rstrip('/').rpartition('/')[2].removesuffix('.tar')
  name = name or _dataset_name(base)
  if name != _dataset_name(name):
    raise ValueError(
      f'name={name}: TFDS wants lower case, digits and underscores, such as'
      f' {_dataset_name(name)}.'
    )
  job = Job(
    source=source,
    root=str(files.absolute(root)) if root.startswith(('/', '~')) else root,
    target=files.absolute(to) / name / job_lib.VERSION,
    name=name,
    splits=splits,
    **options,
  )
  if job.merged and kind not in ('folder', 'classes', 'tar'):
    raise ValueError(
      f'--merge compares files of folder:, classes: and tar:, not {info.spec}.'
    )
  counts = {}
  for split in splits:
    records = info.splits[split]
    num_bytes, sec = _estimate(job, split)
    logging.info(
      '%s: %s images, about %.3g GiB, at %.2f ms of a core each: about %s with'
      ' %d processes.',
      *(split, f'{records:,}', num_bytes / _GIB, 1e3 * sec),
      *(printable.duration(records * sec / processes), processes),
    )
    wanted = max(num_bytes / _SHARD_BYTES, records / _SHARD_RECORDS)
    wanted = count or max(1, min(math.ceil(wanted), _MOST_SHARDS))
    counts[split] = min(wanted, records)
  return dataclasses.replace(job, shards=counts)


def _dataset_name(text: str) -> str:
  """Makes a TFDS name of a text: lower case, digits and underscores."""
  name = re.sub(r'[^a-z0-9]+', '_', text.lower()).strip('_')
  return name if name[:1].isalpha() else f'data_{name}'.strip('_')


def _estimate(job: Job, split: str) -> tuple[float, float]:
  """Returns bytes of all images of a split, and seconds of a core for each.

  Some evenly spaced images are stored to nowhere.
  """
  records = job.source.info.splits[split]
  indices = np.linspace(0, records - 1, min(records, _SAMPLES)).astype(np.int64)
  Image.init()  # Loads Pillow's plugins, which the time below leaves out.
  found, began = 0, time.perf_counter()
  for record in job_lib.records(View(job.source, split), indices.tolist()):
    try:
      if not isinstance(record, OSError):
        args = record.image, record.name, job.size, job.max_pixels
        found += len(images.store(*args)[0])
    except decoding.CorruptImageError:
      pass
  sec = (time.perf_counter() - began) / len(indices)
  return found / len(indices) * records, sec


def run(job: Job, *, part: tuple[int, int] = (0, 1), processes: int = 1) -> str:
  """Does a job, or what is left of it.

  Args:
    job: from `describe`.
    part: (k, n): this machine's part of n.
    processes: number of processes.

  Returns:
    The report; '' if other parts are not done.

  Raises:
    ValueError: the target holds another data set, another job was begun, or a
      part is to merge images.
  """
  if job.merged and part[1] > 1:
    raise ValueError(
      '--merge compares all images on one machine. Leave --part or --merge out.'
    )
  _begin(job)
  info = job.target / report.INFO
  if not info.exists():
    made = job
    if job.merged:
      folder = job.target / job_lib.STATE
      merged = merging.Merged(job.source, job.splits, folder)
      made = dataclasses.replace(job, source=merged)
    every, missing = made.every(), set(made.missing())
    mine = [shard for shard in every[part[0] :: part[1]] if shard in missing]
    job_lib.write(made, mine, processes)
    try:
      left = made.missing()
      if not left:
        report.write(job)
    except FileNotFoundError:
      # Another part may have ended the job meanwhile, and removed its facts.
      if not info.exists():
        raise
  if info.exists():
    return (job.target / report.TEXT).read_text()
  logging.info(
    'This part is done. Other parts have %d of %d files left; the last one to'
    ' end writes the report.',
    *(len(left), len(every)),
  )
  return ''


def _begin(job: Job) -> None:
  """Notes what is being prepared, or checks that the same job was begun."""
  mine = json.loads(json.dumps(job.describe()))
  path = job.target / 'report.json'
  if not path.exists():
    if (job.target / report.INFO).exists():
      raise ValueError(
        f'{job.target} holds a data set that this command has not written.'
        ' Choose another --to or --name.'
      )
    files.write_json(path, {'job': mine})  # This makes the folder, too.
  remedy = 'Choose another --to or --name, or delete that folder'
  begun = files.read_object(path, remedy).get('job', {})
  begun = {key: begun.get(key) for key in mine}
  if found := distributed.differences(begun, mine, 'then', 'now'):
    raise ValueError(
      f'{job.target} was begun with other data or options:\n{found}.\n{remedy}.'
    )
