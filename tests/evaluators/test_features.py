"""Guards evaluations by neighbours and by a linear probe, with scikit-learn."""

import numpy as np
import pytest
from sklearn import linear_model, neighbors, preprocessing

from tests.evaluators.scenes import CLASSES, Pixels, Scenes, state
from vit_jax import data, sharding
from vit_jax.data import ops
from vit_jax.evaluators import knn, linear_probe, logistic, neighbours

COMMON = dict(
  batch_size=16,
  reading=dict(unreadable='skip-and-count', threads=0),
  layer='pre_logits',
)
RESIZE = ops.parse('resize', image_size=(3, 3), channels=1)


def _points(rows, seed, width=24):
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(0).normal(size=(CLASSES, width)) / 2
  labels = rng.integers(0, CLASSES, rows)
  return np.float32(centres[labels] + rng.normal(size=(rows, width))), labels


def _knn(source, devices=8, train='train', test='test', scale=1.0, **options):
  protocol = dict(k=(1, 5), metric='cosine', weights='softmax', temperature=0.1)
  evaluator = knn.NearestNeighbours(
    *(data.View(source, train), data.View(source, test)),
    *(RESIZE, Pixels(), sharding.make_mesh(devices)),
    knn.Protocol(**protocol | options),
    **COMMON,
    name='near',
  )
  return dict(evaluator.run(state(scale)))


@pytest.mark.parametrize('weights', ['uniform', 'distance'])
@pytest.mark.parametrize('metric', neighbours.METRICS)
def test_neighbours_are_those_of_scikit_learn(metric, weights, monkeypatch):
  # Several parts of a block, and a part that is not full.
  monkeypatch.setattr(neighbours, '_ROWS', 32)
  monkeypatch.setattr(neighbours, '_SPARE', 1)
  monkeypatch.setattr(neighbours, '_QUERIES', 70)
  monkeypatch.setattr(neighbours, '_PAIRS', 1000)
  monkeypatch.setattr(knn, '_VOTES', 64)
  (x, labels), (queries, _) = _points(700, 1), _points(150, 2)
  mesh = sharding.make_mesh(8)
  # Distances far below the vectors' length.
  x, queries = x + 30, queries + 30
  calls = []
  found = neighbours.nearest(
    [x[:301], x[301:]], queries, 15, metric, mesh, lambda: calls.append(1)
  )
  # Two parts of 256 rows in each block, then about 2,400 pairs by the thousand:
  # a watchdog sees both passes.
  assert len(calls) == 4 + 4
  for k in (1, 4, 15):
    expected = neighbors.KNeighborsClassifier(
      k, weights=weights, metric=metric, algorithm='brute'
    ).fit(np.float64(x), labels)
    distances, rows = expected.kneighbors(np.float64(queries))
    np.testing.assert_array_equal(found.rows[:, :k], rows)
    np.testing.assert_allclose(found.distances[:, :k], distances, rtol=1e-6)
    predicted = knn.vote(found, labels, CLASSES, k, weights, 0.07)
    np.testing.assert_array_equal(
      predicted, expected.predict(np.float64(queries))
    )


def test_the_first_of_equal_rows_and_the_smallest_of_equal_classes():
  x = np.float32([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]])
  labels = np.array([3, 2, 1, 0, 2])
  found = neighbours.nearest(
    [x[:2], x[2:]], np.float32([[2, 0]]), 4, 'cosine', sharding.make_mesh(8)
  )
  assert found.rows.tolist() == [[1, 2, 4, 0]]
  np.testing.assert_allclose(found.distances, [[0, 0, 0, 1]])

  def vote(k, weights='uniform'):
    return knn.vote(found, labels, 4, k, weights, 0.5).tolist()

  assert [vote(k) for k in (1, 2, 3)] == [[2], [1], [2]]
  # e^0 for class 2, and e^0 + e^-2 for class 3.
  found = neighbours.Nearest(np.array([[1, 0, 3]]), np.array([[0, 0.0, 1]]))
  labels = np.array([3, 2, 0, 3])
  assert vote(2) == [2]
  assert vote(3, 'softmax') == [3]
  assert vote(3, 'distance') == [2]  # Only those at distance 0 vote.


def test_softmax_weights_are_those_of_the_cosine():
  (x, labels), (queries, _) = _points(300, 1), _points(40, 2)
  found = neighbours.nearest([x], queries, 20, 'cosine', sharding.make_mesh(1))
  unit = preprocessing.normalize
  cosines = unit(np.float64(queries)) @ unit(np.float64(x)).T
  expected = []
  for row in cosines:
    order = np.argsort(-row)[:20]
    votes = np.exp(row[order] / 0.07)
    expected.append(
      np.bincount(labels[order], votes, minlength=CLASSES).argmax()
    )
  assert knn.vote(found, labels, CLASSES, 20, 'softmax', 0.07).tolist() == (
    expected
  )


def test_neighbours_of_a_model():
  source = Scenes({'train': 50, 'test': 37})
  x, labels = source.features('train', range(50))
  queries, expected = source.features('test', range(37))
  for weights in ('uniform', 'distance'):
    values = _knn(source, weights=weights)
    assert values['count'] == 37
    for k in (1, 5):
      classifier = neighbors.KNeighborsClassifier(
        k, weights=weights, metric='cosine'
      ).fit(x, labels)
      assert values[f'{k}nn/accuracy'] == classifier.score(queries, expected)
  assert values == _knn(source, devices=1, weights='distance')


