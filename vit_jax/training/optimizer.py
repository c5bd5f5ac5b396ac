"""Optimizers, built from optax.

They are built from a section of a config, whose keys are arguments of optax,
see `config.optimizers`:

    optimizer = dict(name='adamw', b1=0.9, weight_decay=0.1, ...)
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from vit_jax.config.optimizers import OPTIMIZERS
from vit_jax.training.schedule import Schedule

# Which of the parameters, as a tree of booleans; None for all.
Mask = Callable[[Any], Any] | None


def build_optimizer(
  config: Mapping[str, Any], schedule: Schedule
) -> optax.GradientTransformation:
  """Builds the optimizer of the config's section, clipping included.

  `clip_norm` clips the gradient's global norm before anything else; 0 is off.
  AdamW and Lion are optax's, with decoupled weight decay, which is multiplied
  by the learning rate. The weight decays in Table 3 of the paper are of this
  kind. AugReg (section 3.3) says the same of its 0.1 and 0.03, at peak learning
  rates of 1e-3.
  """
  values = dict(config)
  name, clip_norm = values.pop('name'), values.pop('clip_norm')
  mask = _decay_mask(values.pop('weight_decay_params'))
  if name in BUILDERS:
    optimizer = BUILDERS[name](schedule, mask, **values)
  else:
    function = OPTIMIZERS[name]
    masks = (p for p in inspect.signature(function).parameters if 'mask' in p)
    optimizer = function(schedule, **values, **dict.fromkeys(masks, mask))
  if not clip_norm:
    return optimizer
  return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


def _decay_mask(which: str) -> Mask:
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


# The following functions take a schedule, the mask of parameters that decay,
# and the keys of their section. Their chains are flat, because checkpoints
# store the state of each transformation by its place in the chain.


def sgd(
  schedule: Schedule,
  mask: Mask,
  *,
  weight_decay: float,
  momentum: float | None,
  nesterov: bool,
  accumulator_dtype: str,
) -> optax.GradientTransformation:
  """SGD with momentum; weight decay is part of the gradient.

  m <- momentum * m + (g + weight_decay * p);  p <- p - lr_t * m

  BiT's weight decay of 1e-4 is of this classical, coupled kind (Table 7). The
  paper's fine-tuning uses no weight decay.
  """
  trace = optax.identity()
  if momentum is not None:
    trace = optax.trace(momentum, nesterov, accumulator_dtype)
  return optax.chain(
    optax.add_decayed_weights(weight_decay, mask),
    trace,
    optax.scale_by_learning_rate(schedule),
  )


def lamb(
  schedule: Schedule, mask: Mask, *, weight_decay: float, **adam: float
) -> optax.GradientTransformation:
  """LAMB (arXiv:1904.00962), as in NVIDIA's apex and in timm.

  u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p
  p <- p - lr_t * |p| / |u| * u

  Norms are those of single arrays, and of single blocks of `scan`. The ratio is
  1 if a norm is 0, and for parameters without weight decay.

  Differs from optax.lamb: that one also scales parameters without weight decay.
  Differs from apex and timm: `clip_norm` is 0 by default, theirs is 1; and
  query, key and value have ratios of their own, as they are arrays of their own
  here.
  """
  ratio = _by_block(optax.scale_by_trust_ratio())
  return optax.chain(
    optax.scale_by_adam(**adam),
    optax.add_decayed_weights(weight_decay, mask),
    _masked(ratio, mask) if weight_decay else optax.identity(),
    optax.scale_by_learning_rate(schedule),
  )


def lars(
  schedule: Schedule,
  mask: Mask,
  *,
  weight_decay: float,
  momentum: float,
  nesterov: bool,
  **trust: float,
) -> optax.GradientTransformation:
  """LARS (arXiv:1708.03888), as in the code of MoCo v3 and MAE.

  u = g + weight_decay * p
  m <- momentum * m + trust_coefficient * |p| / (|u| + eps) * u
  p <- p - lr_t * m

  The ratio is as in `lamb`, but does not need weight decay; with
  weight_decay_params='kernels', other parameters have none.

  Differs from optax.lars: that one has the learning rate inside the momentum,
  so that a rate acts on later steps, too.
  """
  return optax.chain(
    optax.add_decayed_weights(weight_decay, mask),
    _masked(_by_block(optax.scale_by_trust_ratio(**trust)), mask),
    optax.trace(momentum, nesterov),
    optax.scale_by_learning_rate(schedule),
  )


def adafactor(
  schedule: Schedule,
  mask: Mask,
  *,
  multiply_by_parameter_scale: bool,
  clipping_threshold: float,
  momentum: float | None,
  dtype_momentum: str,
  weight_decay_rate: float | None,
  decay_offset: int,
  eps: float,
  **factored: Any,
) -> optax.GradientTransformation:
  """Adafactor (arXiv:1804.04235) as in "Scaling Vision Transformers".

  That is arXiv:2106.04560 and big_vision's optax.py, whose settings are
  min_dim_size_to_factor=32, multiply_by_parameter_scale=False,
  clipping_threshold=0, momentum=0.9 and dtype_momentum='bfloat16'.

  Differs from optax.adafactor: the average of squares decays by at most 0.999;
  momentum is that of updates without the learning rate; and weight decay is
  multiplied by the learning rate, as that of all optimizers here.
  Differs from big_vision: it multiplies weight decay by the schedule relative
  to its peak, so that ours is theirs divided by the peak.
  """

  def decay(step, exponent):
    return jnp.minimum(0.999, 1.0 - (step + 1.0) ** -exponent)

  parts = [
    optax.scale_by_factored_rms(
      step_offset=decay_offset, epsilon=eps, decay_rate_fn=decay, **factored
    )
  ]
  if clipping_threshold:
    parts.append(_by_block(optax.clip_by_block_rms(clipping_threshold)))
  if multiply_by_parameter_scale:
    parts.append(_by_block(optax.scale_by_param_block_rms()))
  if momentum is not None:
    parts.append(optax.ema(momentum, False, dtype_momentum))
  return optax.chain(
    *parts,
    optax.add_decayed_weights(weight_decay_rate or 0.0, mask),
    optax.scale_by_learning_rate(schedule),
  )


def muon(
  schedule: Schedule,
  mask: Mask,
  *,
  adam_b1: float,
  adam_b2: float,
  adam_eps_root: float,
  adam_weight_decay: float,
  **values: Any,
) -> optax.GradientTransformation:
  """Muon for the kernels of Transformer blocks, AdamW for all other parameters.

  The kernels of query, key and value [D, H, K] are matrices [D, H * K] to Muon,
  that of `out` [H, K, D] is one [H * K, D], and each block of `scan` is by
  itself. AdamW has embeddings, positions, heads, norms and biases.

  Differs from optax.contrib.muon: `weight_decay_params` is about AdamW's decay,
  too.

  Raises:
    ValueError: no parameter that trains is such a kernel.
  """

  def dimensions(path):
    name = '/'.join(entry.key for entry in path)
    axes = (a for pattern, *a in _MATRICES if re.search(pattern, name))
    return next((optax.contrib.MuonDimensionNumbers(*a) for a in axes), None)

  def labels(params):
    found = jax.tree_util.tree_map_with_path(
      lambda path, _: 'muon' if dimensions(path) else 'adam', params
    )
    if 'muon' not in jax.tree.leaves(found):
      raise ValueError(
        "optimizer.name='muon' is for the kernels of Transformer blocks, none"
        " of which trains here: use optimizer.name='adamw'."
      )
    return found

  shared = {key: values[key] for key in ('eps', 'mu_dtype', 'nesterov')}
  adam = dict(b1=adam_b1, b2=adam_b2, eps_root=adam_eps_root, **shared)
  return optax.partition(
    {
      'muon': optax.contrib.muon(
        schedule,
        muon_weight_dimension_numbers=lambda params: (
          jax.tree_util.tree_map_with_path(lambda p, _: dimensions(p), params)
        ),
        **values,
      ),
      'adam': optax.adamw(
        schedule, weight_decay=adam_weight_decay, mask=mask, **adam
      ),
    },
    labels,
  )


# The ends of matrices' names, and the dimensions of their inputs and outputs.
_ATTENTION = r'MultiHeadDotProductAttention_\d+'
_MATRICES = (
  (rf'{_ATTENTION}/(query|key|value)/kernel$', -3, (-2, -1)),
  (rf'{_ATTENTION}/out/kernel$', (-3, -2), -1),
  (r'MlpBlock_\d+/\w+/kernel$', -2, -1),
)
# `optimizer.name` -> what to build it with, if not optax's function.
BUILDERS = {
  'adafactor': adafactor,
  'lamb': lamb,
  'lars': lars,
  'muon': muon,
  'sgd': sgd,
}


def _masked(
  transformation: optax.GradientTransformation, mask: Mask
) -> optax.GradientTransformation:
  return optax.masked(transformation, mask) if mask else transformation


def _by_block(
  transformation: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Applies a transformation to each array by itself, without any state.

  The blocks that `scan` stacks in an array are arrays of their own.
  """

  def of_array(update, param):
    return transformation.update(update, optax.EmptyState(), param)[0]

  def of_parameter(path, update, param):
    stacked = 'encoderblock' in [entry.key for entry in path]
    return (jax.vmap(of_array) if stacked else of_array)(update, param)

  return optax.stateless(
    lambda updates, params: jax.tree_util.tree_map_with_path(
      of_parameter, updates, params
    )
  )
