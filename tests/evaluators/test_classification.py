"""Guards: each example of a split counts exactly once in accuracy and loss.

The model's logits are an image's pixels, so its prediction is the position of
the brightest pixel.
"""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tests.evaluators.scenes import Pixels, context
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.evaluators import (
  calibration,
  classes,
  classification,
  predictions,
)

NAMES = ('n01', 'n02', 'n03', 'n04', 'n05', 'n06')
CLASSES = len(NAMES)
PARAMS = {'scale': jnp.float32(1)}
FACTS = {'evaluation': 'test', 'step': 3, 'loss': 'softmax'}


@dataclasses.dataclass
class Images(data.Source):
  """Images of random pixels with given labels; None makes a broken image."""

  given: list[int | tuple[int, ...] | None]
  names: tuple[str, ...] = NAMES

  def __post_init__(self):
    size = {'test': len(self.given)}
    self.info = data.SourceInfo('images', size, self.names)
    shape = (len(self.given), 2, 3, 1)
    self.pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    self.whole = [i for i, label in enumerate(self.given) if label is not None]

  def read(self, split, index):
    broken = self.given[index] is None
    image = b'broken' if broken else self.pixels[index]
    label = 0 if broken else self.given[index]
    return data.Record(image, label, f'{split}/{index}')

  def logits(self):
    """Returns the logits of the images that are not broken, [count, 6]."""
    return self.pixels.reshape(-1, CLASSES)[self.whole] / 127.5 - 1


class Rankings(Images):
  """Images defined by the ranking of their predicted classes, best first."""

  def __init__(self, images, names=NAMES):
    super().__init__([label for _, label in images], names)
    self.pixels[:] = 0
    for pixels, (ranking, _) in zip(self.pixels, images, strict=True):
      for place, value in enumerate(ranking):
        pixels.ravel()[value] = 250 - 20 * place


def _evaluator(
  source, *, loss='softmax', reduce='sum', devices=8, known=NAMES, **options
):
  """Returns an evaluator of a model that knows the classes `known`."""
  section = config_lib.evaluation('test', **options)
  given = context(
    *(section, Pixels(), source, (2, 3)),
    **{
      'devices': devices,
      'num_classes': len(known),
      'loss.name': loss,
      'loss.reduce': reduce,
      'data.train_split': 'test',
    },
  )
  trained_on = source if source.names == known else Images([], known)
  return classification.Classification(
    dataclasses.replace(given, trained_on=trained_on)
  )


def _evaluate(source, **options):
  return dict(_evaluator(source, **options).run(PARAMS))


def _saved(source, tmp_path, **options):
  """Returns the metrics, the table and the facts of an evaluation."""
  evaluated = _evaluator(source, save_predictions=True, **options)
  values = dict(evaluated.run(PARAMS))
  path = predictions.path(tmp_path, 'test')
  evaluated.save_predictions(path, FACTS | {'class_names': NAMES})
  return values, *predictions.read(path)


def _labels(count):
  return np.random.default_rng(1).integers(0, CLASSES, count).tolist()


def _shares(logits, loss):
  if loss == 'sigmoid':
    return 1 / (1 + np.exp(-logits))
  return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def _naive(source, loss):
  logits, labels = source.logits(), [source.given[i] for i in source.whole]
  targets = np.eye(CLASSES)[labels]
  terms = -targets * np.log(_shares(logits, 'softmax'))
  if loss == 'sigmoid':
    terms = np.log1p(np.exp(np.where(targets, -logits, logits)))
  correct = logits.argmax(1) == labels
  confidence, error = _shares(logits, loss).max(1), 0
  for low in range(15):
    inside = (low / 15 < confidence) & (confidence <= (low + 1) / 15)
    if inside.any():
      distance = abs(correct[inside].mean() - confidence[inside].mean())
      error += inside.mean() * distance
  rank = (logits > logits[np.arange(len(labels)), labels][:, None]).sum(1)
  return {
    'accuracy': np.mean(correct),
    'top5_accuracy': np.mean(rank < 5),
    'loss': terms.sum(1).mean(),
    'ece': error,
    'count': len(labels),
  }


