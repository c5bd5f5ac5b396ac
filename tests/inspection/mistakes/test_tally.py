"""Guards: the numbers on mistakes are those of the definitions."""

import numpy as np
import pandas as pd
import pytest

from vit_jax.inspection import mistakes
from vit_jax.inspection.mistakes import tally


def _numbers(labels, predicted, confidence=0.5, names='abcd', **columns):
  several = np.ndim(labels[0]) > 0
  correct = [
    np.isin(p, own).any() for own, p in zip(labels, predicted, strict=True)
  ]
  table = {
    'index': range(len(labels)),
    'name': [f'test/{i}' for i in range(len(labels))],
    'labels' if several else 'label': labels,
    'prediction': predicted,
    'confidence': np.float32(confidence),
    'correct': correct,
    **{'loss': 1.0, 'counted': True, 'unreadable': False, 'unlabelled': False},
  }
  facts = dict(
    evaluation='test', step=1, dataset='x', split='test', class_names=[*names]
  )
  return tally.compute(pd.DataFrame(table | columns), facts)


def test_confusions_and_classes():
  found = _numbers([0, 0, 0, 0, 1, 1, 2], [0, 1, 1, 2, 1, 0, 2])
  assert found['pairs'].to_numpy().tolist() == [
    [0, 1, 2, 2 / 4],
    [0, 2, 1, 1 / 4],
    [1, 0, 1, 1 / 2],
  ]
  table = found['classes']
  assert table['images'].tolist() == [4, 2, 1, 0]
  assert table['predicted'].tolist() == [2, 3, 2, 0]
  assert table['recall'].tolist()[:3] == [1 / 4, 1 / 2, 1]
  assert table['precision'].tolist()[:3] == [1 / 2, 1 / 3, 1 / 2]
  assert table[['recall', 'precision']].loc[3].isna().all()
  assert table['confused_with'].tolist() == [1, 0, -1, -1]
  assert found['matrix'].tolist() == [
    *([1, 2, 1, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]),
  ]
  many = _numbers([0, 30], [1, 30], names=range(31))
  assert many['matrix'] is None
  assert '<h3>Matrix' not in mistakes.render(many, many['wrong'], {})


def test_an_image_with_several_labels_counts_once():
  found = _numbers([(0, 1), (0, 1), (2,)], [1, 2, 0], [0.1, 0.2, 0.3])
  assert found['several_labels']
  assert found['classes']['images'].tolist() == [1, 1, 1, 0]
  assert found['pairs'][['actual', 'predicted']].to_numpy().tolist() == [
    [0, 2],
    [2, 0],
  ]
  assert found['wrong']['index'].tolist() == [2, 1]
  text = mistakes.render(found, found['wrong'], {})
  assert 'a, b <b>→ c</b>' in text
  assert '<h3>Matrix' in text


def test_no_mistakes_and_nothing_to_count():
  found = _numbers([0, 1], [0, 1])
  text = mistakes.render(found, found['wrong'], {})
  assert 'There are no mistakes.' in text
  with pytest.raises(ValueError, match='none of the 1'):
    _numbers([0], [0], counted=[False])
