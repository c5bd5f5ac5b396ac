"""The numbers of the page on mistakes, from saved predictions.

Axes: `N` examples, `K` classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vit_jax.evaluators import calibration

# With more classes there is no matrix of confusions: nobody could read it.
_MATRIX = 30


def compute(table: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
  """Computes all numbers of a table and facts of `predictions.read`.

  Returns:
    `facts`, as they are given;
    `counts` of examples that are `counted`, `correct`, `unreadable` and
    `unlabelled`;
    `metrics`, name -> value, as the evaluator computes them;
    `pairs`, the confusions, see `confusions`;
    `matrix`, counts int64 [K, K] by actual and predicted class; None with many
    classes;
    `classes`, see `per_class`;
    `bins`, float64 [3, BINS], see `calibration.sums`;
    `wrong`, the rows of the mistakes, most confident first, with one `actual`
    class and a list of `labels`;
    `unreadable`, names of the unreadable examples;
    `several_labels`, whether an image may have several labels.

  Raises:
    ValueError: no example counts.
  """
  counts = {
    key: int(table[key].sum())
    for key in ('counted', 'correct', 'unreadable', 'unlabelled')
  }
  if not counts['counted']:
    raise ValueError(
      f'none of the {len(table)} examples of the evaluation'
      f' {facts["evaluation"]!r} is readable and labelled.'
    )
  counted = table[table['counted']]
  several_labels = 'labels' in table
  if not several_labels:
    counted = counted.assign(labels=counted['label'].map(lambda c: [c]))
  first = counted['labels'].map(lambda labels: labels[0])
  # An image with several labels counts for its prediction if that is one of
  # them, and otherwise for its first label.
  actual = np.where(counted['correct'], counted['prediction'], first)
  counted = counted.assign(actual=actual)
  columns = (counted[key].to_numpy() for key in ('confidence', 'correct'))
  bins = calibration.sums(*columns, np.ones(len(counted), bool))
  metrics = {
    'accuracy': counts['correct'] / counts['counted'],
    'loss': counted['loss'].mean(),
    'ece': calibration.error(bins),
    'confidence': counted['confidence'].mean(),
  }
  pairs, matrix = confusions(counted), None
  if (size := len(facts['class_names'])) <= _MATRIX:
    matrix = np.zeros((size, size), np.int64)
    np.add.at(matrix, (counted['actual'], counted['prediction']), 1)
  return {
    'facts': facts,
    'counts': counts,
    'metrics': metrics,
    'pairs': pairs,
    'matrix': matrix,
    'classes': per_class(counted, pairs, facts['class_names']),
    'bins': np.asarray(bins, np.float64),
    'wrong': counted[~counted['correct']].sort_values(
      'confidence', ascending=False, kind='stable'
    ),
    'unreadable': table['name'][table['unreadable']].tolist(),
    'several_labels': several_labels,
  }


def confusions(counted: pd.DataFrame) -> pd.DataFrame:
  """Counts the confusions, the most frequent first.

  Returns:
    The columns `actual`, `predicted`, `count`, and `share`, their part of the
    images of the class.
  """
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
  counted: pd.DataFrame, pairs: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
  """Returns a row for each class, by its number.

  Returns:
    The columns `name`, `images`, `correct`, `predicted`, `recall`, `precision`
    (NaN where undefined), and `confused_with`, the most frequent wrong
    prediction, -1 if none.
  """
  right = counted['actual'][counted['correct']]
  images, correct, predicted = (
    np.bincount(classes, minlength=len(names))
    for classes in (counted['actual'], right, counted['prediction'])
  )
  # The pairs are sorted, so the first of a class is the most frequent.
  first = pairs.drop_duplicates('actual').set_index('actual')['predicted']
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
      'confused_with': first.reindex(range(len(names)), fill_value=-1),
    }
  )
