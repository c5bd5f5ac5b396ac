"""One training step: `(state, batch) -> (state, metrics)`, a pure function.

The gradient is in `gradients.py`, and `program.py` puts the parts together.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from vit_jax.losses import distillation
from vit_jax.losses.objective import Metrics
from vit_jax.models import variants
from vit_jax.training import gradients
from vit_jax.training.tuning import Tuning, overlaid

# Of a step's metrics, a log line has the sums of the counts, the last of these
# sizes, and the means of all others.
COUNTS = ('unreadable', 'truncated', 'skipped')
SIZES = ('learning_rate', 'grad_norm', 'update_norm', 'param_norm')
# The metrics that must be finite for a step to count.
GUARDED = ('loss', 'grad_norm', 'update_norm', 'param_norm')


@flax.struct.dataclass
class TrainState:
  """Everything that a run carries from step to step.

  The data position is not part of it: batch k is a function of (seed, k).

  Attributes:
    step: int32 [], number of steps made, skipped ones included.
    params: the model's float32 parameters, and low-rank additions if any.
    opt_state: the optimizer's state, for the parameters that train.
    ema_params: Polyak average of the parameters that train, or {} when
      averaging is off.
  """

  step: jax.Array
  params: Any
  opt_state: Any
  ema_params: Any


def root_keys(seed: int, dropout_rng: str) -> tuple[jax.Array, jax.Array]:
  """Returns the keys of parameter initialisation and of dropout."""
  params_key = jax.random.fold_in(jax.random.key(seed), 0)
  jax_name = {'threefry': 'threefry2x32', 'rbg': 'rbg'}[dropout_rng]
  dropout_key = jax.random.key(seed, impl=jax_name)
  return params_key, jax.random.fold_in(dropout_key, 1)


def init_params(
  model: nn.Module, key: jax.Array, image_shape: tuple[int, int, int]
) -> Any:
  """Returns fresh parameters; `image_shape` is (height, width, channels).

  Raises:
    ValueError: the model is a user's, and lacks what every model has.
  """
  images = jnp.zeros((1, *image_shape), jnp.float32)
  result, variables = model.init_with_output(key, images, train=False)
  variants.check_call(model, result, variables)
  return variables['params']


def init_state(
  params: Any,
  optimizer: optax.GradientTransformation,
  *,
  polyak: bool,
  tuning: Tuning = Tuning(),  # noqa: B008 (It is immutable.)
) -> TrainState:
  """Returns the state before the first step; the average equals `params`."""
  trained, _ = tuning.split(params)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=optimizer.init(trained),
    # A copy: a buffer can't be donated twice to the training step.
    ema_params=jax.tree.map(jnp.copy, trained) if polyak else {},
  )


def _follows_the_run(x: Any) -> bool:
  """Whether a part of the state advances in a skipped step, too.

  The schedule has to end with the run. Other counters belong to what they
  count: with Adam's ahead of its moments, later updates would be too small.
  """
  return isinstance(x, optax.ScaleByScheduleState)


def _sharpness_aware(
  loss_and_grad: gradients.LossAndGrad, program: Any
) -> Callable[..., Any]:
  """Returns `f(gradient, state, batch, key) -> gradient` of SAM or GSAM.

  It takes the gradient g at the weights w, and returns g_s, that at
  w + rho * g / |g| (SAM, arXiv:2010.01412). With `sam.alpha`, it subtracts
  alpha times the part of g that is orthogonal to g_s (GSAM, arXiv:2203.08065).
  The distance rho is `sam.rho` at the schedule's peak and `sam.rho_end` at its
  end, and is linear in the learning rate.

  Differs from big_vision's proj/gsam: g is that of the whole batch, so that the
  result is the same on any mesh; theirs is that of a device's part of it.
  """
  section, schedule = program.config.sam, program.config.schedule
  end, tuning = schedule.get('end', 0.0), program.tuning
  falls = section.rho_end != -1 and schedule.peak != end

  def sharper(grads, state, batch, key):
    rho = section.rho
    if falls:
      rate = program.schedule(state.step)
      share = (rate - end) / (schedule.peak - end)
      rho = section.rho_end + (rho - section.rho_end) * share
    scale = rho / (optax.tree.norm(grads) + 1e-12)
    trained, frozen = tuning.split(state.params)
    trained = jax.tree.map(lambda p, g: p + scale * g, trained, grads)
    _, found = loss_and_grad(overlaid(frozen, trained), batch, key)
    if alpha := section.alpha:
      along = optax.tree.vdot(grads, found) / optax.tree.vdot(found, found)
      found = jax.tree.map(
        lambda s, g: s - alpha * (g - along * s), found, grads
      )
    return found

  return sharper


def make_train_step(
  program: Any,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Returns the training step, not yet jitted.

  Metrics, each float32 []: `loss` and those of the objective, such as
  `accuracy` (top-1 on the training batch; in masked patch prediction, that of
  the patches' colour classes); `learning_rate`, `grad_norm` (before clipping),
  `update_norm` and `param_norm` (global L2 norms); `unreadable` (rows whose
  image a substitute replaced), `truncated` (rows with more labels than are
  kept; only for data with several labels per image), `skipped` (1 if the step
  changed nothing but its number and the schedule's).

  Step k uses the key `fold_in(dropout_key, k)`, into which `gradients` folds
  the number of the micro-batch, and that of the device where each device draws
  its own masks. With `polyak.decay` d, the average of the parameters becomes
  d * average + (1 - d) * parameters (section 4.1 of the paper: 0.9999); before
  `polyak.start_step`, it equals the parameters. With `guard.nonfinite='skip'`,
  a step whose loss, gradient or result is not finite updates nothing; all
  devices see the same numbers, so all of them skip it. With `sam.rho`, loss and
  metrics are those at the weights, and `grad_norm` is that of the gradient of
  `_sharpness_aware`, with the same dropout masks.

  With a teacher, the step takes its parameters as a third argument, which are
  neither changed nor returned. With `guard.replay_every`, there is one metric
  more, `gradients.WORD_SUMS`, which `twice.Twice` takes out.

  Args:
    program: the `program.Program` whose step it is.
  """
  config, tuning = program.config, program.tuning
  optimizer, schedule = program.optimizer, program.schedule
  _, mean_loss, prepare_batch, teacher = program.objective
  loss_and_grad = gradients.make_loss_and_grad(
    mean_loss,
    program.layout,
    manual=program.manual,
    accumulation_steps=config.accumulation_steps,
    tuning=tuning,
    word_sums=config.guard.replay_every > 0,
  )
  sharper = _sharpness_aware(loss_and_grad, program)

  def train_step(state, batch, teacher_params=None):
    key = jax.random.fold_in(program.dropout_key, state.step)
    if prepare_batch is not None:
      batch = prepare_batch(batch, state.step)
    if teacher is not None:
      batch = distillation.add_logits(
        teacher, teacher_params, batch, program.layout, config
      )
    (loss, metrics), grads = loss_and_grad(state.params, batch, key)
    if config.sam.rho:
      grads = sharper(grads, state, batch, key)
    trained, frozen = tuning.split(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, trained)
    trained = optax.apply_updates(trained, updates)
    params = overlaid(frozen, trained)

    ema_params = state.ema_params
    if polyak := config.polyak.decay:
      started = state.step >= config.polyak.start_step
      decay = jnp.where(started, polyak, 0.0)
      ema_params = jax.tree.map(
        lambda ema, p: decay * ema + (1 - decay) * p, ema_params, trained
      )

    metrics = metrics | {
      'loss': loss,
      'learning_rate': schedule(state.step),
      'grad_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'param_norm': optax.tree.norm(params),
      'skipped': jnp.zeros((), jnp.float32),
    }
    metrics |= {
      key: batch[key].sum().astype(jnp.float32)
      for key in ('unreadable', 'truncated')
      if key in batch
    }
    new = TrainState(state.step + 1, params, opt_state, ema_params)
    if config.guard.nonfinite == 'skip':
      finite = jnp.isfinite(jnp.stack([metrics[k] for k in GUARDED])).all()
      new = jax.tree.map(
        lambda n, o: n if _follows_the_run(n) else jnp.where(finite, n, o),
        new,
        state.replace(step=new.step),
        is_leaf=_follows_the_run,
      )
      metrics['skipped'] = 1.0 - finite.astype(jnp.float32)
    return new, metrics

  return train_step
