"""Describes the written shards: TFDS's metadata, checksums and the report."""

import collections
import csv
import io
import re
from collections.abc import Sequence
from typing import Any

import tensorflow_datasets as tfds
import yaml
from absl import logging
from etils import epath
from tensorflow_datasets.core import naming

from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data import shards
from vit_jax.prepare_data.job import Job, Shard
from vit_jax.workdir import files

_SUMS = 'SHA256SUMS'
_TEXT = 'report.txt'
_WORDNET = re.compile(r'n\d{8}')
# The fewest classes of a set whose copies are merged as ImageNet-21k's.
_LARGE = 2000


def finish(job: Job, every: Sequence[Shard]) -> str:
  """Writes everything that follows from the shards, and removes the state.

  Several machines may do this at the same time: they write the same.

  Returns:
    The report as text.
  """
  found = {shard: shards.read_facts(job, shard) for shard in every}
  by_split = {
    split: [facts for shard, facts in found.items() if shard.split == split]
    for split in job.splits
  }
  totals = {split: shards.total(facts) for split, facts in by_split.items()}
  sums = [f'{f.sha256}  {job.path(s).name}\n' for s, f in found.items()]
  files.write_shared(job.target / _SUMS, ''.join(sums).encode())
  rows = {split: facts.set_aside for split, facts in totals.items()}
  _write_table(job.target / 'set_aside.csv', 'reason', rows)
  if job.merged:
    rows = {split: facts.copies for split, facts in totals.items()}
    _write_table(job.target / 'merged.csv', 'merged with', rows)
  content = _content(job, totals)
  text = _text(content)
  files.write_shared(job.target / _TEXT, text.encode())
  _write_metadata(job, by_split)
  job_lib.write_json(job.target / job_lib.REPORT, content)  # It says: done.
  job.state.rmtree(missing_ok=True)
  return text


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
    'job': job.describe(),
    'class_names': list(names),
    'others': dict(job.source.others),
    'splits': {
      split: {
        'found': job.source.info.splits[split],
        **{key: facts.counts[key] for key in ('records', 'bytes', 'converted')},
        'shards': job.shards[split],
        'merged': len(facts.copies),
        'set_aside': len(facts.set_aside),
        # Without the numbers and bytes that differ by image.
        'reasons': dict(
          collections.Counter(
            re.sub(r"(b'.*'|b\".*\"|\d+)", '#', reason)
            for *_, reason in facts.set_aside
          ).most_common()
        ),
        'notes': dict(sorted(facts.notes.items())),
        'classes': [facts.classes[str(label)] for label in range(len(names))],
      }
      for split, facts in totals.items()
    },
  }


def _text(content: dict[str, Any]) -> str:
  """Returns the report as YAML, for people to read."""
  names, splits = content['class_names'], content['splits']
  told = {content['name']: f'from {content["job"]["source"]}'}
  for split, facts in splits.items():
    present = [n for n in facts['classes'] if n] or [0]
    told[split] = facts | {
      'classes': f'{len(present):,} of {len(names):,}, with {min(present):,} to'
      f' {max(present):,} images',
    }
  told['not read'] = [f'{k}: {n:,}' for k, n in content['others'].items()]
  return yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=1000)


def is_imagenet21k(class_names: Sequence[str]) -> bool:
  """Returns whether classes are many of WordNet's synsets."""
  return len(class_names) > _LARGE and all(map(_WORDNET.match, class_names))


def _write_metadata(job: Job, found: dict[str, list[shards.Facts]]) -> None:
  info = job.source.info
  label = tfds.features.ClassLabel(names=_distinct(info.class_names))
  several = job.merged or info.multi_label
  template = naming.ShardedFileTemplate(
    data_dir=job.target,
    template=naming.DEFAULT_FILENAME_TEMPLATE,
    dataset_name=job.name,
    filetype_suffix='array_record',
  )
  tfds.folder_dataset.write_metadata(
    data_dir=job.target,
    features={
      'image': tfds.features.Image(shape=(None, None, 3)),
      'label': tfds.features.Sequence(label) if several else label,
      'file_name': tfds.features.Text(),
    },
    split_infos=[
      tfds.core.SplitInfo(
        name=split,
        shard_lengths=[one.counts.get('records', 0) for one in facts],
        num_bytes=sum(one.counts.get('bytes', 0) for one in facts),
        filename_template=template.replace(split=split),
      )
      for split, facts in found.items()
    ],
    version=job_lib.VERSION,
    filename_template=template,
    check_data=False,
    description=f'Prepared from {info.spec}; see {_TEXT}.',
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
  if list(seen) != list(names):
    logging.warning(
      'Some class names are empty or repeated, or have spaces around them, and'
      ' were changed.'
    )
  return list(seen)


def summary(job: Job) -> str:
  """Returns the text of a finished job's report.

  Raises:
    ValueError: files that the job wrote are gone.
  """
  there = {path.name for path in job.target.iterdir()}
  lines = (job.target / _SUMS).read_text().splitlines()
  listed = [line.partition('  ')[2] for line in lines]
  if gone := [name for name in listed if name not in there]:
    raise ValueError(
      f'{job.target} was complete, but {len(gone):,} of its {len(listed):,}'
      f' files are gone, such as {gone[0]}. Copy them back, or delete that'
      ' folder to prepare it again.'
    )
  return (job.target / _TEXT).read_text()
