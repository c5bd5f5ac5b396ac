"""Guards few-shot evaluation, with the images themselves as features."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.scenes import CLASSES, Pixels, Scenes, state
from vit_jax import data, sharding
from vit_jax.data import ops
from vit_jax.evaluators import fewshot, frozen, linear


def _evaluator(
  source,
  *,
  train='train',
  test='test',
  selection=None,
  shots=(1, 5),
  seeds=(0, 1),
  l2=(1.0,),
  devices=8,
  batch_size=16,
):
  return fewshot.FewShot(
    data.View(source, train),
    data.View(source, test),
    data.View(source, selection) if selection else None,
    ops.parse('resize', image_size=(3, 3), channels=1),
    Pixels(),
    sharding.make_mesh(devices),
    fewshot.protocol(shots, seeds, l2),
    batch_size=batch_size,
    reading=dict(unreadable='skip-and-count', threads=0),
  )


def _evaluate(source, scale=1.0, **options):
  return dict(_evaluator(source, **options).run(state(scale)))


@pytest.fixture
def logged(monkeypatch):
  """Returns the lines of the log, even if other tests have set handlers."""
  lines = []
  for level in ('info', 'warning'):
    monkeypatch.setattr(
      fewshot.logging, level, lambda text, *args: lines.append(text % args)
    )
  return lines


def _expected_accuracy(source, shots, seed, l2=1.0):
  """Returns the accuracy of one draw, computed from the pixels."""
  _, labels = source.features('train', range(source.splits['train']))
  drawn = linear.draw(labels, source.classes, seed)
  chosen = [i for order in drawn for i in order[:shots]]
  x, y = source.features('train', chosen)
  (fitted,) = linear.fit(x, y, source.classes, [l2])
  x, y = source.features('test', range(source.splits['test']))
  return np.mean(fitted.predict(x) == y)


def test_accuracy_equals_that_of_a_linear_fit_to_the_drawn_images():
  source = Scenes({'train': 50, 'test': 37})
  values = _evaluate(source, seeds=(3, 8))
  for shots in (1, 5):
    found = [_expected_accuracy(source, shots, seed) for seed in (3, 8)]
    assert values[f'{shots}shot/accuracy'] == pytest.approx(np.mean(found))
    assert values[f'{shots}shot/std'] == pytest.approx(np.std(found, ddof=1))
  assert values['count'] == 37
  assert 0.3 < values['1shot/accuracy'] < values['5shot/accuracy'] < 1


def test_the_number_of_devices_does_not_change_the_metrics():
  source = Scenes({'train': 50, 'test': 37})
  one, eight = (_evaluate(source, devices=n) for n in (1, 8))
  assert one == eight


def test_the_weights_of_the_state_are_used():
  source = Scenes({'train': 50, 'test': 37})
  zero = _evaluate(source, scale=0.0)
  # All features are equal, so the first class is always predicted.
  assert zero['5shot/accuracy'] == pytest.approx(10 / 37)
  message = r'^evals\.few_shot: the features of 20 of 20 images are not finite'
  with pytest.raises(ValueError, match=message):
    _evaluate(source, scale=np.nan, shots=(5,))


def test_unreadable_images_are_left_out():
  whole = Scenes({'train': 12, 'test': 37})
  (first,) = linear.draw(np.arange(12) % CLASSES, CLASSES, 0)[2][:1]
  broken = Scenes({'train': 12, 'test': 37}, broken=(int(first),))
  options = dict(shots=(1,), seeds=(0,))
  values = _evaluate(broken, **options)
  assert values != _evaluate(whole, **options)
  assert (values['count'], values['excluded']) == (37, 1)


def test_all_images_of_a_class_with_too_few_are_used(logged):
  source = Scenes({'train': 14, 'test': 37})
  values = _evaluate(source, shots=(5,), seeds=(0,))
  x, y = source.features('train', range(14))
  (fitted,) = linear.fit(x, y, CLASSES, [1.0])
  new, labels = source.features('test', range(37))
  expected = np.mean(fitted.predict(new) == labels)
  assert values['5shot/accuracy'] == pytest.approx(expected)
  assert logged == [
    "evals.few_shot: 4 of 4 classes have fewer images in 'train' than 5 shots,"
    " so all their images are used; 'class 0' has 4."
  ]


def test_a_class_without_images_is_never_predicted():
  source = Scenes({'train': 40, 'test': 37}, without=3)
  assert _evaluate(source)['5shot/accuracy'] > 0.5


def test_l2_is_selected_on_the_selection_split(logged):
  source = Scenes({'train': 80, 'test': 37})
  strengths = (1e-6, 10.0, 1e9)
  values = _evaluate(
    source, train='train[:40]', selection='train[40:]', l2=strengths
  )
  for shots in (1, 5):
    held_out = []
    for l2 in strengths:
      alone = _evaluate(
        source, train='train[:40]', test='train[40:]', l2=(l2,), shots=(shots,)
      )
      held_out.append(alone[f'{shots}shot/accuracy'])
      line = f'{shots}-shot, l2={l2:g}: {100 * held_out[-1]:.2f}%'
      assert f"{line} on 'train[40:]'" in logged
    best = strengths[int(np.argmax(held_out))]
    assert values[f'{shots}shot/l2'] == best
    assert values[f'{shots}shot/selection_accuracy'] == pytest.approx(
      max(held_out)
    )
    alone = _evaluate(source, train='train[:40]', l2=(best,), shots=(shots,))
    assert values[f'{shots}shot/accuracy'] == alone[f'{shots}shot/accuracy']


@pytest.mark.parametrize(
  'options, message',
  [
    ({'l2': (1.0, 2.0)}, 'the test split must not choose among them'),
    (
      {'l2': (1.0, 2.0), 'selection': 'test[:3]', 'train': 'train[:9]'},
      r"test split 'test' and the selection split 'test\[:3\]' of 'scenes'"
      ' share 3 images',
    ),
    (
      {'l2': (1.0, 2.0), 'selection': 'train[5:]', 'train': 'train[:9]'},
      'share 4 images; choose disjoint splits',
    ),
    ({'test': 'train[15:]'}, 'share 5 images'),
    ({'shots': ()}, r'shots=\(\) must be different numbers'),
    ({'shots': (0, 1)}, r'shots=\(0, 1\) must be 1 or more'),
    ({'seeds': (1, 1)}, r'seeds=\(1, 1\) must be different numbers'),
    ({'seeds': (-1,)}, r'seeds=\(-1,\) must be 0 or more'),
    ({'l2': (0.0,)}, r'l2=\(0.0,\) must be positive'),
  ],
)
def test_invalid_settings_are_refused(options, message):
  source = Scenes({'train': 20, 'test': 5})
  with pytest.raises(ValueError, match=message):
    _evaluator(source, **options)


def test_the_line_for_the_log():
  evaluator = _evaluator(Scenes({'train': 20, 'test': 5}))
  values = {'1shot/accuracy': 0.5, '5shot/accuracy': 0.75, 'count': 5.0}
  assert (
    evaluator.summary(values) == '1-shot 50.00%, 5-shot 75.00% on 5 examples'
  )


class Tokens(nn.Module):
  """A model with four patches after an untrained class token."""

  patch_outputs: int | None = None

  def token_grid(self, image_size):
    return 2, 2

  @nn.compact
  def __call__(self, images, *, train):
    rows = images.reshape(len(images), -1)[:, :8].reshape(-1, 4, 2)
    token = jnp.full((len(images), 1, 2), 7.0)
    encoded = jnp.concatenate([token, rows], axis=1)
    return rows, {'encoded': encoded, 'pre_logits': encoded[:, 0]}


def test_masked_patch_models_use_the_mean_of_the_patches():
  """The class token gets no gradient, so the features must not use it."""
  images = np.random.default_rng(0).integers(0, 256, (8, 3, 3, 1), np.uint8)
  batch = {
    'image': jnp.asarray(images),
    'label': jnp.arange(8),
    'mask': jnp.ones(8, bool),
  }
  mesh = sharding.make_mesh(8)
  features, _, _ = frozen.compiled_features(Tokens(512), mesh)({}, batch)
  expected = (images.reshape(8, -1)[:, :8] / 127.5 - 1).reshape(8, 4, 2)
  np.testing.assert_allclose(features, expected.mean(axis=1), rtol=1e-5)
  features, _, _ = frozen.compiled_features(Tokens(), mesh)({}, batch)
  np.testing.assert_allclose(features, 7.0)


def test_one_process_reads_the_labels(monkeypatch):
  source = Scenes({'train': 40, 'test': 8})
  evaluator = _evaluator(source)
  calls = []
  expected = dict(evaluator.run(state(), lambda: calls.append(1)))
  sent = evaluator._drawn
  assert [len(seed) for seed in sent] == [CLASSES, CLASSES]
  # Each class has only the images of the largest number of shots.
  assert {len(order) for seed in sent for order in seed} == {5}
  other = _evaluator(source)
  read_labels = data.read_labels

  def refuse(*args):
    raise AssertionError('labels were read')

  monkeypatch.setattr(fewshot.jax, 'process_index', lambda: 1)
  monkeypatch.setattr(fewshot.data, 'read_labels', refuse)
  monkeypatch.setattr(
    fewshot.distributed, 'broadcast', lambda x: sent if x is None else x
  )
  # A call of `on_batch` may wait for the other processes, so all processes
  # must call it equally often.
  monkeypatch.setattr(fewshot.jax, 'process_count', lambda: 2)
  others = []
  assert dict(other.run(state(), lambda: others.append(1))) == expected
  monkeypatch.setattr(fewshot.jax, 'process_index', lambda: 0)
  monkeypatch.setattr(fewshot.data, 'read_labels', read_labels)
  firsts = []
  dict(_evaluator(source).run(state(), lambda: firsts.append(1)))
  assert len(firsts) == len(others)
  assert len(calls) > len(firsts)
