"""The frozen teacher of a run that distils: its model and its weights.

Its parameters are an argument of the step, split over the devices like those of
the student. They are no part of the state: nothing of them is saved, and each
launch reads them again. The record of the data has their digest.
"""

import hashlib
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import interop, sharding
from vit_jax.interop import catalog
from vit_jax.losses import distillation
from vit_jax.runtime import distributed
from vit_jax.training import warm_start
from vit_jax.training.opening import Run
from vit_jax.workdir import data_record


def with_model(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> ml_collections.ConfigDict:
  """Sets `distill.model`, if it is open, to what the teacher's weights say.

  Args:
    config: not changed. A released name tells its model without the weights.
    workdir: the work directory of the run that starts.

  Raises:
    ValueError: there are no weights, or they do not tell their model.
  """
  config = config.copy_and_resolve_references()
  section = config.distill
  if section.teacher == '' or section.model:
    return config
  if section.teacher is None:
    raise ValueError('distill.teacher is not set.')
  saved = (config_lib.load(workdir) or {}).get('distill', {})
  if saved.get('teacher') == section.teacher:  # It may be gone by now.
    section.model = saved['model']
  elif section.teacher in catalog.names():
    section.model = catalog.entry(section.teacher).model
  else:
    path = warm_start.resolve_path(section.teacher, workdir)
    found = warm_start.model_of(path)
    name = found.pop('name')
    options = ','.join(f'{key}={value!r}' for key, value in found.items())
    section.model = f'{name}:{options}'.rstrip(':')
  return config


def load(run: Run, saved_step: int, *, accept: bool = False) -> tuple[Any, ...]:
  """Reads the teacher's weights, and puts them on the devices.

  Position embeddings are resized to the images, as in fine-tuning.

  Args:
    run: built. Its digests get that of the weights.
    saved_step: the newest in the work directory; 0: it has learned nothing.
    accept: whether the run in there may have had another teacher.

  Returns:
    The parameters, to pass on to the step; () if the run has no teacher.

  Raises:
    ValueError: there are no weights; they have other classes or channels than
      the data, or do not fit `distill.model`; or they are not those of another
      process, or of earlier launches.
  """
  config, program = run.config, run.program
  if not program.teacher:
    return ()
  weights = interop.read(
    warm_start.resolve_path(config.distill.teacher, run.workdir)
  )
  classes = np.size(weights.params.get('head/bias', ()))
  found = f'{classes} classes and {weights.channels} channels'
  needed = f'{config.num_classes} classes and {config.channels} channels'
  if found != needed:
    raise ValueError(
      f'distill.teacher={config.distill.teacher!r} is for {found}, but the data'
      f' have {needed}: a teacher must know the classes of the data.'
    )
  size = distillation.image_size(config)
  params, report = interop.fit_weights(weights, program.objective.teacher, size)
  logging.info('Teacher: weights from %s: %s.', weights.origin, report)
  digest = hashlib.sha256()
  for name, array in sorted(weights.params.items()):
    digest.update(f'{name}{array.shape}{array.dtype}'.encode())
    digest.update(np.ascontiguousarray(array))
  record = {'teacher': {'weights': digest.hexdigest()}}
  distributed.check_same(record)
  if saved_step:
    data_record.check_same(run.workdir, record, accept=accept)
  run.digests |= record
  shardings = jax.tree.map(lambda x: x.sharding, program.teacher[0])
  return (sharding.put_tree(params, shardings),)
