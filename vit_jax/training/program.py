"""What a config computes: model, training state and step, without any data.

The training loop runs this program. `vit_jax.plan` compiles the same program
for devices that need not be present, so that a plan is about what really runs.
"""

import dataclasses
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

from vit_jax import config as config_lib
from vit_jax import losses, masked_patch, models, sharding
from vit_jax.config import platforms
from vit_jax.models import attention, lora
from vit_jax.runtime import compilation, jax_internals
from vit_jax.training import gradients, mixup
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib
from vit_jax.training import tuning as tuning_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """The pieces of a run that follow from its resolved config and its devices.

  Attributes:
    config: resolved, see `config.resolve`.
    model: see `models.build`.
    objective: returns the mean loss of a batch and its metrics, see
      `step.mean_loss` and `masked_patch.mean_loss`.
    prepare: is applied to a batch at the start of a step; None for nothing.
    schedule: the learning rate.
    optimizer: see `optimizer.build_optimizer`.
    tuning: which parameters train.
    layout: the mesh, and what is split over it.
    params_key: raw key of the initial parameters. Compiled functions take it as
      an argument. As a constant, it would make every seed compile again.
    dropout_key: see `step.make_train_step`.
    multi_label: whether the data's labels are sequences, even of one.
  """

  config: ml_collections.ConfigDict
  model: nn.Module
  objective: gradients.Objective
  prepare: Callable[..., gradients.Batch] | None
  schedule: optimizer_lib.Schedule
  optimizer: optax.GradientTransformation
  tuning: tuning_lib.Tuning
  layout: sharding.Layout
  params_key: np.ndarray
  dropout_key: jax.Array
  multi_label: bool = False

  def init_params(self, names: Sequence[str] | None = None) -> Any:
    """Returns initial parameters, split over the devices as in the layout.

    Args:
      names: the parameters to make, such as `head/kernel`; None for all.
    """

    def make(key):
      return _chosen(self._fresh_params(key), names)

    shapes = _chosen(self.shapes.params, names)
    return self._run_once(make, self.layout.params(shapes))

  def init_state(self) -> step_lib.TrainState:
    """Returns the first state of a run from scratch, split as in the layout."""
    return self._run_once(self._fresh_state, self.layout.state(self.shapes))

  def _run_once(self, make: Callable[[jax.Array], Any], shardings: Any) -> Any:
    if self.layout.mesh.local_devices[0].platform != 'cpu':
      return jax.jit(make, out_shardings=shardings)(self.params_key)
    # On a CPU, one program for all weights takes several times as long to
    # compile: its compiler does not see that many of them are made alike.
    made = jax_internals.run_op_by_op(make, self.params_key)
    if jax.process_count() == 1:
      return jax.device_put(made, shardings)
    return sharding.put_tree(made, shardings)

  def first_state(self, params: Any) -> step_lib.TrainState:
    """Returns the state before the first step; jit it with shardings."""
    return step_lib.init_state(
      params,
      self.optimizer,
      polyak=self.config.polyak.decay > 0,
      tuning=self.tuning,
    )

  def evaluated(self, state: step_lib.TrainState) -> step_lib.TrainState:
    """Returns a state whose `eval_params` are plain parameters of the model.

    These are the averaged ones, if there is an average, with the frozen ones
    and with low-rank additions in the kernels.
    """
    if self.tuning.trained is None:
      return state
    params = tuning_lib.overlaid(state.params, state.ema_params)
    if lora.FOLDER in params:
      params = self._merged(params)
    return step_lib.TrainState(state.step, params, (), {})

  def _merged(self, params: Any) -> Any:
    """Merges low-rank additions; other parameters are not copied."""
    names = self.tuning.adapted
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    plain, parts = {}, {}
    for name, x in flat.items():
      added = name.startswith(f'{lora.FOLDER}/')
      (parts if added or name in names else plain)[name] = x
    parts = flax.traverse_util.unflatten_dict(parts, sep='/')
    shardings = self.layout.params(jax.eval_shape(lora.merged, parts))
    kernels = jax.jit(lora.merged, out_shardings=shardings)(parts)
    plain = flax.traverse_util.unflatten_dict(plain, sep='/')
    return tuning_lib.overlaid(plain, kernels)

  def _fresh_params(self, key: jax.Array) -> Any:
    return fresh_params(self.config, self.model, key)

  def _fresh_state(self, key: jax.Array) -> step_lib.TrainState:
    return self.first_state(self._fresh_params(key))

  @functools.cached_property
  def shapes(self) -> step_lib.TrainState:
    """Shapes and dtypes of the state."""
    return jax.eval_shape(self._fresh_state, self.params_key)

  @functools.cached_property
  def abstract_state(self) -> step_lib.TrainState:
    """Shapes, dtypes and shardings of the state."""
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      self.shapes,
      self.layout.state(self.shapes),
    )

  @property
  def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a global batch (see `data.pipeline`)."""
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

  @functools.cached_property
  def train_step(self):
    """The jitted `(state, batch) -> (state, metrics)`; donates `state`."""
    config = self.config
    return step_lib.jit_train_step(
      step_lib.make_train_step(
        self.model,
        self.objective,
        self.optimizer,
        self.schedule,
        self.dropout_key,
        accumulation_steps=config.accumulation_steps,
        polyak_decay=config.polyak.decay,
        polyak_start_step=config.polyak.start_step,
        prepare=self.prepare,
        skip_nonfinite=config.guard.nonfinite == 'skip',
        layout=self.layout,
        tuning=self.tuning,
      ),
      self.layout,
      self.shapes,
      self.compiler_options,
    )

  @functools.cached_property
  def compiled_train_step(self) -> futures.Future[jax.stages.Compiled]:
    """The compiled training step; compiles in the background from now on."""

    def compile_():
      lowered = self.train_step.lower(self.abstract_state, self.abstract_batch)
      return lowered.compile()

    return compilation.in_background(compile_)

  @property
  def compiler_options(self) -> dict[str, str | int]:
    """Options for the compiler of the training step."""
    return platforms.compiler_options(self.layout.mesh)


def fresh_params(
  config: ml_collections.ConfigDict, model: nn.Module, key: jax.Array
) -> Any:
  """Returns initial parameters, with low-rank additions if `lora` has a rank.

  Args:
    config: resolved.
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
  if new and 'kernel' in tuning.split(shapes)[1].get('head', ()):
    raise ValueError(
      f'tuning.freeze={section.freeze!r}, tuning.train={section.train!r}'
      ' freezes the new head, whose kernel is zero, so that nothing would be'
      ' learned: let the head train, or keep that of the weights with'
      ' init.new_head=False.'
    )
  return tuning, scale


