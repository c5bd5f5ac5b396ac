"""The numbers of the page on mistakes, from saved predictions.

Axes: `N` examples, `K` classes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vit_jax.evaluators import calibration

# Classes that are easily confused are put into groups of at most this size.
_GROUP = 8
# Examples that are put into bins at a time: each needs a row of bins.
_ROWS = 65_536


@dataclasses.dataclass(frozen=True)
class Numbers:
  """What the page shows.

  Attributes:
    facts: see `predictions.read`.
    counts: of `examples`, and of those that are `counted`, `correct`,
      `unreadable` and `unlabelled`.
    metrics: name -> value, as the evaluator computes them.
    classes: a row for each class, by its number: `name`, `images`, `correct`,
      `predicted`, `recall`, `precision` (NaN where undefined), and
      `confused_with`, the most frequent wrong prediction, -1 if none.
    pairs: the confusions, most frequent first: `actual`, `predicted`, `count`,
      and `share`, their part of the images of the class.
    groups: classes that are confused with each other, most mistakes first:
      `members`, a tuple, and `count`, the mistakes among them.
    bins: float64 [3, BINS], see `calibration.sums`.
    wrong: the rows of the mistakes, most confident first, with `actual`.
    unreadable: names of the unreadable examples.
    several_labels: whether an image may have several labels.
  """

  facts: Mapping[str, Any]
  counts: Mapping[str, int]
  metrics: Mapping[str, float]
  classes: pd.DataFrame
  pairs: pd.DataFrame
  groups: pd.DataFrame
  bins: np.ndarray
  wrong: pd.DataFrame
  unreadable: list[str]
  several_labels: bool


def compute(table: pd.DataFrame, facts: Mapping[str, Any]) -> Numbers:
  """Computes all numbers of a table and facts of `predictions.read`.

  Raises:
    ValueError: no example counts.
  """
  counts = {'examples': len(table)} | {
    key: int(table[key].sum())
    for key in ('counted', 'correct', 'unreadable', 'unlabelled')
  }
  if not counts['counted']:
    raise ValueError(
      f'none of the {len(table)} examples is readable and labelled.'
    )
  counted = table[table['counted']]
  counted = counted.assign(actual=actual_classes(counted))
  wrong = counted[~counted['correct']].sort_values(
    'confidence', ascending=False, kind='stable'
  )
  pairs = confusions(counted)
  bins = calibration_bins(counted)
  metrics = {
    'accuracy': counts['correct'] / counts['counted'],
    'loss': float(counted['loss'].mean()),
    'ece': calibration.error(bins),
    'confidence': float(counted['confidence'].mean()),
  }
  names = facts['class_names']
  if len(names) > 5:
    metrics['top5_accuracy'] = float(_among_top(counted).mean())
  return Numbers(
    facts=facts,
    counts=counts,
    metrics=metrics,
    classes=per_class(counted, pairs, names),
    pairs=pairs,
    groups=group(pairs),
    bins=bins,
    wrong=wrong,
    unreadable=table['name'][table['unreadable']].tolist(),
    several_labels='labels' in table,
  )


def actual_classes(counted: pd.DataFrame) -> np.ndarray:
  """Returns one class for each counted example, int64 [N].

  An image with several labels counts for its prediction if that is one of them,
  and otherwise for its first label.
  """
  if 'label' in counted:
    return counted['label'].to_numpy(np.int64)
  first = np.array([labels[0] for labels in counted['labels']], np.int64)
  return np.where(counted['correct'], counted['prediction'], first)


def confusions(counted: pd.DataFrame) -> pd.DataFrame:
  """Counts the confusions; see `Numbers.pairs`."""
  of_class = counted['actual'].value_counts()
  found = (
    counted[~counted['correct']]
    .groupby(['actual', 'prediction'])
    .size()
    .reset_index(name='count')
    .rename(columns={'prediction': 'predicted'})
    .sort_values('count', ascending=False, kind='stable', ignore_index=True)
  )
  images = found['actual'].map(of_class).to_numpy(float)
  return found.assign(share=found['count'] / images)


def per_class(
  counted: pd.DataFrame, pairs: pd.DataFrame, names: list[str]
) -> pd.DataFrame:
  """Returns a row for each class; see `Numbers.classes`."""
  size = len(names)
  images, correct, predicted = (
    np.bincount(classes, minlength=size)
    for classes in (
      counted['actual'],
      counted['actual'][counted['correct']],
      counted['prediction'],
    )
  )
  confused_with = np.full(size, -1)
  # The pairs are sorted, so the first of a class is the most frequent.
  first = pairs.drop_duplicates('actual')
  confused_with[first['actual']] = first['predicted']
  with np.errstate(invalid='ignore'):
    recall, precision = correct / images, correct / predicted
  return pd.DataFrame(
    {
      'name': names,
      'images': images,
      'correct': correct,
      'predicted': predicted,
      'recall': recall,
      'precision': precision,
      'confused_with': confused_with,
    }
  )


def group(pairs: pd.DataFrame) -> pd.DataFrame:
  """Groups classes that are confused; see `Numbers.groups`.

  The two groups of the most frequent confusion are joined first, and so on,
  unless the result has more than `_GROUP` members. A single mistake joins
  nothing.
  """
  both: dict[tuple[int, int], int] = {}
  for a, b, count in pairs[['actual', 'predicted', 'count']].itertuples(
    index=False
  ):
    key = (min(a, b), max(a, b))
    both[key] = both.get(key, 0) + count
  groups: dict[int, list[int]] = {}  # Class -> its group, a shared list.
  for (a, b), count in sorted(both.items(), key=lambda item: -item[1]):
    one, other = groups.get(a, [a]), groups.get(b, [b])
    if count > 1 and one is not other and len(one) + len(other) <= _GROUP:
      one += other
      groups |= dict.fromkeys(one, one)
  found = {id(members): [members, 0] for members in groups.values()}
  for (a, b), count in both.items():
    if a in groups and groups[a] is groups.get(b):
      found[id(groups[a])][1] += count
  rows = [(tuple(sorted(members)), count) for members, count in found.values()]
  rows.sort(key=lambda row: (-row[1], row[0]))
  return pd.DataFrame(rows, columns=['members', 'count'])


def matrix(numbers: Numbers, most: int) -> tuple[list[int], np.ndarray]:
  """Returns a confusion matrix that can be drawn.

  Args:
    numbers: the numbers.
    most: the most classes to return. Of more, those of the groups with most
      mistakes come first, and then those with most mistakes.

  Returns:
    The classes, n of them, and counts int64 [n, n + 1] by actual and predicted
    class; the last column counts predictions of the classes left out.
  """
  table, pairs = numbers.classes, numbers.pairs
  chosen = list(range(len(table)))
  if len(table) > most:
    mistakes = table['images'] - table['correct']
    worst = mistakes.sort_values(ascending=False, kind='stable').index
    grouped = [c for members in numbers.groups['members'] for c in members]
    chosen = list(dict.fromkeys([*grouped, *worst]))[:most]
  place = np.full(len(table), len(chosen))
  place[chosen] = np.arange(len(chosen))
  counts = np.zeros((len(chosen) + 1, len(chosen) + 1), np.int64)
  np.add.at(
    counts, (place[pairs['actual']], place[pairs['predicted']]), pairs['count']
  )
  counts = counts[:-1]
  counts[range(len(chosen)), range(len(chosen))] = table['correct'][chosen]
  return chosen, counts


def calibration_bins(counted: pd.DataFrame) -> np.ndarray:
  """Returns the sums in the evaluator's bins, float64 [3, BINS]."""
  total = np.zeros((3, calibration.BINS))
  confidence, correct = (
    counted[key].to_numpy() for key in ('confidence', 'correct')
  )
  for start in range(0, len(counted), _ROWS):
    rows = slice(start, start + _ROWS)
    ones = np.ones(len(correct[rows]), bool)
    total += np.asarray(
      calibration.sums(confidence[rows], correct[rows], ones), np.float64
    )
  return total


def _among_top(counted: pd.DataFrame) -> np.ndarray:
  """Returns whether a label is among the top five, bool [N]."""
  top = np.stack(counted['top5'])
  if 'label' in counted:
    return (top == counted['label'].to_numpy()[:, None]).any(axis=1)
  return np.array(
    [
      np.isin(labels, five).any()
      for labels, five in zip(counted['labels'], top, strict=True)
    ]
  )