@pytest.mark.parametrize(
  'loss, reduce, devices', [('softmax', 'sum', 8), ('sigmoid', 'mean', 1)]
)
def test_every_example_counts_once_and_is_saved(
  loss, reduce, devices, tmp_path
):
  labels = _labels(21)
  labels[3] = labels[20] = None
  source = Images(labels)
  values, table, facts = _saved(
    source, tmp_path, loss=loss, reduce=reduce, devices=devices
  )
  expected = _naive(source, loss) | {'excluded': 2}
  if reduce == 'mean':
    expected['loss'] /= CLASSES
  assert values == pytest.approx(expected, rel=1e-5)
  assert facts == FACTS | {
    'class_names': list(NAMES),
    'dataset': 'images',
    'split': 'test',
  }
  assert table['index'].tolist() == list(range(21))
  assert table['name'].tolist() == [f'test/{i}' for i in range(21)]
  assert table.index[table['unreadable']].tolist() == [3, 20]
  assert not table['unlabelled'].any()
  # These are equal, not nearly equal.
  accuracy = table['correct'].sum() / table['counted'].sum()
  assert accuracy == values['accuracy']
  assert table['loss'].mean() == pytest.approx(values['loss'], rel=1e-6)

  read = table[~table['unreadable']]
  shares = _shares(source.logits(), loss)
  order = np.argsort(-shares, kind='stable')
  top = np.take_along_axis(shares, order, 1)
  own = [labels[i] for i in source.whole]
  assert read['label'].tolist() == own
  assert read['label_name'].tolist() == [NAMES[i] for i in own]
  assert read['prediction'].tolist() == order[:, 0].tolist()
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


def test_evaluations_of_the_same_shapes_are_compiled_once():
  classification.compiled_sums.cache_clear()
  for count in (5, 21, 8):
    _evaluate(Images(_labels(count)))
  _evaluate(Images(_labels(5)), loss='sigmoid')
  assert classification.compiled_sums.cache_info().misses == 2


@pytest.mark.parametrize('label', [None, ()])
def test_without_an_image_that_counts(label):
  message = 'Of 5 images .* no image is left to evaluate'
  with pytest.raises(ValueError, match=message):
    _evaluate(Images([label] * 5), max_labels=2)


def test_images_may_have_several_labels_or_none(tmp_path):
  # As in ImageNet-ReaL, one of several labels suffices, and an image without
  # labels does not count.
  source = Rankings(
    [
      ([3], (1, 3)),  # Correct: the second of two labels.
      ([3], (1, 2)),  # Wrong.
      ([0], ()),
      ([5], (5,)),  # Correct.
      ([2, 1, 4], (0, 1, 3, 5)),  # Wrong, and one label too many.
      ([0, 1, 2, 3, 4, 5], (5,)),  # The sixth.
    ]
  )
  values, table, _ = _saved(source, tmp_path, max_labels=3)
  assert values['accuracy'] == pytest.approx(2 / 5)
  assert values['top5_accuracy'] == pytest.approx(4 / 5)
  counts = [values[key] for key in ('count', 'unlabelled', 'truncated')]
  assert counts == [5, 1, 1]
  assert 'label' not in table
  labels = [[1, 3], [1, 2], [], [5], [0, 1, 3], [5]]
  assert [x.tolist() for x in table['labels']] == labels
  assert table.index[table['unlabelled']].tolist() == [2]
  assert table['counted'].sum() == 5
  assert table['correct'].sum() / 5 == values['accuracy']


