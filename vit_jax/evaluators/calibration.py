"""Measures how far a model's confidence is from its accuracy.

The expected calibration error (Guo et al., arXiv:1706.04599, Eq. 3) puts images
into bins of equal width by the confidence of the prediction. The error is the
mean distance of a bin's accuracy from its mean confidence, weighted by the
number of images in the bin.
"""

import jax
import jax.numpy as jnp
import numpy as np

BINS = 15


def sums(
  confidence: jax.Array, correct: jax.Array, counted: jax.Array
) -> jax.Array:
  """Adds up a batch by bins.

  Args:
    confidence: float [B], in [0, 1].
    correct: bool [B].
    counted: bool [B], whether a row counts.

  Returns:
    float32 [3, BINS]: images, correct images, sum of confidences.
  """
  # The bins are (0, 1/15], (1/15, 2/15], ...
  bins = jnp.clip(jnp.ceil(confidence * BINS).astype(jnp.int32) - 1, 0)
  # [B, BINS]
  members = jax.nn.one_hot(bins, BINS) * counted[:, None]
  return jnp.stack(
    [
      members.sum(axis=0),
      (members * correct[:, None]).sum(axis=0),
      (members * confidence[:, None]).sum(axis=0),
    ]
  )


def error(totals: np.ndarray) -> float:
  """Returns the expected calibration error of the total of `sums` [3, BINS]."""
  images, correct, confidence = np.asarray(totals, np.float64)
  return float(np.abs(correct - confidence).sum() / images.sum())
