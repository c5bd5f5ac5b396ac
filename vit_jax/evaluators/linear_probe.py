"""A linear probe: a logistic regression on frozen features of all images.

Unlike few-shot classification, it sees the whole training split. All rows take
part in each step of L-BFGS, so that a fit has no learning rate and no order of
batches, and is the same on any number of devices. The devices share the rows; a
row's logits exist only while its block is computed.

Axes: `N` rows, `D` features, `K` classes, `S` blocks of `R` rows.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
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
# The fit ends if no derivative is larger, or if `_STEPS` steps improve the loss
# by a smaller part than float32 can tell reliably.
_GRADIENT = 1e-5
_IMPROVEMENT = 1e-6
# Steps between two calls of `on_step`.
_STEPS = 10
# Images whose features the host converts at a time, to bound the memory.
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class LinearProbe(frozen.Classifier):
  """Logistic regression of all training images.

  Attributes:
    l2: strengths of the regularisation, see `fit`. The best one on the
      selection split is used.
    max_steps: the most steps of the optimisation.
  """

  l2: tuple[float, ...]
  max_steps: int

  def __post_init__(self):
    frozen.check_numbers('l2', self.l2)
    frozen.check_numbers('max_steps', [self.max_steps], 1)

  def measure(
    self,
    features: Mapping[str, Features],
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_step: OnBatch = lambda: None,
  ) -> dict[str, float]:
    """Returns `accuracy` and `train_accuracy`.

    If a strength was selected, also returns `l2` and `selection_accuracy`. For
    the arguments and errors see `frozen.Classifier`.
    """
    pairs = {use: (x.features, x.labels) for use, x in features.items()}
    fitted = list(
      fit(
        *pairs['train'],
        num_classes,
        self.l2,
        mesh,
        max_steps=self.max_steps,
        on_step=on_step,
      )
    )
    chosen, selected = fitted[0], {}
    if len(fitted) > 1:
      found = [frozen.accuracy(one, *pairs['selection']) for one in fitted]
      best = frozen.best(self.l2, found, 'linear probe')
      chosen = fitted[best]
      selected = {'l2': chosen.l2, 'selection_accuracy': found[best]}
    return {
      'accuracy': frozen.accuracy(chosen, *pairs['test']),
      'train_accuracy': frozen.accuracy(chosen, *pairs['train']),
      **selected,
    }

  def summary(self, values: Mapping[str, float]) -> str:
    """Returns the accuracy in a few words."""
    return f'linear probe {100 * values["accuracy"]:.2f}%'


@dataclasses.dataclass(frozen=True)
class Logistic:
  """A fitted linear classifier.

  Attributes:
    mean: float32 [D], the mean of the training images' features.
    scale: float32 [D], their standard deviation + `fewshot.EPSILON`.
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
) -> Iterator[Logistic]:
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
  frozen.check_finite(features)
  mean = features.mean(axis=0, dtype=np.float64)
  # `std` would hold all rows in float64, twice.
  variance = sum(
    np.sum((features[start : start + _CHUNK] - mean) ** 2, axis=0)
    for start in range(0, len(features), _CHUNK)
  ) / len(features)
  mean = mean.astype(np.float32)
  scale = np.sqrt(variance).astype(np.float32) + np.float32(fewshot.EPSILON)
  standardised = np.subtract(features, mean, dtype=np.float32)
  standardised /= scale
  rows = _put(standardised, labels, num_classes, mesh)
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
    yield Logistic(mean, scale, found['kernel'], found['bias'], strength)


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