def test_classes_by_name(tmp_path):
  # As in ImageNet-A and -R, the data has some of the classes in another order.
  source = Rankings(
    [
      ([5, 2], 0),  # n06 counts as 5: correct.
      ([4, 2], 1),  # The data lacks class 4; without it, correct.
      ([2], 1),
      ([0, 5], 2),  # The model does not know this class; it does not count.
      ([5, 2], 1),  # Wrong with and without candidates.
    ],
    names=('n06', 'n03', 'other'),
  )
  table = classes.table('names', source.names, NAMES)
  assert table == ((5,), (2,), ())
  whole, saved, _ = _saved(source, tmp_path, classes='names')
  assert whole['accuracy'] == pytest.approx(2 / 4)
  assert (whole['count'], whole['unlabelled']) == (4, 1)
  assert saved['label'].tolist() == [5, 2, 2, -1, 2]
  assert saved['label_name'].tolist()[:2] == ['n06', 'n03']
  among, saved, _ = _saved(source, tmp_path, classes='names', restrict=True)
  assert among['accuracy'] == pytest.approx(3 / 4)
  # The softmax is over two classes, since the other logits are barred.
  assert 0 < among['loss'] < whole['loss']
  assert [sorted(top) for top in saved['top5']] == [[2, 5]] * 5
  assert [sum(x) for x in saved['top5_probability']] == pytest.approx([1] * 5)


def _write_objectnet(folder):
  files = {
    'folder_to_objectnet_label.json': {
      'alarm_clock': 'Alarm clock',
      'chair': 'Chair',
      'air_freshener': 'Air freshener',
    },
    'objectnet_to_imagenet_1k.json': {
      'Alarm clock': 'analog clock; digital clock, red',
      'Chair': 'barber chair',
    },
    # ILSVRC2012's number -> usual number: 2 -> 5, 0 -> 1, 1 -> 4.
    'pytorch_to_imagenet_2012_id.json': {'5': 2, '1': 0, '4': 1},
  }
  for name, content in files.items():
    (folder / name).write_text(json.dumps(content))
  (folder / 'imagenet_to_label_2012_v2').write_text(
    'analog clock\nbarber chair\ndigital clock, red\n'
  )


def test_objectnet(tmp_path):
  found = ('air_freshener', 'alarm_clock', 'chair')
  with pytest.raises(ValueError, match='pytorch_to_imagenet_2012_id'):
    classes.table(str(tmp_path), found, NAMES)
  _write_objectnet(tmp_path)
  for how in (str(tmp_path), 'names'):
    with pytest.raises(ValueError, match="the data has 'cat'"):
      classes.table(how, ('cat',), NAMES)
  table = classes.table(str(tmp_path), found, NAMES)
  assert table == ((), (1, 5), (4,))
  source = Rankings(
    [
      ([5], 1),  # One of the two clocks: correct.
      ([1], 1),  # The other clock: correct.
      ([4], 1),  # A chair is not a clock.
      ([4], 2),
      ([3], 0),  # Not one of ImageNet's classes.
      ([3, 4], 2),  # Correct if only the three occurring classes compete.
    ],
    names=found,
  )
  values = _evaluate(source, classes=str(tmp_path))
  assert values['accuracy'] == pytest.approx(3 / 5)
  assert (values['count'], values['unlabelled']) == (5, 1)
  values = _evaluate(source, classes=str(tmp_path), restrict=True)
  assert values['accuracy'] == pytest.approx(4 / 5)


@pytest.mark.parametrize('content', [None, b'PAR1 and more PAR1', 'other'])
def test_a_bad_file_of_predictions(content, tmp_path):
  path, message = tmp_path / 'test.parquet', 'was not written by save_predict'
  if content is None:
    message = 'does not exist'
  elif content == 'other':
    pd.DataFrame({'label': [1]}).to_parquet(path)
  else:
    path.write_bytes(content)
  with pytest.raises(ValueError, match=message):
    predictions.read(path)


def test_calibration_by_hand():
  # Bins of width 1/15, with their upper edges: 0.5 and 0.52 share a bin, 0.95
  # has another. The last row is padding.
  totals = calibration.sums(
    jnp.array([0.5, 0.52, 0.95, 0.95, 1.0]),
    jnp.array([True, False, True, True, False]),
    jnp.array([True, True, True, True, False]),
  )
  # (2 * |0.5 - 0.51| + 2 * |1 - 0.95|) / 4
  assert calibration.error(totals) == pytest.approx(0.03)
