"""Writes the report of a prepared data set as text."""

import collections
import re
from collections.abc import Sequence
from typing import Any

from vit_jax.prepare_data import releases

_GIB = 2**30
# The part of the training images that the paper's code holds out.
_HELD_OUT = 51_200


def reasons(set_aside: Sequence[Sequence[str]]) -> dict[str, int]:
  """Counts reasons, without the numbers and bytes that differ by image."""
  return dict(
    collections.Counter(
      re.sub(r"(b'.*'|b\".*\"|\d+)", '#', reason) for *_, reason in set_aside
    ).most_common()
  )


def text(content: dict[str, Any]) -> str:
  """Returns the report of `finish` as lines of text."""
  job = content['job']
  lines = [f'{content["name"]} {content["version"]}, from {job["source"]}', '']
  lines += _table(content)
  for split, facts in content['splits'].items():
    lines += ['', *_split(split, facts)]
  names, splits = content['class_names'], content['splits']
  lines += ['', *_classes(names, splits)]
  if content['others']:
    counts = collections.Counter(content['others']).most_common()
    lines.append(
      'Files that are not read: '
      + ', '.join(f'{suffix} {n:,}' for suffix, n in counts)
      + '.'
    )
  for damage in content['damaged']:
    lines.append(f'Damaged: {damage}. Images are missing.')
  found = {split: facts['found'] for split, facts in splits.items()}
  lines += releases.explain(names, found)
  lines += _held_out(job, splits)
  return '\n'.join(lines) + '\n'


def _table(content: dict[str, Any]) -> list[str]:
  rows = [('split', 'found', 'records', 'set aside', 'shards', 'GiB')]
  rows += [
    (
      split,
      *(f'{facts[key]:,}' for key in ('found', 'records', 'set_aside')),
      f'{facts["shards"]:,}',
      f'{facts["bytes"] / _GIB:.3g}',
    )
    for split, facts in content['splits'].items()
  ]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.ljust(width) if i == 0 else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    for row in rows
  ]


def _split(split: str, facts: dict[str, Any]) -> list[str]:
  lines = [
    f'{split}: {facts["records"] - facts["converted"]:,} images are stored as'
    f' they were, {facts["converted"]:,} were converted.'
  ]
  if facts['merged']:
    lines.append(
      f'  {facts["merged"]:,} images repeat another to the byte, and were'
      ' merged with it (merged.csv).'
    )
  if facts['set_aside']:
    lines.append(f'  {facts["set_aside"]:,} were set aside (set_aside.csv):')
    lines += [f'    {n:>9,}  {why}' for why, n in facts['reasons'].items()]
  if facts['notes']:
    lines.append('  Unusual:')
    lines += [
      f'    {n:>9,}  {note}, such as {names[0]}'
      for note, (n, names) in facts['notes'].items()
    ]
  return lines


def _classes(names: Sequence[str], splits: dict[str, Any]) -> list[str]:
  lines = [f'{len(names):,} classes.']
  for split, facts in splits.items():
    counts = facts['classes']
    present = [n for n in counts if n]
    if not present:
      continue
    empty = len(counts) - len(present)
    lines[0] += (
      f' {split}: {min(present):,} to {max(present):,} images each'
      + f', {empty:,} classes without any' * bool(empty)
      + '.'
    )
  return lines


def _held_out(job: dict[str, Any], splits: dict[str, Any]) -> list[str]:
  if splits.get('train', {}).get('records', 0) < 10 * _HELD_OUT:
    return []
  train = 'train' if job['order'] == 'shuffled' else 'shuffled(train)'
  return [
    f'To hold out {_HELD_OUT:,} random images, as for the released models,'
    f' evaluate on {train}[:{_HELD_OUT}] and train on {train}[{_HELD_OUT}:].'
  ]
