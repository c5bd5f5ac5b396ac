"""Describes the written shards: TFDS's metadata, and the report."""

import collections
import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds
import yaml
from tensorflow_datasets.core import naming

from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data.job import Job
from vit_jax.workdir import files

INFO = 'dataset_info.json'  # It is written last.
TEXT = 'report.txt'


def write(job: Job) -> None:
  """Writes everything that follows from the shards, and removes their facts.

  Several machines may do this at the same time: they write the same.
  """
  found = {split: [] for split in job.splits}
  for shard in job.every():
    facts = files.read_object(job.facts(shard), 'delete it and its shard')
    found[shard.split].append(facts)
  table = io.StringIO()
  writer = csv.writer(table, lineterminator='\n')
  writer.writerow(['split', 'name', 'class', 'reason'])
  told = {job.name: f'from {job.source.info.spec}'}
  for split, facts in found.items():
    aside = sorted(row for one in facts for row in one['set_aside'])
    writer.writerows([split, *row] for row in aside)
    told[split] = _summary(job, split, facts, aside)
  others = job.source.others.items()
  told['not read'] = [f'{what}: {count:,}' for what, count in others]
  text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=1000)
  content = table.getvalue().encode('utf-8', 'backslashreplace')
  files.write_shared(job.target / 'set_aside.csv', content)
  files.write_shared(job.target / TEXT, text.encode())
  _write_metadata(job, found)
  (job.target / job_lib.STATE).rmtree(missing_ok=True)


def _summary(
  job: Job,
  split: str,
  facts: Sequence[Mapping[str, Any]],
  aside: Sequence[Sequence[str]],
) -> dict[str, int]:
  """Returns the numbers of a split, from the facts of its shards."""
  counts = collections.Counter()
  for one in facts:
    counts.update(one['counts'])
  # Without the numbers and bytes that differ by image.
  reasons = collections.Counter(
    'set aside: ' + re.sub(r"(b'.*'|b\".*\"|\d+)", '#', reason)
    for *_, reason in aside
  )
  first = {
    'classes': len(job.source.info.class_names),
    'found': job.source.info.splits[split],
    'set_aside': len(aside),
    'shards': job.shards[split],
    **{key: counts.pop(key, 0) for key in ('records', 'bytes', 'converted')},
  }
  if job.merged:
    first['copies'] = first['found'] - first['set_aside'] - first['records']
  return first | dict(sorted(counts.items())) | dict(reasons.most_common())


def _write_metadata(
  job: Job, found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
  """Writes TFDS's description; `found` has the facts of each split's shards."""
  info = job.source.info
  label = tfds.features.ClassLabel(names=_distinct(info.class_names))
  if info.multi_label or job.merged:
    label = tfds.features.Sequence(label)
  template = naming.ShardedFileTemplate(
    data_dir=job.target,
    template=naming.DEFAULT_FILENAME_TEMPLATE,
    dataset_name=job.name,
    filetype_suffix='array_record',
  )
  counts = {split: [one['counts'] for one in of] for split, of in found.items()}
  tfds.folder_dataset.write_metadata(
    data_dir=job.target,
    features={
      'image': tfds.features.Image(shape=(None, None, 3)),
      'label': label,
      'file_name': tfds.features.Text(),
    },
    split_infos=[
      tfds.core.SplitInfo(
        name=split,
        shard_lengths=[one.get('records', 0) for one in of],
        num_bytes=sum(one.get('bytes', 0) for one in of),
        filename_template=template.replace(split=split),
      )
      for split, of in counts.items()
    ],
    version=job_lib.VERSION,
    filename_template=template,
    check_data=False,
    description=f'Prepared from {info.spec}; see {TEXT}.',
    disable_shuffling=not job.shuffled,
  )


def _distinct(names: Sequence[str]) -> list[str]:
  """Returns class names; TFDS refuses empty and repeated ones."""
  seen: dict[str, None] = {}
  for name in names:
    # TFDS strips names, and drops empty ones, which would shift all later ones.
    name = name.strip() or 'unnamed'
    while name in seen:
      name += '_'
    seen[name] = None
  return list(seen)
