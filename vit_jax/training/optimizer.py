"""Optimizers and learning-rate schedules, built from optax.

They are built from a config section each, whose keys `config.sections` lists:

    optimizer = dict(name='sgd', momentum=0.9, weight_decay=0.0, ...)
    schedule = dict(name='cosine', peak=0.03, warmup_steps=500, end=0.0)
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

Schedule = Callable[[jax.Array], jax.Array]


def build_schedule(config: Mapping[str, Any], total_steps: int) -> Schedule:
  """Builds `schedule(step) -> learning rate` from the config's section.

  At step t, it is min(1, t / warmup_steps) times a rate that begins as `peak`.
  With the progress p from the end of the warm-up, 0, to that of the run, 1:

    linear     end + (peak - end) * (1 - p)
    cosine     end + (peak - end) * (1 + cos(pi * p)) / 2
    constant   peak
    staircase  peak * factor ** n after n of the `boundaries`, which are
               fractions of the run; this is BiT's schedule.

  Raises:
    ValueError: the warm-up is not shorter than the run.
  """
  peak, warmup = config['peak'], config['warmup_steps']
  if not 0 <= warmup < max(total_steps, 1):
    raise ValueError(
      f'schedule.warmup_steps={warmup} must be at least 0 and below'
      f' total_steps={total_steps}; shorten one or lengthen the other.'
    )

  def progress(t):
    return jnp.clip((t - warmup) / max(total_steps - warmup, 1), 0.0, 1.0)

  def linear(t):
    end = config['end']
    return end + (peak - end) * (1 - progress(t))

  def cosine(t):
    end = config['end']
    return end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress(t)))

  def constant(t):
    return jnp.full_like(t, peak)

  def staircase(t):
    edges = [b * total_steps for b in config['boundaries']]
    drops = (t >= jnp.asarray(edges, jnp.float32)).sum()
    return peak * jnp.asarray(config['factor'], jnp.float32) ** drops

  rates = linear, cosine, constant, staircase
  rate = {function.__name__: function for function in rates}[config['name']]

  def schedule(step):
    t = jnp.asarray(step, jnp.float32)
    return rate(t) * jnp.minimum(1.0, t / warmup) if warmup else rate(t)

  return schedule


def adam(
  schedule: Schedule,
  *,
  beta1: float,
  beta2: float,
  eps: float,
  weight_decay: float,
  weight_decay_params: str,
  moment_dtype: str,
) -> optax.GradientTransformation:
  """Adam with decoupled weight decay, scaled by the current learning rate.

  p <- p - lr_t * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)

  The weight decays in Table 3 of the paper are of this kind. AugReg (section
  3.3) says the same of its 0.1 and 0.03, at peak learning rates of 1e-3.
  """
  return optax.adamw(
    schedule,
    b1=beta1,
    b2=beta2,
    eps=eps,
    mu_dtype=jnp.dtype(moment_dtype),
    weight_decay=weight_decay,
    mask=_decay_mask(weight_decay_params),
  )


def sgd(
  schedule: Schedule,
  *,
  momentum: float,
  weight_decay: float,
  weight_decay_params: str,
  moment_dtype: str,
) -> optax.GradientTransformation:
  """SGD with (non-Nesterov) momentum; weight decay is part of the gradient.

  m <- momentum * m + (g + weight_decay * p);  p <- p - lr_t * m

  BiT's weight decay of 1e-4 is of this classical, coupled kind (Table 7). The
  paper's fine-tuning uses no weight decay. The chain is flat, without
  `optax.sgd` inside, because checkpoints store the state of each transformation
  by its place in the chain.
  """
  return optax.chain(
    optax.add_decayed_weights(
      weight_decay, mask=_decay_mask(weight_decay_params)
    ),
    optax.trace(decay=momentum, accumulator_dtype=jnp.dtype(moment_dtype)),
    optax.scale_by_learning_rate(schedule),
  )


# The config's `optimizer.name` -> `(schedule, **options) -> optimizer`.
OPTIMIZERS = {'adam': adam, 'sgd': sgd}


def build_optimizer(
  config: Mapping[str, Any], schedule: Schedule
) -> optax.GradientTransformation:
  """Builds the optimizer of the config's section, clipping included.

  `clip_norm` clips the gradient's global norm before anything else; 0 is off.
  """
  values = dict(config)
  build = OPTIMIZERS[values.pop('name')]
  clip_norm = values.pop('clip_norm')
  optimizer = build(schedule, **values)
  if not clip_norm:
    return optimizer
  return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


def _decay_mask(which: str):
  """Returns optax's mask of the parameters that decay; None for all.

  The original Adam decays every parameter that it is given. We do not know
  whether the paper's runs excluded any parameters. Later work usually decays
  only the kernels, so that is an option.
  """
  if which == 'all':
    return None
  # The last but one key of a low-rank addition is that of its kernel.
  return lambda params: jax.tree_util.tree_map_with_path(
    lambda path, _: 'kernel' in [entry.key for entry in path[-2:]], params
  )
