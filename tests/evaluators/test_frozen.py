"""Guards evaluations of frozen features, with the images' pixels as features.

The references are scikit-learn's ridge regression, nearest neighbours and
logistic regression.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import linear_model, neighbors, preprocessing

from tests.evaluators.scenes import CLASSES, Pixels, Scenes, context
from vit_jax import config as config_lib
from vit_jax import sharding
from vit_jax.evaluators import fewshot, frozen, knn, linear_probe
from vit_jax.evaluators.build import KINDS
from vit_jax.models import layers

SOURCE = Scenes({'train': 60, 'test': 37})
DEFAULTS = {
  'few_shot': dict(shots=(1, 5), seeds=(0, 1), l2=(1.0,)),
  'knn': dict(k=(1, 5), temperature=0.1),
  'linear_probe': dict(l2=(1e-2,), max_steps=100),
}


def _section(kind, train='train', test='test', **options):
  options = DEFAULTS[kind] | options
  return config_lib.evaluation(test, kind, train_split=train, **options)


def _evaluate(kind, source=SOURCE, scale=1.0, devices=8, **options):
  given = context(
    *(_section(kind, **options), Pixels(), source, (3, 3)),
    **{'devices': devices, 'batch_size': 16},
  )
  return dict(KINDS[kind](given).run({'scale': jnp.float32(scale)}))


def _points(rows, seed, width=24):
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(0).normal(size=(CLASSES, width)) / 2
  labels = rng.integers(0, CLASSES, rows)
  return np.float32(centres[labels] + rng.normal(size=(rows, width))), labels


# ---- All of them -------------------------------------------------------------


@pytest.mark.parametrize(
  'kind',
  ['few_shot', 'knn', pytest.param('linear_probe', marks=pytest.mark.gate)],
)
def test_unreadable_images_are_left_out(kind):
  source = Scenes({'train': 28, 'test': 37}, broken=(0, 1, 2, 3))
  options = dict(devices=1) | (dict(shots=(7,)) if kind == 'few_shot' else {})
  expected = _evaluate(kind, source, train='train[4:]', **options)
  values = _evaluate(kind, source, **options)
  assert values == expected | {'excluded': 4}
  assert values['count'] == 37


def test_the_best_strength_is_selected():
  strengths = (1e-6, 10.0, 1e9)
  splits = dict(train='train[:24]', selection_split='train[24:]')
  values = _evaluate('few_shot', l2=strengths, **splits)
  held_out = {
    l2: _evaluate('few_shot', l2=(l2,), train='train[:24]', test='train[24:]')
    for l2 in strengths
  }
  for name in ('1shot/', '5shot/'):
    # The first of equals.
    best = max(held_out, key=lambda l2: held_out[l2][f'{name}accuracy'])
    assert values[f'{name}l2'] == best
    found = values[f'{name}selection_accuracy']
    assert found == held_out[best][f'{name}accuracy']
    alone = _evaluate('few_shot', l2=(best,), train='train[:24]')
    assert values[f'{name}accuracy'] == alone[f'{name}accuracy']


SEVERAL = {'l2': (1.0, 2.0)}


@pytest.mark.parametrize(
  'kind, options, message',
  [
    ('few_shot', SEVERAL, 'Set selection_split'),
    ('linear_probe', SEVERAL, 'Set selection_split'),
    ('few_shot', {'test': 'train[55:]'}, 'share 5 images; choose disjoint'),
    ('linear_probe', SEVERAL | {'selection_split': 'train[55:]'}, 'share 5 im'),
    ('knn', {'k': (61,)}, "needs 61 training images, but 'train' has 60"),
    ('knn', {'layer': 'block_0'}, "no layer 'block_0'; choose one of"),
  ],
)
def test_what_is_refused(kind, options, message):
  with pytest.raises(ValueError, match=message):
    _evaluate(kind, **options)


@pytest.mark.parametrize('kind', DEFAULTS)
def test_features_that_are_not_finite(kind):
  with pytest.raises(ValueError, match=r'images are not finite.* earlier che'):
    _evaluate(kind, scale=np.nan)


# ---- Few shots ---------------------------------------------------------------


@pytest.mark.parametrize('l2', [2.0**-10, 2.0**19])
@pytest.mark.parametrize('images, features', [(15, 40), (90, 20)])
def test_least_squares_are_those_of_ridge(images, features, l2):
  (x, labels), (new, _) = (_points(n, n, features) for n in (images, 50))
  x, new = 3 + 5 * np.float64(x), 3 + 5 * np.float64(new)
  *_, fitted = fewshot.fit(x, labels, CLASSES, [1.0, l2])

  def prepared(values):
    scaled = (values - x.mean(0)) / (x.std(0) + 1e-5)
    return np.hstack([scaled, np.full((len(values), 1), 100.0)])

  ridge = linear_model.Ridge(alpha=l2, fit_intercept=False, solver='svd')
  targets = np.where(labels[:, None] == range(CLASSES), 1.0, -1.0)
  ridge.fit(prepared(x), targets)
  np.testing.assert_allclose(
    fitted.scores(new), ridge.predict(prepared(new)), rtol=0, atol=1e-6
  )


def test_draws_are_nested_and_of_each_class_alone():
  labels = np.array([1, 0, 1, 3, 0, 1, 0, 3])
  drawn = [one.tolist() for one in fewshot.draw(labels, 4, seed=0)]
  assert list(map(sorted, drawn)) == [[1, 4, 6], [0, 2, 5], [], [3, 7]]
  more = fewshot.draw(np.append(labels, [2, 2]), 4, seed=0)
  assert [one.tolist() for one in more][:2] == drawn[:2]
  orders = {
    tuple(fewshot.draw(np.zeros(5, int), 1, seed)[0]) for seed in range(20)
  }
  assert len(orders) > 10


@pytest.mark.parametrize('train, without', [(60, None), (14, None), (40, 3)])
def test_few_shot_accuracy_is_that_of_a_fit_to_the_drawn_images(train, without):
  # With 14 images, all of a class are used; class 3 may have none.
  source = Scenes({'train': train, 'test': 37}, without=without)
  values = _evaluate('few_shot', source, seeds=(3, 8))
  _, labels = source.features('train', range(train))
  new, expected = source.features('test', range(37))
  for shots in (1, 5):
    found = []
    for seed in (3, 8):
      drawn = fewshot.draw(labels, CLASSES, seed)
      x, y = source.features('train', [i for one in drawn for i in one[:shots]])
      (fitted,) = fewshot.fit(x, y, CLASSES, [1.0])
      found.append(np.mean(fitted.predict(new) == expected))
    assert values[f'{shots}shot/accuracy'] == pytest.approx(np.mean(found))
    assert values[f'{shots}shot/std'] == pytest.approx(np.std(found, ddof=1))
  assert values['count'] == 37


def test_one_process_reads_the_labels(monkeypatch):
  calls, sent = [], []
  monkeypatch.setattr(fewshot.distributed, 'broadcast', sent.append)
  section = _section('few_shot')
  found = fewshot.FewShot(context(section, Pixels(), SOURCE, (3, 3)))
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  for index in (0, 1):
    monkeypatch.setattr(jax, 'process_index', lambda i=index: i)
    with pytest.raises(TypeError):  # Nothing came back.
      found.views(lambda: calls.append(1))
  # Each class has only the images of the largest number of shots.
  assert {len(order) for seed in sent[0] for order in seed} == {5}
  assert sent[1] is None
  # A call may wait for the other processes, so all must call equally often.
  assert not calls


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
  mesh = sharding.make_mesh(8)
  features = layers.compiled(Tokens(512), mesh)({}, images)
  expected = (images.reshape(8, -1)[:, :8] / 127.5 - 1).reshape(8, 4, 2)
  np.testing.assert_allclose(features, expected.mean(axis=1), rtol=1e-5)
  features = layers.compiled(Tokens(), mesh)({}, images)
  np.testing.assert_allclose(features, 7.0)


# ---- Neighbours --------------------------------------------------------------


def _softmax(distances):
  return np.exp((1 - distances) / 0.07)


@pytest.mark.parametrize('weights', ['uniform', _softmax])
def test_neighbours_are_those_of_scikit_learn(weights, monkeypatch):
  monkeypatch.setattr(knn, '_PAIRS', 700 * 40)  # Several parts.
  (x, labels), (queries, _) = _points(700, 1), _points(150, 2)
  # Distances far below the vectors' length.
  x, queries = x + 30, queries + 30
  calls = []
  rows, distances = knn.nearest(x, queries, 15, lambda: calls.append(1))
  assert len(calls) == 4  # A watchdog sees them.
  for k in (1, 4, 15):
    expected = neighbors.KNeighborsClassifier(
      k, weights=weights, metric='cosine', algorithm='brute'
    ).fit(np.float64(x), labels)
    far, places = expected.kneighbors(np.float64(queries))
    np.testing.assert_array_equal(rows[:, :k], places)
    np.testing.assert_allclose(distances[:, :k], far, rtol=1e-6)
    votes = 'uniform' if weights == 'uniform' else 'softmax'
    predicted = knn.vote(rows, distances, labels, k, votes, 0.07)
    np.testing.assert_array_equal(
      predicted, expected.predict(np.float64(queries))
    )


def test_an_image_is_at_no_distance_from_itself():
  x, _ = _points(50, 1)
  rows, distances = knn.nearest(x, 3 * x, 1)
  assert rows[:, 0].tolist() == list(range(50))
  np.testing.assert_allclose(distances, 0, atol=1e-12)
  with pytest.raises(ValueError, match='51'):
    knn.nearest(x, x, 51)


def test_the_smallest_of_equal_classes():
  labels = np.array([3, 2, 1, 0, 2])
  found = np.array([[1, 2, 4, 0]]), np.array([[0, 0.0, 0, 1]])

  def vote(k, weights='uniform'):
    return knn.vote(*found, labels, k, weights, 0.5).tolist()

  assert [vote(k) for k in (1, 2, 3)] == [[2], [1], [2]]
  # e^0 for class 2, and e^0 + e^-2 for class 3.
  found = np.array([[1, 0, 3]]), np.array([[0, 0.0, 1]])
  labels = np.array([3, 2, 0, 3])
  assert vote(2) == [2]
  assert vote(3, 'softmax') == [3]


def test_neighbours_of_a_model():
  x, labels = SOURCE.features('train', range(60))
  queries, expected = SOURCE.features('test', range(37))
  for weights, devices in (('uniform', 8), ('softmax', 1)):
    values = _evaluate('knn', weights=weights, devices=devices)
    votes = 'uniform' if weights == 'uniform' else _softmax
    for k in (1, 5):
      classifier = neighbors.KNeighborsClassifier(
        k, weights=votes, metric='cosine'
      ).fit(x, labels)
      assert values[f'{k}nn/accuracy'] == classifier.score(queries, expected)


# ---- Linear probe ------------------------------------------------------------


def test_a_fit_is_that_of_scikit_learn(monkeypatch, caplog):
  monkeypatch.setattr(linear_probe, '_LOGITS', 100)  # Several blocks.
  (x, labels), (new, _) = _points(701, 1), _points(150, 2)
  x, new = x * 7 + 3, new * 7 + 3
  standard = preprocessing.StandardScaler().fit(x)
  mesh = sharding.make_mesh(8)
  fit = functools.partial(linear_probe.fit, x, labels, CLASSES, [1e-2], mesh)
  (fitted,) = fit(max_steps=200)
  expected = linear_model.LogisticRegression(
    C=1 / (1e-2 * len(x)), tol=1e-8, max_iter=1000
  ).fit(standard.transform(x), labels)

  def centred(kernel):
    # A number may be added to the scores of all classes.
    return kernel - kernel.mean(axis=1, keepdims=True)

  np.testing.assert_array_equal(
    fitted.predict(new), expected.predict(standard.transform(new))
  )
  np.testing.assert_allclose(
    centred(fitted.kernel), centred(expected.coef_.T), atol=1e-3
  )
  calls = []
  with caplog.at_level('WARNING'):
    list(fit(max_steps=12, on_step=lambda: calls.append(1)))
  assert len(calls) == 12
  assert 'l2=0.01 stopped after 12 steps' in caplog.text
  # The strength that is best on the selection split counts.
  strengths, features = (1e9, 1e-2), {'train': frozen.Features(x, labels)}
  for use, seed in (('selection', 3), ('test', 4)):
    points, own = _points(60, seed)
    features[use] = frozen.Features(points * 7 + 3, own)
  each = list(linear_probe.fit(x, labels, CLASSES, strengths, mesh, 200))
  found = [one.accuracy(features['selection']) for one in each]
  best = int(np.argmax(found))
  section = _section('linear_probe', l2=strengths, max_steps=200)
  assert linear_probe.accuracies(features, CLASSES, section, mesh) == {
    'accuracy': each[best].accuracy(features['test']),
    'train_accuracy': each[best].accuracy(features['train']),
    'l2': strengths[best],
    'selection_accuracy': found[best],
  }