def test_unreadable_images_are_no_neighbours():
  whole = {'train': 13, 'test': 37}
  broken = Scenes(whole, broken=(0,))
  values = _knn(broken, k=(1,))
  assert values.pop('excluded') == 1
  assert values == _knn(Scenes(whole), k=(1,), train='train[1:]')


@pytest.mark.parametrize(
  'options, message',
  [
    ({'k': ()}, r'k=\(\) must be different numbers'),
    ({'k': (0,)}, r'k=\(0,\) must be different numbers, 1 or more'),
    ({'k': (21,)}, r"needs 21 training images, but 'train' has 20"),
    ({'metric': 'l1'}, "metric='l1' is unknown; choose one of .'cosine', 'euc"),
    ({'weights': 'x'}, "weights='x' is unknown; choose one of .'uniform', 'so"),
    ({'metric': 'euclidean'}, "weights='softmax' needs metric='cosine'"),
    ({'temperature': 0.0}, 'temperature=0.0 must be above 0'),
    ({'test': 'train[15:]'}, 'share 5 images'),
    ({'scale': np.nan}, r'^evals\.near: the features of 5 of 5 images'),
  ],
)
def test_what_neighbours_refuse(options, message):
  with pytest.raises(ValueError, match=message):
    _knn(Scenes({'train': 20, 'test': 5}), **options)


def test_a_fit_is_that_of_scikit_learn(monkeypatch):
  monkeypatch.setattr(logistic, '_LOGITS', 100)  # Several blocks.
  (x, labels), (new, _) = _points(701, 1), _points(150, 2)
  x, new = x * 7 + 3, new * 7 + 3
  standard = preprocessing.StandardScaler().fit(x)
  fitted = {}
  for devices in (1, 8):
    (fitted[devices],) = logistic.fit(
      x, labels, CLASSES, [1e-2], sharding.make_mesh(devices), max_steps=200
    )
  expected = linear_model.LogisticRegression(
    C=1 / (1e-2 * len(x)), tol=1e-8, max_iter=1000
  ).fit(standard.transform(x), labels)

  def centred(kernel):
    # A number may be added to the scores of all classes.
    return kernel - kernel.mean(axis=1, keepdims=True)

  for one in fitted.values():
    np.testing.assert_array_equal(
      one.predict(new), expected.predict(standard.transform(new))
    )
    np.testing.assert_allclose(
      centred(one.kernel), centred(expected.coef_.T), atol=1e-3
    )


def _probe(source, devices=8, selection=None, train='train', **options):
  evaluator = linear_probe.LinearProbe(
    *(data.View(source, train), data.View(source, 'test')),
    data.View(source, selection) if selection else None,
    *(RESIZE, Pixels(), sharding.make_mesh(devices)),
    linear_probe.Protocol(**dict(l2=(1e-2,), max_steps=100) | options),
    **COMMON,
    name='probe',
  )
  return dict(evaluator.run(state()))


def test_linear_probe_selects_a_strength():
  source = Scenes({'train': 60, 'test': 37}, broken=(2,))
  strengths = (100.0, 1e-2, 1e-3)
  values = _probe(
    source, selection='train[40:]', train='train[:40]', l2=strengths
  )
  assert values['excluded'] == 1
  found = []
  for l2 in strengths:
    x, labels = source.features('train', [i for i in range(40) if i != 2])
    held_out = source.features('train', range(40, 60))
    (one,) = logistic.fit(
      np.float32(x), labels, CLASSES, [l2], sharding.make_mesh(8), max_steps=100
    )
    found.append(np.mean(one.predict(held_out[0]) == held_out[1]))
  best = strengths[int(np.argmax(found))]
  assert best < 100
  assert (values['l2'], values['selection_accuracy']) == (best, max(found))
  alone = _probe(source, devices=1, train='train[:40]', l2=(best,))
  for key in ('accuracy', 'train_accuracy', 'count'):
    assert values[key] == alone[key]


@pytest.mark.parametrize(
  'options, message',
  [
    ({'l2': (0.0,)}, r'l2=\(0.0,\) must be different positive numbers'),
    ({'l2': (1.0, 2.0)}, 'the test split must not choose among them'),
    ({'max_steps': 0}, 'max_steps=0 must be 1 or more'),
  ],
)
def test_what_a_linear_probe_refuses(options, message):
  with pytest.raises(ValueError, match=message):
    _probe(Scenes({'train': 20, 'test': 5}), **options)


def test_a_fit_that_has_not_converged_says_so(monkeypatch):
  mesh, lines = sharding.make_mesh(1), []
  monkeypatch.setattr(
    logistic.logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  x, labels = _points(100, 1)
  calls = []
  list(
    logistic.fit(
      *(x, labels, CLASSES, [1e-4], mesh),
      max_steps=12,
      on_step=lambda: calls.append(1),
    )
  )
  assert len(calls) == 2
  assert lines[0].startswith(
    'The logistic regression with l2=0.0001 stopped after 12 steps'
  )
