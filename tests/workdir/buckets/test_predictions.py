"""Guards: predictions are saved in a bucket, and found there."""

import numpy as np

from vit_jax import data
from vit_jax.evaluators import predictions
from vit_jax.inspection import mistakes

RUN = 'gs://bucket/run'


def _write(prediction):
  view = data.View(data.open_source('digits:01'), 'test[:2]')
  columns = {
    'labels': np.zeros((2, 1), np.int32),
    'prediction': np.full(2, prediction, np.int32),
  }
  facts = {'class_names': ('0', '1'), 'step': prediction}
  predictions.write(predictions.path(RUN, 'test'), columns, view, facts)


def test_predictions_are_replaced_as_a_whole(bucket):
  for step in (0, 1):
    _write(step)
    path = mistakes.find(RUN)
    table, facts = predictions.read(path)
    assert facts['step'] == step
    assert table['prediction'].tolist() == [step, step]
  assert [file.name for file in path.parent.iterdir()] == ['test.parquet']
