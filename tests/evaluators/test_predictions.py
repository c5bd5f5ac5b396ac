"""Guards: the saved predictions are those that the metrics count."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from vit_jax import data, sharding
from vit_jax.data import ops
from vit_jax.evaluators import classes, classification, predictions
from vit_jax.evaluators.classification import CONFIDENCES, Classification
from vit_jax.training import losses
from vit_jax.training import step as step_lib

CLASSES = 6
NAMES = tuple('abcdef')
FACTS = {'evaluation': 'test', 'step': 3, 'loss': 'softmax'}


class Pixels(nn.Module):
  """A model whose logits are the six pixels."""

  @nn.compact
  def __call__(self, images, *, train):
    return 4 * images.reshape(len(images), -1), {}


@dataclasses.dataclass
class Images:
  """Images of random pixels with given labels; None makes a broken image."""

  labels: list[int | tuple[int, ...] | None]
  names: tuple[str, ...] = NAMES

  def __post_init__(self):
    self.info = data.SourceInfo(
      'images', {'test': len(self.labels)}, self.names
    )
    rng = np.random.default_rng(0)
    shape = (len(self.labels), 2, 3, 1)
    self.pixels = rng.integers(0, 256, shape, dtype=np.uint8)

  def read(self, split, index):
    label = self.labels[index]
    image = b'broken' if label is None else self.pixels[index]
    label = 0 if label is None else label
    return data.Record(image, label, f'{split} number {index}')

  def logits(self):
    return 4 * (self.pixels.reshape(-1, CLASSES) / 127.5 - 1)


def _evaluator(view, *, loss='softmax', devices=8, save=True, **others):
  reading = dict(num_classes=CLASSES, unreadable='skip-and-count', threads=0)
  if 'max_labels' in others:
    reading['max_labels'] = others.pop('max_labels')
  return Classification(
    view,
    ops.parse('resize', image_size=(2, 3), channels=1),
    Pixels(),
    losses.build(loss),
    sharding.make_mesh(devices),
    batch_size=8,
    reading=reading,
    confidence=CONFIDENCES[loss],
    save_predictions=save,
    **others,
  )


STATE = step_lib.TrainState(jnp.int32(0), {}, (), {})


def _saved(view, tmp_path, **others):
  """Returns the metrics, the table and the facts of an evaluation."""
  evaluator = _evaluator(view, **others)
  values = dict(evaluator.run(STATE))
  path = predictions.path(tmp_path, 'test')
  evaluator.save_predictions(path, FACTS | {'class_names': NAMES})
  return values, *predictions.read(path)


@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
@pytest.mark.parametrize('devices', [1, 8])
def test_the_file_is_what_the_metrics_count(loss, devices, tmp_path):
  labels = np.random.default_rng(1).integers(0, CLASSES, 21).tolist()
  labels[3] = labels[20] = None
  source = Images(labels)
  values, table, facts = _saved(
    data.View(source, 'test'), tmp_path, loss=loss, devices=devices
  )
  assert facts == FACTS | {
    'class_names': list(NAMES),
    'dataset': 'images',
    'split': 'test',
  }
  assert table['index'].tolist() == list(range(21))
  assert table['name'].tolist() == [f'test number {i}' for i in range(21)]
  assert table.index[table['unreadable']].tolist() == [3, 20]
  assert not table['unlabelled'].any()
  # These are equal, not nearly equal.
  accuracy = table['correct'].sum() / table['counted'].sum()
  assert accuracy == values['accuracy']
  assert table['loss'].mean() == pytest.approx(values['loss'], rel=1e-6)

  read = table[~table['unreadable']]
  whole = read['index'].to_numpy()
  logits = source.logits()[whole]
  order = np.argsort(-logits, kind='stable')
  shares = 1 / (1 + np.exp(-logits))
  if loss == 'softmax':
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  top = np.take_along_axis(shares, order, 1)
  assert read['label'].tolist() == [labels[i] for i in whole]
  assert read['prediction'].tolist() == order[:, 0].tolist()
  assert read['label_name'].tolist() == [NAMES[labels[i]] for i in whole]
  assert read['prediction_name'].tolist() == [NAMES[i] for i in order[:, 0]]
  assert np.stack(read['top5']).tolist() == order[:, :5].tolist()
  np.testing.assert_allclose(
    np.stack(read['top5_probability']), top[:, :5], rtol=1e-5
  )
  np.testing.assert_allclose(read['confidence'], top[:, 0], rtol=1e-5)
  broken = table.loc[3]
  assert (broken['label'], broken['prediction']) == (-1, -1)
  assert pd.isna(broken[['label_name', 'prediction_name']]).all()
  assert np.isnan([broken['confidence'], broken['loss']]).all()
  assert table.dtypes['label'] == table.dtypes['prediction'] == np.int32


def test_several_labels_and_none(tmp_path):
  values, table, _ = _saved(
    data.View(Images([(1, 3), (), None, (5,)]), 'test'), tmp_path, max_labels=3
  )
  assert 'label' not in table
  assert [x.tolist() for x in table['labels']] == [[1, 3], [], [], [5]]
  assert table['unlabelled'].tolist() == [False, True, False, False]
  assert table['counted'].tolist() == [True, False, False, True]
  assert table['prediction'].tolist()[1] >= 0
  assert (values['count'], values['unlabelled']) == (2, 1)
  assert table['correct'].sum() / 2 == values['accuracy']


def test_only_classes_that_may_be_predicted_are_among_the_top(tmp_path):
  view = data.View(Images([0, 1, 2]), 'test')
  _, table, _ = _saved(view, tmp_path, candidates=[1, 2, 4])
  assert [sorted(top) for top in table['top5']] == [[1, 2, 4]] * 3
  sums = [sum(each) for each in table['top5_probability']]
  assert sums == pytest.approx([1, 1, 1])


def test_labels_are_classes_of_the_model(tmp_path):
  source = Images([0, 1, 2], names=('f', 'b', 'other'))
  table = classes.table('names', source.names, NAMES)
  view = classes.Relabelled(data.View(source, 'test'), table)
  _, saved, _ = _saved(view, tmp_path)
  assert saved['label'].tolist() == [5, 1, -1]
  assert saved['label_name'].tolist()[:2] == ['f', 'b']
  assert pd.isna(saved['label_name'][2])
  assert saved['unlabelled'].tolist() == [False, False, True]
  assert saved['name'].tolist()[2] == 'test number 2'


def test_off_computes_nothing_of_single_examples():
  view = data.View(Images([0, 1]), 'test')
  on, off = (_evaluator(view, save=save) for save in (True, False))
  assert dict(on.run(STATE)) == dict(off.run(STATE))
  batch = {
    'image': jax.ShapeDtypeStruct((8, 2, 3, 1), np.uint8),
    'label': jax.ShapeDtypeStruct((8,), np.int32),
    'mask': jax.ShapeDtypeStruct((8,), bool),
    'unreadable': jax.ShapeDtypeStruct((8,), bool),
  }

  def shapes(kept):
    compiled = classification.compiled_sums(
      Pixels(),
      losses.build('softmax'),
      sharding.make_mesh(8),
      CONFIDENCES['softmax'],
      kept,
    )
    found = jax.eval_shape(compiled, {}, batch, None)
    return {x.shape for x in jax.tree.leaves(found)}

  assert shapes(0) == {(), (3, 15)}
  assert (8, 5) in shapes(5)


def test_a_large_split_is_written_in_parts(tmp_path, monkeypatch):
  monkeypatch.setattr(predictions, '_ROWS', 4)
  _, table, facts = _saved(data.View(Images([0, 5] * 5), 'test'), tmp_path)
  assert table['label'].tolist() == [0, 5] * 5
  assert table['index'].tolist() == list(range(10))
  assert table['name'].tolist() == [f'test number {i}' for i in range(10)]
  assert facts['step'] == 3


@pytest.mark.parametrize('content', [None, b'', b'PAR1 and more PAR1'])
def test_a_bad_file_is_one_error(content, tmp_path):
  path = tmp_path / 'test.parquet'
  message = 'does not exist'
  if content is not None:
    path.write_bytes(content)
    message = 'is damaged or was not written by save_predictions'
  with pytest.raises(ValueError, match=message):
    predictions.read(path)


def test_a_file_of_another_program_is_refused(tmp_path):

  path = tmp_path / 'test.parquet'
  pd.DataFrame(json.loads('[{"label": 1}]')).to_parquet(path)
  with pytest.raises(ValueError, match='was not written by save_predictions'):
    predictions.read(path)
