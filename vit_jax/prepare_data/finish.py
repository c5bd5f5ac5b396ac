"""Describes the written shards: TFDS's metadata, checksums and the report."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import tensorflow_datasets as tfds
from absl import logging
from etils import epath
from tensorflow_datasets.core import naming

from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data import report, shards
from vit_jax.prepare_data.job import Job, Shard
from vit_jax.workdir import files

SUMS = 'SHA256SUMS'
SET_ASIDE = 'set_aside.csv'
MERGED = 'merged.csv'
TEXT = 'report.txt'


def finish(job: Job, all_shards: Sequence[Shard]) -> str:
  """Writes everything that follows from the shards, and removes the state.

  Several machines may do this at the same time: they write the same.

  Returns:
    The report as text.
  """
  found: dict[str, list[shards.Facts]] = {split: [] for split in job.splits}
  for shard in all_shards:
    found[shard.split].append(shards.read_facts(job, shard))
  totals = {split: _total(facts) for split, facts in found.items()}
  sums = [
    f'{facts.sha256}  {job.path(shard).name}\n'
    for shard, facts in zip(
      all_shards, (f for of in found.values() for f in of), strict=True
    )
  ]
  files.write_shared(job.target / SUMS, ''.join(sums).encode())
  rows = {split: facts.set_aside for split, facts in totals.items()}
  _write_table(job.target / SET_ASIDE, 'reason', rows)
  if job.merged:
    rows = {split: facts.copies for split, facts in totals.items()}
    _write_table(job.target / MERGED, 'merged with', rows)
  content = _content(job, totals)
  text = report.text(content)
  files.write_shared(job.target / TEXT, text.encode())
  job_lib.write_json(job.target / job_lib.REPORT, content)
  _write_metadata(job, found)
  # First, so that a kill in between leaves a data set that counts as done.
  (job.state / 'job.json').unlink(missing_ok=True)
  job.state.rmtree(missing_ok=True)
  return text


def _total(facts: Sequence[shards.Facts]) -> shards.Facts:
  total = shards.Facts()
  for one in facts:
    total.add(one)
  total.set_aside.sort()
  total.copies.sort()
  return total


def _write_table(
  path: epath.Path, last: str, rows: dict[str, Sequence[Sequence[str]]]
) -> None:
  """Writes rows (name, class, LAST) of each split as CSV."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator='\n')
  writer.writerow(['split', 'name', 'class', last])
  for split, of_split in rows.items():
    writer.writerows([split, *row] for row in of_split)
  content = buffer.getvalue().encode('utf-8', 'backslashreplace')
  files.write_shared(path, content)


def _content(job: Job, totals: dict[str, shards.Facts]) -> dict[str, Any]:
  """Returns the report, JSON-able."""
  names = job.source.info.class_names
  return {
    'name': job.name,
    'version': job.version,
    'job': job.describe(),
    'class_names': list(names),
    'others': dict(job.source.others),
    'damaged': list(job.damaged),
    'splits': {
      split: {
        'found': job.source.info.splits[split],
        'records': facts.records,
        'bytes': facts.num_bytes,
        'shards': job.shards[split],
        'converted': facts.converted,
        'merged': len(facts.copies),
        'set_aside': len(facts.set_aside),
        'reasons': report.reasons(facts.set_aside),
        'notes': dict(sorted(facts.notes.items())),
        'classes': [facts.classes[label] for label in range(len(names))],
      }
      for split, facts in totals.items()
    },
  }


def _write_metadata(job: Job, found: dict[str, list[shards.Facts]]) -> None:
  label = tfds.features.ClassLabel(names=_distinct(job.source.info.class_names))
  features = {
    'image': tfds.features.Image(shape=(None, None, 3)),
    'label': tfds.features.Sequence(label) if job.multi_label else label,
    'file_name': tfds.features.Text(),
  }
  template = naming.ShardedFileTemplate(
    data_dir=job.target,
    template=naming.DEFAULT_FILENAME_TEMPLATE,
    dataset_name=job.name,
    filetype_suffix='array_record',
  )
  tfds.folder_dataset.write_metadata(
    data_dir=job.target,
    features=features,
    split_infos=[
      tfds.core.SplitInfo(
        name=split,
        shard_lengths=[one.records for one in facts],
        num_bytes=sum(one.num_bytes for one in facts),
        filename_template=template.replace(split=split),
      )
      for split, facts in found.items()
    ],
    version=job.version,
    filename_template=template,
    check_data=False,
    description=f'Prepared from {job.source.info.spec}; see {TEXT}.',
    disable_shuffling=not job.shuffled,
  )


def _distinct(names: Sequence[str]) -> list[str]:
  """Returns class names; TFDS refuses empty and repeated ones."""
  seen, result = set(), []
  for name in names:
    # TFDS strips names, and drops empty ones, which would shift all later ones.
    name = name.strip() or 'unnamed'
    while name in seen:
      name += '_'
    seen.add(name)
    result.append(name)
  if result != list(names):
    logging.warning(
      'Some class names are empty or repeated, or have spaces around them, and'
      ' were changed.'
    )
  return result


def summary(job: Job) -> str:
  """Returns the text of a finished job's report.

  Raises:
    ValueError: files that the job wrote are gone.
  """
  there = {path.name for path in job.target.iterdir()}
  listed = [
    line.partition('  ')[2]
    for line in (job.target / SUMS).read_text().splitlines()
  ]
  if gone := [name for name in listed if name not in there]:
    raise ValueError(
      f'{job.target} was complete, but {len(gone):,} of its {len(listed):,}'
      f' files are gone, such as {gone[0]}. Copy them back, or delete that'
      ' folder to prepare it again.'
    )
  return (job.target / TEXT).read_text()
