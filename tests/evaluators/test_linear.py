"""Guards the closed form of few-shot classification, by ridge regression."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from vit_jax.evaluators import linear


def _data(images, features, classes, seed=0):
  rng = np.random.default_rng(seed)
  labels = np.arange(images) % classes
  centres = rng.normal(size=(classes, features))
  x = centres[labels] + rng.normal(size=(images, features))
  return 3 + 5 * x, labels


@pytest.mark.parametrize('l2', [2.0**-10, 1.0, 1024.0, 2.0**19])
@pytest.mark.parametrize('images, features', [(15, 40), (90, 20), (21, 20)])
def test_agrees_with_ridge(images, features, l2):
  x, labels = _data(images, features, classes=3)
  new, _ = _data(50, features, classes=3, seed=1)
  (fitted,) = linear.fit(x, labels, 3, [l2])

  def prepared(values):
    scaled = (values - x.mean(0)) / (x.std(0) + 1e-5)
    return np.hstack([scaled, np.full((len(values), 1), 100.0)])

  ridge = Ridge(alpha=l2, fit_intercept=False, solver='svd')
  ridge.fit(prepared(x), np.where(labels[:, None] == range(3), 1.0, -1.0))
  np.testing.assert_allclose(
    fitted.scores(new), ridge.predict(prepared(new)), rtol=0, atol=1e-6
  )


def test_an_example_computed_by_hand():
  # One feature, which is -1 and 1 after standardising. l2=2 is negligible next
  # to the bias' 2 * 100^2, and so W = XtY / (2 + 2).
  (fitted,) = linear.fit(np.array([[4.0], [8.0]]), np.array([0, 1]), 2, [2.0])
  np.testing.assert_allclose(fitted.weights[0], [-0.5, 0.5], rtol=1e-4)
  np.testing.assert_allclose(fitted.weights[1], [0, 0], atol=1e-12)
  assert fitted.predict(np.array([[5.9], [6.1], [100.0]])).tolist() == [0, 1, 1]


def test_fitting_several_strengths_equals_fitting_each_alone():
  x, labels = _data(30, 8, classes=5)
  strengths = [1e-3, 1.0, 1e3]
  for several, l2 in zip(
    linear.fit(x, labels, 5, strengths), strengths, strict=True
  ):
    (alone,) = linear.fit(x, labels, 5, [l2])
    assert several.l2 == l2
    np.testing.assert_array_equal(several.weights, alone.weights)


def test_a_constant_feature_has_no_effect():
  x, labels = _data(30, 4, classes=2)
  constant = np.hstack([x, np.full((30, 1), 7.0)])
  (without,) = linear.fit(x, labels, 2, [1.0])
  (fitted,) = linear.fit(constant, labels, 2, [1.0])
  np.testing.assert_allclose(
    fitted.scores(constant), without.scores(x), atol=1e-9
  )


def test_constant_features_predict_the_most_frequent_class():
  labels = np.array([2, 1, 1, 0, 1])
  (fitted,) = linear.fit(np.ones((5, 3)), labels, 3, [1.0])
  assert fitted.predict(np.ones((2, 3))).tolist() == [1, 1]


@pytest.mark.parametrize(
  'x, l2, message',
  [
    ([[1.0, np.nan], [0.0, 1.0]], [1.0], 'features of 1 of 2 images are not'),
    ([[1.0, np.inf], [0.0, -np.inf]], [1.0], 'features of 2 of 2 images'),
    ([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], r'l2=\(1.0, 0.0\) must be positive'),
    (np.zeros((0, 2)), [1.0], 'there are no images'),
  ],
)
def test_invalid_inputs_are_refused(x, l2, message):
  x = np.array(x)
  with pytest.raises(ValueError, match=message):
    list(linear.fit(x, np.arange(len(x)), 2, l2))


def test_drawn_images_belong_to_their_class_and_are_nested():
  labels = np.array([1, 0, 1, 3, 0, 1, 0, 3])
  drawn = linear.draw(labels, 4, seed=0)
  assert [sorted(d.tolist()) for d in drawn] == [
    [1, 4, 6],
    [0, 2, 5],
    [],
    [3, 7],
  ]
  assert [d.tolist() for d in linear.draw(labels, 4, seed=0)] == [
    d.tolist() for d in drawn
  ]
  orders = {
    tuple(linear.draw(np.zeros(5, int), 1, seed)[0]) for seed in range(20)
  }
  assert len(orders) > 10


def test_images_drawn_of_a_class_do_not_depend_on_other_classes():
  few = linear.draw(np.array([0, 1, 0, 1, 0, 1]), 2, seed=3)
  more = linear.draw(np.array([0, 1, 0, 1, 0, 1, 2, 2]), 3, seed=3)
  assert few[1].tolist() == more[1].tolist()
