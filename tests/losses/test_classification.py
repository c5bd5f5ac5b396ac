"""Guards: the losses, against values computed by hand."""

import jax.numpy as jnp
import numpy as np

from vit_jax import losses


def test_multi_hot_of_padded_labels():
  labels = jnp.array([[0, 2], [1, -1], [-1, -1]])
  expected = [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
  np.testing.assert_array_equal(losses.multi_hot(labels, 3), expected)


def test_softmax_cross_entropy_literals():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
  loss = losses.build('softmax')
  np.testing.assert_allclose(
    loss(logits, jnp.array([0, 1])), [np.log(2), np.log(10)], rtol=1e-6
  )
  # Two labels share the target; an image without labels has zero loss.
  np.testing.assert_allclose(
    loss(logits, jnp.array([[0, 1], [-1, -1]])),
    [0.5 * (np.log(2) + np.log(4)), 0],
    rtol=1e-6,
  )


def test_softmax_label_smoothing_mixes_in_the_uniform_distribution():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
  loss = losses.build('softmax', label_smoothing=0.3)
  expected = 0.7 * np.log(2) + 0.3 * (np.log(2) + 2 * np.log(4)) / 3
  np.testing.assert_allclose(
    loss(logits, jnp.array([0])), [expected], rtol=1e-6
  )


def test_sigmoid_cross_entropy_sums_over_classes():
  # sigmoid(0) = 1/2 for each class; sigmoid(log 3) = 3/4.
  logits = jnp.array([[0.0, 0.0, 0.0], [np.log(3.0), 0.0, 0.0]])
  loss = losses.build('sigmoid')
  np.testing.assert_allclose(
    loss(logits, jnp.array([1, 0])),
    [3 * np.log(2), np.log(4 / 3) + 2 * np.log(2)],
    rtol=1e-6,
  )
  np.testing.assert_allclose(
    loss(logits, jnp.array([[0, 1], [-1, -1]])),
    [3 * np.log(2), np.log(4) + 2 * np.log(2)],
    rtol=1e-6,
  )


def test_sigmoid_label_smoothing_moves_targets_to_s_and_one_minus_s():
  logits = jnp.array([[np.log(3.0), 0.0]])
  loss = losses.build('sigmoid', label_smoothing=0.1)
  on = 0.9 * np.log(4 / 3) + 0.1 * np.log(4)
  np.testing.assert_allclose(
    loss(logits, jnp.array([0])), [on + np.log(2)], rtol=1e-6
  )


def test_correct_takes_any_of_the_labels():
  logits = jnp.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
  np.testing.assert_array_equal(
    losses.correct(logits, jnp.array([1, 1, 0])), [True, False, True]
  )
  np.testing.assert_array_equal(
    losses.correct(logits, jnp.array([[0, 1], [1, -1], [-1, -1]])),
    [True, False, False],
  )