def _chosen(params: Any, names: Sequence[str] | None) -> Any:
  """Returns the parameters with these names; None for all."""
  if names is None:
    return params
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return flax.traverse_util.unflatten_dict(
    {name: flat[name] for name in names}, sep='/'
  )


def build(
  config: ml_collections.ConfigDict,
  layout: sharding.Layout,
  *,
  multi_label: bool = False,
) -> Program:
  """Builds the program of a resolved config, without compiling it.

  Args:
    config: resolved.
    layout: the mesh, and how the state is split over it.
    multi_label: see `Program`.

  Raises:
    ValueError: a value in the sections model, loss, schedule, optimizer, tuning
      or lora is wrong, or the batch or model does not fit the layout.
  """
  model_config = config.model.to_dict()
  model = models.build(
    model_config.pop('name'), num_classes=config.num_classes, **model_config
  )
  if config.loss.name == config_lib.MASKED_PATCH:
    task = masked_patch.build(config, model)
    model, objective = task.model, masked_patch.mean_loss(task)
    prepare = masked_patch.each_step(config.seed, layout)
  else:
    objective = step_lib.mean_loss(model, losses.build(**config.loss))
    prepare = mixup.each_step(
      config.seed,
      config.mixup_alpha,
      layout,
      cutmix_alpha=config.cutmix_alpha,
      cutmix_share=config.cutmix_share,
    )
  schedule = optimizer_lib.build_schedule(config.schedule, config.total_steps)
  params_key, dropout_key = step_lib.root_keys(config.seed, config.dropout_rng)
  params_key = np.asarray(jax.random.key_data(params_key))
  tuning, scale = build_tuning(config, model, params_key)
  optimizer = optimizer_lib.build_optimizer(config.optimizer, schedule)
  if scale:
    optimizer = optax.chain(optimizer, scale)
  sharding.check_batch_size(
    'data.batch_size',
    config.data.batch_size,
    layout.mesh,
    config.accumulation_steps,
  )
  if hasattr(model, 'attention_implementation'):
    device = layout.mesh.devices.flat[0]
    attention.check(
      model.attention_implementation,
      device.platform,
      jnp.dtype(model.dtype).name,
      model.width // model.heads,
    )
  # Called only for its ValueError.
  layout.is_manual(gradients.has_global_masks(model, dropout_key))
  program = Program(
    config=config,
    model=model,
    objective=objective,
    prepare=prepare,
    schedule=schedule,
    optimizer=optimizer,
    tuning=tuning,
    layout=layout,
    params_key=params_key,
    dropout_key=dropout_key,
    multi_label=multi_label,
  )
  layout.check(program.shapes.params)
  return program
