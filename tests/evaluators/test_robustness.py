"""Guards scores on data sets whose labels differ from the model's classes.

The model's logits are an image's pixels, so its prediction is the position of
the brightest pixel.
"""

import dataclasses
import json

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, sharding
from vit_jax.data import ops
from vit_jax.evaluators import calibration, classes
from vit_jax.evaluators.classification import Classification
from vit_jax.training import losses
from vit_jax.training import step as step_lib

NAMES = ('n01', 'n02', 'n03', 'n04', 'n05', 'n06', 'n07', 'n08')


class Pixels(nn.Module):
  """A model whose logits are the eight pixels."""

  @nn.compact
  def __call__(self, images, *, train):
    return images.reshape(len(images), -1), {}


@dataclasses.dataclass
class Rankings:
  """Images defined by the ranking of their predicted classes, best first."""

  images: list[tuple[list[int], int | tuple[int, ...]]]
  names: tuple[str, ...] = NAMES

  def __post_init__(self):
    size = {'test': len(self.images)}
    self.info = data.SourceInfo('rankings', size, self.names)

  def read(self, split, index):
    ranking, label = self.images[index]
    pixels = np.zeros(8, np.uint8)
    for place, value in enumerate(ranking):
      pixels[value] = 250 - 20 * place
    return data.Record(pixels.reshape(2, 4, 1), label, f'{split}/{index}')


def _evaluate(view, *, max_labels=1, candidates=None, devices=4):
  evaluator = Classification(
    view,
    ops.parse('resize', image_size=(2, 4), channels=1),
    Pixels(),
    losses.build('softmax'),
    sharding.make_mesh(devices),
    batch_size=4,
    reading=dict(num_classes=8, max_labels=max_labels, threads=0),
    candidates=candidates,
  )
  state = step_lib.TrainState(jnp.int32(0), {}, (), {})
  return dict(evaluator.run(state))


def test_images_may_have_several_labels_or_none():
  # As in ImageNet-ReaL, one of several labels suffices, and an image without
  # labels does not count.
  source = Rankings(
    [
      ([3], (1, 3)),  # Correct: the second of two labels.
      ([3], (1, 2)),  # Wrong.
      ([0], ()),  # Not labelled, so it does not count.
      ([5], (5,)),  # Correct.
      ([7], ()),
      ([2, 6], (6, 4, 0)),  # Wrong, but among the first five.
    ]
  )
  values = _evaluate(data.View(source, 'test'), max_labels=3)
  assert values['accuracy'] == pytest.approx(2 / 4)
  assert values['top5_accuracy'] == pytest.approx(4 / 4)
  assert (values['count'], values['unlabelled']) == (4, 2)


def test_only_unlabelled_images_are_an_error():
  source = Rankings([([3], ()), ([1], ())])
  with pytest.raises(ValueError, match='0 are unreadable and 2 have no label'):
    _evaluate(data.View(source, 'test'), max_labels=2)


def test_top5_accuracy():
  source = Rankings(
    [
      ([0, 1, 2, 3, 4, 5], 4),  # The fifth.
      ([0, 1, 2, 3, 4, 5], 5),  # The sixth.
      ([6, 1, 2, 3, 4, 5], 6),
      ([6, 1, 2, 3, 4, 5], 7),
    ]
  )
  values = _evaluate(data.View(source, 'test'))
  assert values['top5_accuracy'] == pytest.approx(2 / 4)
  assert values['accuracy'] == pytest.approx(1 / 4)


def test_classes_by_name():
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
  view = classes.Relabelled(data.View(source, 'test'), table)
  whole = _evaluate(view)
  assert whole['accuracy'] == pytest.approx(2 / 4)
  assert (whole['count'], whole['unlabelled']) == (4, 1)
  among = _evaluate(view, candidates=[2, 5])
  assert among['accuracy'] == pytest.approx(3 / 4)
  # The softmax is over two classes, since the other logits are barred.
  assert 0 < among['loss'] < whole['loss']


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
    # ILSVRC2012's number -> usual number: 2 -> 7, 0 -> 1, 1 -> 4.
    'pytorch_to_imagenet_2012_id.json': {'7': 2, '1': 0, '4': 1},
  }
  for name, content in files.items():
    (folder / name).write_text(json.dumps(content))
  (folder / 'imagenet_to_label_2012_v2').write_text(
    'analog clock\nbarber chair\ndigital clock, red\n'
  )


