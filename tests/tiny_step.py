"""Puts the parts of a training step together, as `training.program` does."""

import types

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import losses, sharding
from vit_jax.training import gradients
from vit_jax.training import step as step_lib
from vit_jax.training.tuning import Tuning

ALL = Tuning()  # All parameters train.


def one_device(**options) -> sharding.Layout:
  """Returns the layout of the first device."""
  return sharding.Layout(sharding.make_mesh(1), **options)


def batch(rows, size=(8, 8), channels=1, classes=2, *, rng=None):
  """Returns random images and labels; `rng` draws them, by default with seed 0.

  Args:
    rows: the number of images.
    size: their height and width.
    channels: their channels.
    classes: the number of classes.
    rng: a generator.
  """
  rng = rng or np.random.default_rng(0)
  return {
    'image': rng.integers(0, 256, (rows, *size, channels), dtype=np.uint8),
    'label': rng.integers(0, classes, rows, dtype=np.int32),
    'mask': np.ones(rows, bool),
    'unreadable': np.zeros(rows, bool),
  }


def loss_and_grad(
  objective, layout, dropout_key, *, model=None, steps=1, tuning=ALL
):
  """Returns `gradients.make_loss_and_grad`'s function.

  Args:
    objective: see there.
    layout: see there.
    dropout_key: a key of the generator of the masks.
    model: with dropout; None draws no masks.
    steps: of accumulation.
    tuning: see there.
  """
  return gradients.make_loss_and_grad(
    objective,
    layout,
    manual=layout.is_manual(gradients.has_global_dropout(model, dropout_key)),
    accumulation_steps=steps,
    tuning=tuning,
  )


def train_step(
  objective,
  optimizer,
  schedule,
  dropout_key,
  layout=None,
  state=None,
  *,
  model=None,
  accumulation_steps=1,
  tuning=ALL,
  changes=None,
):
  """Returns a jitted training step; with a state's shapes, split as `layout`.

  Args:
    objective: see `loss_and_grad`, also for `model` and `tuning`.
    optimizer: see `program.Program`, also for the next two.
    schedule: see there.
    dropout_key: see there.
    layout: None for one device.
    state: the state or its shapes; None leaves the sharding to the arrays.
    model: see above.
    accumulation_steps: micro-batches per step.
    tuning: see above.
    changes: keys of the config and their values.
  """
  layout = layout or one_device()
  config = config_lib.default()
  config.accumulation_steps = accumulation_steps
  config.update_from_flattened_dict(changes or {})
  drawn = gradients.has_global_dropout(model, dropout_key)
  step = step_lib.make_train_step(
    types.SimpleNamespace(
      config=config,
      objective=losses.Objective(model, objective),
      layout=layout,
      manual=layout.is_manual(drawn),
      optimizer=optimizer,
      schedule=schedule,
      dropout_key=dropout_key,
      tuning=tuning,
    )
  )
  if state is None:
    return jax.jit(step)
  shardings = layout.state(state)
  return jax.jit(
    step,
    in_shardings=(shardings, sharding.batch_sharding(layout.mesh)),
    out_shardings=(shardings, layout.whole),
    donate_argnums=0,
  )
