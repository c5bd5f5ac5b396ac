"""Multinomial logistic regression on feature vectors, on the devices.

All rows take part in each step of L-BFGS, so that a fit has no learning rate
and no order of batches, and is the same on any number of devices. The devices
share the rows; a row's logits exist only while its block is computed.

Axes: `N` rows, `D` features, `K` classes, `S` blocks of `R` rows.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.evaluators import linear

# Logits per device that are computed at once: 64 MB of them.
_LOGITS = 2**24
# The fit ends if no derivative is larger, or if `_STEPS` steps improve the loss
# by a smaller part than float32 can tell reliably.
_GRADIENT = 1e-5
_IMPROVEMENT = 1e-6
# Steps between two calls of `on_step`.
_STEPS = 10
# Images whose features the host converts at a time, to bound the memory.
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Classifier:
  """A fitted linear classifier.

  Attributes:
    mean: float32 [D], the mean of the training images' features.
    scale: float32 [D], their standard deviation + `linear.EPSILON`.
    kernel: float32 [D, K].
    bias: float32 [K].
    l2: the strength of the regularisation.
  """

  mean: np.ndarray
  scale: np.ndarray
  kernel: np.ndarray
  bias: np.ndarray
  l2: float

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the class of the highest score, int64 [N], of [N, D]."""
    found = []
    for start in range(0, len(features), _CHUNK):
      x = (features[start : start + _CHUNK] - self.mean) / self.scale
      found.append((x @ self.kernel + self.bias).argmax(axis=1))
    return np.concatenate(found)


def fit(
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  l2: Sequence[float],
  mesh: jax.sharding.Mesh,
  *,
  max_steps: int,
  on_step: Callable[[], None] = lambda: None,
) -> Iterator[Classifier]:
  """Yields the classifier of each strength.

  Minimises the mean cross-entropy of the standardised features plus
  l2 / 2 |kernel|^2. scikit-learn's `LogisticRegression` does the same with
  C = 1 / (N l2).

  Args:
    features: float32 [N, D].
    labels: integers [N] in [0, K).
    num_classes: K.
    l2: strengths of the regularisation, above 0.
    mesh: the devices, which share the rows.
    max_steps: the most steps per strength.
    on_step: called after every few steps.

  Raises:
    ValueError: a feature is not finite.
  """
  finite = np.isfinite(features).all(axis=1)
  if not finite.all():
    raise ValueError(
      f'the features of {np.sum(~finite)} of {len(features)} images are not'
      ' finite, because the weights have diverged or the features overflow.'
      ' Evaluate an earlier checkpoint, or use float32.'
    )
  mean = features.mean(axis=0, dtype=np.float64)
  # `std` would hold all rows in float64, twice.
  variance = sum(
    np.sum((features[start : start + _CHUNK] - mean) ** 2, axis=0)
    for start in range(0, len(features), _CHUNK)
  ) / len(features)
  mean = mean.astype(np.float32)
  scale = np.sqrt(variance).astype(np.float32) + np.float32(linear.EPSILON)
  rows = _put((features, labels, mean, scale), num_classes, mesh)
  start, run = _compiled(mesh)
  for strength in l2:
    strength = float(strength)
    params = {
      'kernel': jnp.zeros((features.shape[1], num_classes)),
      'bias': jnp.zeros(num_classes),
    }
    carry = start(params)
    loss, steps = math.inf, 0
    while steps < max_steps:
      count = min(_STEPS, max_steps - steps)
      *carry, now, slope = run(*carry, *rows, strength, count)
      now, slope = float(now), float(slope)
      steps += count
      on_step()
      if slope <= _GRADIENT or loss - now < _IMPROVEMENT * abs(now):
        break
      loss = now
    else:
      logging.warning(
        'The logistic regression with l2=%g stopped after %d steps, before it'
        ' converged (largest derivative %.1e).',
        *(strength, steps, slope),
      )
    found = jax.tree.map(np.asarray, carry[0])
    yield Classifier(mean, scale, found['kernel'], found['bias'], strength)


def _put(data, num_classes: int, mesh: jax.sharding.Mesh):
  """Puts blocks of standardised rows and labels on the devices.

  Returns:
    float32 [S, R, D], and int32 [S, R], -1 for rows that do not count.
  """
  features, labels, mean, scale = data
  devices = mesh.shape['data'] * mesh.shape['fsdp']
  per_device = -(-len(features) // devices)
  blocks = -(-per_device // max(1, _LOGITS // num_classes))
  size = devices * -(-per_device // blocks)  # R

  def rows(array, index):
    """Returns the part of [S, R, ...] that a device holds."""
    begin, end, _ = index[1].indices(size)
    part = np.zeros((blocks, end - begin, *array.shape[1:]), array.dtype)
    for block in range(blocks):
      found = array[block * size + begin : min(block * size + end, len(array))]
      part[block, : len(found)] = found
    return part

  def standardised(index):
    part = rows(features, index)
    part -= mean
    part /= scale
    return part

  placed = NamedSharding(mesh, P(None, sharding.BATCH))
  shape = (blocks, size)
  counted = np.asarray(labels, np.int32) + 1  # 0 is for missing rows.
  return (
    jax.make_array_from_callback(
      (*shape, features.shape[1]), placed, standardised
    ),
    jax.make_array_from_callback(
      shape, placed, lambda index: rows(counted, index) - 1
    ),
  )


def _loss(params, x, labels, l2: jax.Array) -> jax.Array:
  """Returns the loss over blocks of rows [S, R, D]; see `fit`."""

  # Without the checkpoint, the gradient would keep the logits of all rows.
  @jax.checkpoint
  def block_loss(params, x, labels):
    logits = params['bias'] + jnp.matmul(
      x, params['kernel'], precision=jax.lax.Precision.HIGHEST
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(
      logits, jnp.maximum(labels, 0)
    )
    return jnp.sum(jnp.where(labels >= 0, losses, 0.0))

  def add(total, block):
    return total + block_loss(params, *block), None

  total, _ = jax.lax.scan(add, 0.0, (x, labels))
  penalty = 0.5 * l2 * jnp.sum(params['kernel'] ** 2)
  return total / jnp.sum(labels >= 0) + penalty


@functools.lru_cache(16)
def _compiled(mesh: jax.sharding.Mesh):
  """Returns the jitted start, and the jitted function of some steps."""
  # Compiles faster than the default search, and the loss is convex.
  optimizer = optax.lbfgs(
    linesearch=optax.scale_by_backtracking_linesearch(
      max_backtracking_steps=20, decrease_factor=0.5, store_grad=True
    )
  )

  def start(params):
    return params, optimizer.init(params)

  def run(params, state, x, labels, l2, count):
    loss = functools.partial(_loss, x=x, labels=labels, l2=l2)
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(_, carry):
      params, state = carry
      value, grad = value_and_grad(params, state=state)
      updates, state = optimizer.update(
        grad, state, params, value=value, grad=grad, value_fn=loss
      )
      return optax.apply_updates(params, updates), state

    params, state = jax.lax.fori_loop(0, count, step, (params, state))
    value, grad = value_and_grad(params, state=state)
    slope = jnp.max(
      jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(grad)])
    )
    return params, state, value, slope

  # All parameters are on all devices; only the rows are split.
  everywhere = NamedSharding(mesh, P())
  return (
    jax.jit(start, out_shardings=everywhere),
    jax.jit(run, out_shardings=everywhere),
  )