def test_objectnet(tmp_path):
  _write_objectnet(tmp_path)
  found = ('air_freshener', 'alarm_clock', 'chair')
  table = classes.table(str(tmp_path), found, NAMES)
  assert table == ((), (1, 7), (4,))
  source = Rankings(
    [
      ([7], 1),  # One of the two clocks: correct.
      ([1], 1),  # The other clock: correct.
      ([4], 1),  # A chair is not a clock.
      ([4], 2),
      ([3], 0),  # Not one of ImageNet's classes.
      ([3, 4], 2),  # Correct if only the three occurring classes compete.
    ],
    names=found,
  )
  view = classes.Relabelled(data.View(source, 'test'), table)
  values = _evaluate(view, max_labels=2)
  assert values['accuracy'] == pytest.approx(3 / 5)
  assert (values['count'], values['unlabelled']) == (5, 1)
  values = _evaluate(view, max_labels=2, candidates=[1, 4, 7])
  assert values['accuracy'] == pytest.approx(4 / 5)


def test_invalid_objectnet_files_are_errors(tmp_path):
  _write_objectnet(tmp_path)
  (tmp_path / 'imagenet_to_label_2012_v2').write_text('clock\n\n')
  with pytest.raises(ValueError, match="one names 'analog clock', which the"):
    classes.table(str(tmp_path), ('chair',), NAMES)


def test_a_file_of_classes(tmp_path):
  path = tmp_path / 'classes.json'
  path.write_text(json.dumps({'cat': ['n03', 6], 'dog': 'n01'}))
  table = classes.table(str(path), ('bird', 'cat', 'dog'), NAMES)
  assert table == ((), (2, 6), (0,))


@pytest.mark.parametrize(
  'content, message',
  [
    ({'cow': 0}, "names 1 classes that the data does not have, such as 'cow'"),
    ({'cat': 'n99'}, "'cat' is 'n99', which is neither one of the model's 8"),
    ({'cat': 8}, "'cat' is 8, which is neither"),
    ({'cat': []}, "the model knows no class of the data by '"),
    ({'cat': 1.0}, "'cat' is 1.0, which is neither .* whole number"),
    ({'cat': True}, "'cat' is True, which is neither"),
    ({'cat': {'n01': 1}}, "'cat' is {'n01': 1}, which is neither"),
    ({'cat': [['n01'], 1]}, r"'cat' is \['n01'\], which is neither"),
  ],
)
def test_a_wrong_file_of_classes(tmp_path, content, message):
  path = tmp_path / 'classes.json'
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message):
    classes.table(str(path), ('cat', 'dog'), NAMES)


def test_invalid_sources_of_class_names_are_errors(tmp_path):
  with pytest.raises(ValueError, match='nowhere does not exist; `classes` mus'):
    classes.table(str(tmp_path / 'nowhere'), ('cat',), NAMES)
  with pytest.raises(ValueError, match=r"lacks \['folder_to_objectnet_label"):
    classes.table(str(tmp_path), ('cat',), NAMES)
  with pytest.raises(ValueError, match="the data has 'cat', 'dog', the model"):
    classes.table('names', ('cat', 'dog'), NAMES)


def test_calibration_by_hand():
  # Bins of width 1/15: 0.5 and 0.52 share a bin, 0.95 has another. The last row
  # is padding.
  totals = calibration.sums(
    jnp.array([0.5, 0.52, 0.95, 0.95, 1.0]),
    jnp.array([True, False, True, True, False]),
    jnp.array([True, True, True, True, False]),
  )
  # (2 * |0.5 - 0.51| + 2 * |1 - 0.95|) / 4
  assert calibration.error(totals) == pytest.approx(0.03)


def test_bins_include_their_upper_edge():
  totals = calibration.sums(
    jnp.array([0.2, 0.2001, 1.0]), jnp.zeros(3, bool), jnp.ones(3, bool)
  )
  assert totals[0].tolist() == [0, 0, 1, 1, *[0] * 10, 1]
