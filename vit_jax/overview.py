"""What is about to run, said before it does."""

import jax
import ml_collections
from absl import logging
from clu import parameter_overview
from etils import epath

from vit_jax import data, sharding
from vit_jax import step as step_lib


def write(
  workdir: epath.Path,
  config: ml_collections.ConfigDict,
  view: data.View,
  layout: sharding.Layout,
  state: step_lib.TrainState,
) -> None:
  """Logs model, data and devices; all parameters go to `parameters.txt`.

  Args:
    workdir: an existing directory.
    config: resolved.
    view: the training data.
    layout: the devices, and what is split over them.
    state: the training state, or its shapes.
  """
  params, mesh = state.params, layout.mesh
  table = layout.describe(state)
  if jax.process_index() == 0:
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params
    )
    overview = parameter_overview.get_parameter_overview(
      shapes, include_stats=False
    )
    (workdir / 'parameters.txt').write_text(f'{overview}\n\n{table}\n')
  parts = {
    name: sum(x.size for x in jax.tree.leaves(part))
    for name, part in params.items()
  }
  logging.info(
    '%s: %s parameters (%s; all in parameters.txt), images %dx%d, %s.',
    config.model.name,
    f'{sum(parts.values()):,}',
    ', '.join(f'{k} {v:,}' for k, v in parts.items()),
    *config.image_size,
    config.model.dtype,
  )
  if mesh.size > 1:
    logging.info('Split over the devices (%s):\n%s', layout, table)
  logging.info(
    '%s %s: %s images, %d classes; batch %d for %d steps (%.1f epochs) on %d'
    ' %s device(s)%s.',
    config.data.dataset,
    view.split,
    f'{len(view):,}',
    config.num_classes,
    config.data.batch_size,
    config.total_steps,
    config.total_steps * config.data.batch_size / len(view),
    mesh.size,
    mesh.devices.flat[0].platform,
    f' of {jax.process_count()} processes' if jax.process_count() > 1 else '',
  )
  if view.selection.shuffled and jax.process_index() == 0:
    counts = data.class_balance(view) if data.balance.is_cheap(view) else None
    logging.info('%s: %s', view.split, data.balance.describe(view, counts))
