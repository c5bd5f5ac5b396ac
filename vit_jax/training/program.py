"""What a config computes: model, training state and step, without any data.

The training loop runs this program. `vit_jax.plan` compiles the same program
for devices that need not be present, so that a plan is about what really runs.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from vit_jax import losses, models, sharding
from vit_jax.config import platforms
from vit_jax.losses import distillation
from vit_jax.models import attention, lora
from vit_jax.runtime import jax_internals
from vit_jax.training import gradients
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib
from vit_jax.training import tuning as tuning_lib


class Program:
  """The pieces of a run that follow from its complete config and its devices.

  Attributes:
    config: complete, see `config.complete`.
    layout: the mesh, and how the state is split over it.
    multi_label: whether the data's labels are sequences, even of one.
    objective: what a step minimises.
    model: its model: that of the section `model`, or another made from it.
    schedule: the learning rate.
    optimizer: see `optimizer.build_optimizer`.
    tuning: which parameters train.
    manual: whether each device works on its own rows, see `gradients`.
    params_key: raw key of the initial parameters. The functions that make them
      take it as an argument. As a constant, every seed would compile again.
    dropout_key: see `step.make_train_step`, of which it is a constant.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    layout: sharding.Layout,
    *,
    multi_label: bool = False,
  ):
    """Builds the program, without compiling it.

    Args:
      config: see above, also for the others.
      layout: see above.
      multi_label: see above.

    Raises:
      ValueError: a value in the sections model, schedule, tuning or lora is
        wrong, or the batch or model does not fit the layout.
    """
    self.config, self.layout, self.multi_label = config, layout, multi_label
    options = config.model.to_dict()
    self.objective = losses.build_objective(
      config,
      models.build(
        options.pop('name'), num_classes=config.num_classes, **options
      ),
      layout,
    )
    model = self.model = self.objective.model
    params_key, self.dropout_key = step_lib.root_keys(
      config.seed, config.dropout_rng
    )
    self.params_key = np.asarray(jax.random.key_data(params_key))
    self.schedule = schedule_lib.build_schedule(
      config.schedule, config.total_steps
    )
    self.tuning, scale = build_tuning(config, model, self.params_key)
    self.optimizer = optimizer_lib.build_optimizer(
      config.optimizer, self.schedule
    )
    if scale:
      self.optimizer = optax.chain(self.optimizer, scale)
    self.manual = layout.is_manual(
      gradients.has_global_dropout(model, self.dropout_key)
    )
    self._check()

  def _check(self) -> None:
    """Raises ValueError if the batch or model does not fit the devices."""
    config, model, mesh = self.config, self.model, self.layout.mesh
    sharding.check_batch_size(
      'data.batch_size',
      config.data.batch_size,
      mesh,
      config.accumulation_steps,
    )
    if hasattr(model, 'attention_implementation'):
      attention.check(
        model.attention_implementation,
        mesh.devices.flat[0].platform,
        jnp.dtype(model.dtype).name,
        model.width // model.heads,
      )
    self.layout.check(self.shapes.params)
    if hasattr(self.objective.teacher, 'heads'):
      self.layout.check(self.teacher[0])

  # ---- The state -------------------------------------------------------------

  def init_params(self, names: Sequence[str] | None = None) -> Any:
    """Returns initial parameters, split over the devices as in the layout.

    Args:
      names: the parameters to make, such as `head/kernel`; None for all.
    """

    def make(key):
      return _chosen(fresh_params(self.config, self.model, key), names)

    shapes = _chosen(self.shapes.params, names)
    return self._run_once(make, self.layout.params(shapes))

  def init_state(self, params: Any = None) -> step_lib.TrainState:
    """Returns the state before the first step, split as in the layout.

    Args:
      params: trained parameters, on the devices, which are used up; None makes
        initial ones.
    """
    shardings = self.layout.state(self.shapes)
    if params is None:
      return self._run_once(self._fresh_state, shardings)
    return jax.jit(self._state_of, out_shardings=shardings, donate_argnums=0)(
      params
    )

  def _run_once(self, make: Callable[[jax.Array], Any], shardings: Any) -> Any:
    if self.layout.mesh.local_devices[0].platform != 'cpu':
      return jax.jit(make, out_shardings=shardings)(self.params_key)
    # On a CPU, one program for all weights takes several times as long to
    # compile: its compiler does not see that many of them are made alike.
    made = jax_internals.run_op_by_op(make, self.params_key)
    if jax.process_count() == 1:
      return jax.device_put(made, shardings)
    return sharding.put_tree(made, shardings)

  def _fresh_state(self, key: jax.Array) -> step_lib.TrainState:
    return self._state_of(fresh_params(self.config, self.model, key))

  def _state_of(self, params: Any) -> step_lib.TrainState:
    return step_lib.init_state(
      params,
      self.optimizer,
      polyak=self.config.polyak.decay > 0,
      tuning=self.tuning,
    )

  def eval_params(self, params: Any, ema_params: Any) -> Any:
    """Returns the parameters to evaluate: plain parameters of the model.

    These are the averaged ones, if there is an average, with the frozen ones
    and with low-rank additions in the kernels.

    Args:
      params: all parameters of a state.
      ema_params: its average; {} for none.
    """
    if self.tuning.trained is None:
      return ema_params or params
    params = tuning_lib.overlaid(params, ema_params)
    return self._merged(params) if lora.FOLDER in params else params

  def _merged(self, params: Any) -> Any:
    """Merges low-rank additions; other parameters are not copied."""
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    own = {n: x for n, x in flat.items() if not n.startswith(f'{lora.FOLDER}/')}
    parts = {
      name: x
      for name, x in flat.items()
      if name not in own or name in self.tuning.adapted
    }
    parts = flax.traverse_util.unflatten_dict(parts, sep='/')
    shardings = self.layout.params(jax.eval_shape(lora.merged, parts))
    kernels = jax.jit(lora.merged, out_shardings=shardings)(parts)
    own = flax.traverse_util.unflatten_dict(own, sep='/')
    return tuning_lib.overlaid(own, kernels)

  # ---- The step --------------------------------------------------------------

  @functools.cached_property
  def train_step(self) -> jax.stages.Wrapped:
    """The jitted `(state, batch) -> (state, metrics)`.

    The state is donated: the caller's old state is gone after the call. With a
    teacher, its parameters are a third argument.
    """
    shardings = self.layout.state(self.shapes)
    batch = sharding.batch_sharding(self.layout.mesh)
    return jax.jit(
      step_lib.make_train_step(self),
      in_shardings=(shardings, batch, *map(self.layout.params, self.teacher)),
      out_shardings=(shardings, self.layout.whole),
      donate_argnums=0,
      compiler_options=platforms.compiler_options(self.layout.mesh) or None,
    )

  def compile(self) -> futures.Future[jax.stages.Compiled]:
    """Begins to compile the training step, in another thread."""

    def compile_():
      return self.train_step.lower(*self.arguments).compile()

    thread = futures.ThreadPoolExecutor(1, 'compilation')
    future = thread.submit(compile_)
    thread.shutdown(wait=False)
    return future

  @functools.cached_property
  def shapes(self) -> step_lib.TrainState:
    """Shapes and dtypes of the state."""
    return jax.eval_shape(self._fresh_state, self.params_key)

  @functools.cached_property
  def abstract_state(self) -> step_lib.TrainState:
    """Shapes, dtypes and shardings of the state."""
    return _abstract(self.shapes, self.layout.state(self.shapes))

  @functools.cached_property
  def teacher(self) -> tuple[Any, ...]:
    """Shapes, dtypes and shardings of a teacher's parameters; () without one.

    A step takes them, but they are no part of the state, which is saved.
    """
    model, config = self.objective.teacher, self.config
    if model is None:
      return ()
    shape = (*distillation.image_size(config), config.channels)
    shapes = jax.eval_shape(
      lambda: step_lib.init_params(model, jax.random.key(0), shape)
    )
    return (_abstract(shapes, self.layout.params(shapes)),)

  @property
  def arguments(self) -> tuple[Any, ...]:
    """Shapes, dtypes and shardings of the arguments of `train_step`."""
    return self.abstract_state, self.abstract_batch, *self.teacher

  @property
  def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a global batch.

    These must be those of `data.pipeline`'s batches. In training, `mask` is
    always True, and no objective reads it.
    """
    config = self.config
    rows = (config.data.batch_size,)
    several = config.data.max_labels > 1
    labels = (config.data.max_labels,) if several or self.multi_label else ()
    arrays = {
      'image': ((*rows, *config.image_size, config.channels), jnp.uint8),
      'label': (rows + labels, jnp.int32),
      'mask': (rows, jnp.bool_),
      'unreadable': (rows, jnp.bool_),
    }
    if several:
      arrays['truncated'] = (rows, jnp.bool_)
    sharding_ = sharding.batch_sharding(self.layout.mesh)
    return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding_)
      for name, (shape, dtype) in arrays.items()
    }


def _abstract(shapes: Any, shardings: Any) -> Any:
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    shardings,
  )


def _chosen(params: Any, names: Sequence[str] | None) -> Any:
  """Returns the parameters with these names; None for all."""
  if names is None:
    return params
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return flax.traverse_util.unflatten_dict(
    {name: flat[name] for name in names}, sep='/'
  )


def fresh_params(
  config: ml_collections.ConfigDict, model: nn.Module, key: jax.Array
) -> Any:
  """Returns initial parameters, with low-rank additions if `lora` has a rank.

  Args:
    config: complete.
    model: the config's model.
    key: raw key, see `Program`.
  """
  key = jax.random.wrap_key_data(key)
  params = step_lib.init_params(
    model, key, (*config.image_size, config.channels)
  )
  additions = config.lora.to_dict()
  if not additions['rank']:
    return params
  return params | {lora.FOLDER: lora.init(key, params, **additions)}


def build_tuning(
  config: ml_collections.ConfigDict, model: nn.Module, key: np.ndarray
) -> tuple[tuning_lib.Tuning, optax.GradientTransformation | None]:
  """Returns what trains, and what the updates are multiplied by, if anything.

  Raises:
    ValueError: a value in the sections tuning or lora does not fit the model.
  """
  section = config.tuning
  decay = section.layer_decay
  if not (section.freeze or section.train or config.lora.rank or decay != 1):
    return tuning_lib.Tuning(), None
  shapes = jax.eval_shape(functools.partial(fresh_params, config, model), key)
  scale = None if decay == 1 else tuning_lib.scale_by_layer(decay, shapes)
  tuning = tuning_lib.build(section, shapes)
  new = config.init.new_head or not config.init.checkpoint
  frozen = tuning.split(shapes)[1]
  if new and any('kernel' in frozen.get(h, ()) for h in ('head', 'head_dist')):
    raise ValueError(
      f'tuning.freeze={section.freeze!r}, tuning.train={section.train!r}'
      ' freezes the new head, whose kernel is zero, so that nothing would be'
      ' learned: let the head train, or keep that of the weights with'
      ' init.new_head=False.'
    )
  return tuning, scale
