"""Estimates the bytes and the time of a job from some of its images."""

import dataclasses
import math
import os
import shutil
import time

import numpy as np
from absl import logging

from vit_jax.data.source import View
from vit_jax.prepare_data import images, reading
from vit_jax.prepare_data import job as job_lib
from vit_jax.runtime import printable

_SAMPLES = 200
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Estimate:
  """The estimate of a split.

  Attributes:
    records: number of images.
    num_bytes: bytes of all of them.
    error: its standard error, in bytes.
    sec: seconds of one core to read, check and convert one image.
  """

  records: int
  num_bytes: float
  error: float
  sec: float


def estimate(job: job_lib.Job, split: str) -> Estimate:
  """Stores some evenly spaced images to nowhere, and extrapolates."""
  records = job.source.info.splits[split]
  indices = np.linspace(0, records - 1, min(records, _SAMPLES)).astype(np.int64)
  sizes, view = [], View(job.source, split)
  began = time.perf_counter()
  for index in indices.tolist():
    record = reading.read(view, index)
    try:
      if isinstance(record, OSError):
        raise images.SetAsideError
      stored = images.store(record.image, record.name, job.size, job.max_pixels)
      sizes.append(len(stored.image))
    except images.SetAsideError:
      sizes.append(0)
  return Estimate(
    records=records,
    num_bytes=float(np.mean(sizes)) * records,
    error=float(np.std(sizes)) / math.sqrt(len(sizes)) * records,
    sec=(time.perf_counter() - began) / len(sizes),
  )


def tell(estimates: dict[str, Estimate], processes: int) -> None:
  """Logs the bytes and the time that a job takes."""
  for split, one in estimates.items():
    logging.info(
      '%s: %s images, about %.3g GiB (%.2g to %.2g), at %.2f ms of a core each:'
      ' about %s with %d processes.',
      *(split, f'{one.records:,}', one.num_bytes / _GIB),
      (one.num_bytes - 2 * one.error) / _GIB,
      (one.num_bytes + 2 * one.error) / _GIB,
      1e3 * one.sec,
      printable.duration(one.records * one.sec / processes),
      processes,
    )


def check(job: job_lib.Job, num_bytes: float) -> None:
  """Checks that a local disk has room for what is not written yet.

  Raises:
    ValueError: it has not.
  """
  target = os.fspath(job.target)
  if '://' in target:
    return
  free = shutil.disk_usage(_existing(target)).free
  written = job.target.glob('*.array_record-*') if job.target.exists() else ()
  num_bytes -= sum(path.stat().length for path in written)
  if num_bytes > free:
    raise ValueError(
      f'{target} needs about {num_bytes / _GIB:.3g} GiB more, and'
      f' {free / _GIB:.3g} GiB are free there. Choose another --to, or shrink'
      ' the images with --shorter_side or --area.'
    )


def _existing(path: str) -> str:
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path
