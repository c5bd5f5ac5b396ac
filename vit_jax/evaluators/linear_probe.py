"""A linear probe: a logistic regression on frozen features of all images.

Unlike few-shot classification, it sees the whole training split. All rows take
part in each step of L-BFGS, so that a fit has no learning rate and no order of
batches, and is the same on any number of devices. The devices share the rows; a
row's logits exist only while its block is computed.

Axes: `N` rows, `D` features, `K` classes, `S` blocks of `R` rows.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.evaluators import fewshot, frozen
from vit_jax.evaluators.evaluator import OnBatch
from vit_jax.evaluators.frozen import Features

# Logits per device that are computed at once: 64 MB of them.
_LOGITS = 2**24
# The fit ends if `_STEPS` steps improve the loss by a smaller part than float32
# can tell reliably.
_IMPROVEMENT = 1e-6
_STEPS = 10


class LinearProbe(frozen.FrozenFeatures):
  """Logistic regression of all training images."""

  def measure(
    self, features: Mapping[str, Features], on_step: OnBatch
  ) -> dict[str, float]:
    """See `accuracies`."""
    return accuracies(
      features, self.num_classes, self.section, self.mesh, on_step
    )


def accuracies(
  features: Mapping[str, Features],
  num_classes: int,
  section: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  on_step: OnBatch = lambda: None,
) -> dict[str, float]:
  """Returns `accuracy` and `train_accuracy` of a fit.

  If a strength was selected, also returns `l2` and `selection_accuracy`.

  Args:
    features: 'train', 'test' and, if there are several strengths, 'selection'.
    num_classes: K.
    section: l2 and max_steps of `config.linear_probe`. The strength that is
      best on the selection split is used.
    mesh: see `fit`.
    on_step: see `fit`.
  """
  train, chosen, selected = features['train'], 0, {}
  given = train.features, train.labels, num_classes, section.l2, mesh
  fitted = list(fit(*given, section.max_steps, on_step))
  if len(fitted) > 1:
    found = [one.accuracy(features['selection']) for one in fitted]
    chosen = frozen.best(section.l2, found, 'linear probe')
    strength = float(section.l2[chosen])
    selected = {'l2': strength, 'selection_accuracy': found[chosen]}
  return {
    'accuracy': fitted[chosen].accuracy(features['test']),
    'train_accuracy': fitted[chosen].accuracy(train),
    **selected,
  }


def fit(
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  l2: Sequence[float],
  mesh: jax.sharding.Mesh,
  max_steps: int,
  on_step: OnBatch = lambda: None,
) -> Iterator[frozen.Linear]:
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
    on_step: called after every step.

  Raises:
    ValueError: a feature is not finite.
  """
  frozen.check_finite(features)
  mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
  standardised = np.subtract(features, mean, dtype=np.float32)
  # `std` would hold all rows in float64, twice.
  variance = np.einsum(
    'nd,nd->d', standardised, standardised, dtype=np.float64
  ) / len(features)
  scale = np.sqrt(variance).astype(np.float32) + np.float32(fewshot.EPSILON)
  standardised /= scale
  rows = _put(standardised, labels, num_classes, mesh)
  start, step = _compiled(mesh)
  zeros = np.zeros((features.shape[1] + 1, num_classes), np.float32)
  for strength in l2:
    carry, loss = start(zeros), math.inf
    for count in range(1, max_steps + 1):
      *carry, value = step(*carry, *rows, float(strength))
      on_step()
      if count % _STEPS == 0:
        before, loss = loss, float(value)
        if before - loss < _IMPROVEMENT * abs(loss):
          break
    else:
      logging.warning(
        'The logistic regression with l2=%g stopped after %d steps, before it'
        ' converged: raise max_steps.',
        *(strength, max_steps),
      )
    weights = np.asarray(carry[0])
    yield frozen.Linear(mean, scale, weights[:-1], weights[-1])


def _put(features, labels, num_classes: int, mesh: jax.sharding.Mesh):
  """Puts blocks of standardised rows and labels on the devices.

  Returns:
    float32 [S, R, D], and int32 [S, R], -1 for rows that do not count.
  """
  devices = mesh.shape['data'] * mesh.shape['fsdp']
  per_device = -(-len(features) // devices)
  blocks = -(-per_device // max(1, _LOGITS // num_classes))
  size = devices * -(-per_device // blocks)  # R
  placed = NamedSharding(mesh, P(None, sharding.BATCH))

  def put(rows, padding):
    shape = (blocks, size, *rows.shape[1:])
    missing = np.full((blocks * size - len(rows), *shape[2:]), padding)
    rows = np.concatenate([rows, missing.astype(rows.dtype)]).reshape(shape)
    return jax.make_array_from_callback(shape, placed, rows.__getitem__)

  return put(features, 0), put(np.asarray(labels, np.int32), -1)


def _loss(weights, x, labels, l2: jax.Array) -> jax.Array:
  """Returns the loss of [D + 1, K] over blocks of rows [S, R, D]; see `fit`."""

  # Without the checkpoint, the gradient would keep the logits of all rows.
  @jax.checkpoint
  def add(total, block):
    x, labels = block
    logits = weights[-1] + jnp.matmul(
      x, weights[:-1], precision=jax.lax.Precision.HIGHEST
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(
      logits, jnp.maximum(labels, 0)
    )
    return total + jnp.sum(jnp.where(labels >= 0, losses, 0.0)), None

  total, _ = jax.lax.scan(add, 0.0, (x, labels))
  penalty = 0.5 * l2 * jnp.sum(weights[:-1] ** 2)
  return total / jnp.sum(labels >= 0) + penalty


@functools.lru_cache(16)
def _compiled(mesh: jax.sharding.Mesh):
  """Returns the jitted start, and the jitted step."""
  # Compiles faster than the default search, and the loss is convex.
  optimizer = optax.lbfgs(
    linesearch=optax.scale_by_backtracking_linesearch(
      max_backtracking_steps=20, decrease_factor=0.5, store_grad=True
    )
  )

  def start(weights):
    return weights, optimizer.init(weights)

  def step(weights, state, x, labels, l2):
    loss = functools.partial(_loss, x=x, labels=labels, l2=l2)
    value, grad = optax.value_and_grad_from_state(loss)(weights, state=state)
    updates, state = optimizer.update(
      grad, state, weights, value=value, grad=grad, value_fn=loss
    )
    # The search keeps the value of its last point.
    value = optax.tree_utils.tree_get(state, 'value')
    return optax.apply_updates(weights, updates), state, value

  # The weights are on all devices; only the rows are split.
  everywhere = NamedSharding(mesh, P())
  return (
    jax.jit(start, out_shardings=everywhere),
    jax.jit(step, out_shardings=everywhere),
  )
