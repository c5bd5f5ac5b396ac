"""Writes work directories from which runs can start."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.interop import inference, weights
from vit_jax.workdir import files


def save_run(
  workdir: epath.Path,
  params: Any,
  model: nn.Module,
  *,
  image_size: tuple[int, int],
  class_names: Sequence[str] = (),
  preprocessing: str = '',
  decoding: Mapping[str, Any] | None = None,
  loss: str = '',
) -> None:
  """Writes a work directory with a checkpoint of step 0 and a config.

  `init.checkpoint` can start a new run from it, but training cannot resume it.

  Args:
    workdir: created if it does not exist; its checkpoints are replaced.
    params: the model's parameters, a tree of arrays.
    model: from `models.build`.
    image_size: (height, width) that the position embeddings are for.
    class_names: one for each logit, written to `class_names.txt`.
    preprocessing: operations of the evaluation.
    decoding: see `interop.Weights`.
    loss: see `interop.Weights`.

  Raises:
    ValueError: the number of class names is not that of the classes.
  """
  weights.check_class_names(class_names, model.num_classes)
  name, overrides = inference.describe(model)
  config = config_lib.default()
  config.unlock()
  config.image_size = tuple(image_size)
  config.channels = inference.channels(inference.flatten(params))
  config.num_classes = model.num_classes
  with config.model.ignore_type():  # Overrides have lists in place of tuples.
    config.model.update({'name': name, **overrides})
  if loss:
    config.loss.name = loss
  for key, name in (('exif_orientation', 'upright'), ('jpeg_dct', 'jpeg_dct')):
    if decoding and name in decoding:
      config.data[key] = decoding[name]
  if preprocessing:
    config.evals.converted = config_lib.evaluation('', preprocess=preprocessing)
  workdir.mkdir(parents=True, exist_ok=True)
  checkpoints = workdir / checkpoint_lib.FOLDER
  if checkpoints.exists():
    checkpoints.rmtree()
  config_lib.save(config, workdir)
  files.write_class_names(workdir, class_names)
  manager = checkpoint_lib.Checkpoints(workdir, keep=1, keep_every=0)
  manager.save(0, {'params': params})
  manager.close()
