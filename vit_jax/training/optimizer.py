"""Optimizers and learning-rate schedules, built from optax.

A config section holds the name of a function and all its arguments. So every
key has an effect, and a wrong key is an error that lists the right ones:

    optimizer = dict(name='sgd', momentum=0.9, weight_decay=0.0, ...)
    schedule = dict(name='cosine', peak=0.03, warmup_steps=500, end=0.0)
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

Schedule = Callable[[jax.Array], jax.Array]


# Schedules -------------------------------------------------------------------


def _with_warmup(
  decay: Callable[[jax.Array], jax.Array],
  warmup_steps: int,
  total_steps: int,
) -> Schedule:
  """Returns min(1, t / w) * decay(p); p is the progress after warm-up."""

  def schedule(step):
    t = jnp.asarray(step, jnp.float32)
    progress = (t - warmup_steps) / max(total_steps - warmup_steps, 1)
    rate = decay(jnp.clip(progress, 0.0, 1.0))
    return rate * jnp.minimum(1.0, t / warmup_steps) if warmup_steps else rate

  return schedule


def linear(
  *, total_steps: int, peak: float, warmup_steps: int, end: float
) -> Schedule:
  """Linear warm-up from 0, then linear decay from `peak` to `end`."""
  return _with_warmup(
    lambda p: end + (peak - end) * (1 - p), warmup_steps, total_steps
  )


def cosine(
  *, total_steps: int, peak: float, warmup_steps: int, end: float
) -> Schedule:
  """Linear warm-up from 0, then half a cosine from `peak` to `end`."""
  return _with_warmup(
    lambda p: end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * p)),
    warmup_steps,
    total_steps,
  )


def constant(*, total_steps: int, peak: float, warmup_steps: int) -> Schedule:
  """Linear warm-up from 0, then `peak`."""
  return _with_warmup(
    lambda p: jnp.full_like(p, peak), warmup_steps, total_steps
  )


def staircase(
  *,
  total_steps: int,
  peak: float,
  warmup_steps: int,
  boundaries: Sequence[float],
  factor: float,
) -> Schedule:
  """Linear warm-up from 0, then `peak` times `factor` at each boundary passed.

  This is BiT's schedule. `boundaries` are fractions of `total_steps`, so that
  they suit runs of any length.
  """
  if any(not 0 < b < 1 for b in boundaries):
    raise ValueError(
      f'schedule.boundaries={tuple(boundaries)} must be fractions of the'
      ' run, each in (0, 1).'
    )

  def schedule(step):
    t = jnp.asarray(step, jnp.float32)
    edges = jnp.asarray([b * total_steps for b in boundaries], jnp.float32)
    drops = (t >= edges).sum()
    rate = peak * jnp.asarray(factor, jnp.float32) ** drops
    return rate * jnp.minimum(1.0, t / warmup_steps) if warmup_steps else rate

  return schedule


SCHEDULES = {
  'linear': linear,
  'cosine': cosine,
  'constant': constant,
  'staircase': staircase,
}


def build_schedule(config: Mapping[str, Any], total_steps: int) -> Schedule:
  """Builds `schedule(step) -> learning rate` from the config's section.

  Raises:
    ValueError: the name is unknown, the keys are wrong, or the warm-up is not
      shorter than the run.
  """
  warmup = config['warmup_steps']
  if not 0 <= warmup < max(total_steps, 1):
    raise ValueError(
      f'schedule.warmup_steps={warmup} must be at least 0 and below'
      f' total_steps={total_steps}; shorten one or lengthen the other.'
    )
  return _call('schedule', SCHEDULES, config, total_steps=total_steps)


# Optimizers ------------------------------------------------------------------


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
    mu_dtype=_moment_dtype(moment_dtype),
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
    optax.trace(decay=momentum, accumulator_dtype=_moment_dtype(moment_dtype)),
    optax.scale_by_learning_rate(schedule),
  )


# The dtype of Adam's first moment and of SGD's momentum.
MOMENT_DTYPES = ('float32', 'bfloat16')
OPTIMIZERS = {'adam': adam, 'sgd': sgd}


def build_optimizer(
  config: Mapping[str, Any], schedule: Schedule
) -> optax.GradientTransformation:
  """Builds the optimizer of the config's section, clipping included.

  `clip_norm` clips the gradient's global norm before anything else; 0 is off.

  Raises:
    ValueError: the name is unknown, or the keys or their values are wrong.
  """
  config = dict(config)
  clip_norm = config.pop('clip_norm')
  if clip_norm < 0:
    raise ValueError(
      f'optimizer.clip_norm={clip_norm} must be positive, or 0 for none.'
    )
  optimizer = _call('optimizer', OPTIMIZERS, config, schedule)
  if not clip_norm:
    return optimizer
  return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


def _moment_dtype(name: str) -> jnp.dtype:
  if name not in MOMENT_DTYPES:
    raise ValueError(
      f'optimizer.moment_dtype={name!r} is unknown; choose one of'
      f' {list(MOMENT_DTYPES)}.'
    )
  return jnp.dtype(name)


def _decay_mask(which: str):
  """Returns optax's mask of the parameters that decay; None for all.

  The original Adam decays every parameter that it is given. We do not know
  whether the paper's runs excluded any parameters. Later work usually decays
  only the kernels, so that is an option.
  """
  if which == 'all':
    return None
  if which == 'kernels':
    # The last but one key of a low-rank addition is that of its kernel.
    return lambda params: jax.tree_util.tree_map_with_path(
      lambda path, _: 'kernel' in [entry.key for entry in path[-2:]], params
    )
  raise ValueError(
    f'optimizer.weight_decay_params={which!r} is unknown; choose one of'
    " ['all', 'kernels']."
  )


def _call(section: str, choices, config: Mapping[str, Any], *args, **kwargs):
  """Checks a config section, and calls the function that it names."""
  arguments = dict(config)
  name = arguments.pop('name')
  if name not in choices:
    raise ValueError(
      f'{section}.name={name!r} is unknown; choose one of {sorted(choices)}.'
    )
  function = choices[name]
  accepted = {
    p.name
    for p in inspect.signature(function).parameters.values()
    if p.kind is p.KEYWORD_ONLY
  } - set(kwargs)
  if set(arguments) != accepted:
    raise ValueError(
      f'{section}.name={name!r} takes {sorted(accepted)}, but the config'
      f' section has {sorted(arguments)}. In a config file, set the name'
      ' together with its keys by a function of vit_jax/config/sections.py.'
    )
  return function(*args, **arguments, **kwargs)
