"""Reads weights of any kind, and loads them into a model."""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import numpy as np
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.interop import (
  catalog,
  fitting,
  hub,
  huggingface,
  inference,
  json_files,
  npz,
  parameter_shapes,
  released,
  weight_files,
)
from vit_jax.interop.fitting import Report
from vit_jax.interop.weights import ImageSize, Weights, pair, settings_of
from vit_jax.models import position
from vit_jax.workdir import files

# The kinds of values in a run's `config.json`.
_RUN_KINDS = {
  'model': json_files.OBJECT,
  'num_classes': json_files.COUNT,
  'image_size': json_files.SIZE,
  'channels': json_files.COUNT,
  'evals': json_files.OBJECT_OF_OBJECTS,
}
_PICKLES = ('.bin', '.pt', '.pth', '.pkl', '.ckpt')


def locate(path: epath.PathLike) -> epath.Path:
  """Finds the weights of a path, or of a name of `catalog.names()`.

  Weights on the Hugging Face Hub (`hf://OWNER/NAME`) are downloaded.

  Returns:
    The absolute path of a `.npz` or `.safetensors` file, of a Hugging Face
    folder, or of one checkpoint of a run (`.../checkpoints/STEP`).

  Raises:
    ValueError: nothing is there, or it cannot be read. The message says what to
      do.
  """
  if hub.is_address(path):
    return hub.download(os.fspath(path))
  given = os.fspath(path)
  found = weight_files.absolute(path)
  if given in catalog.names() and not found.exists():
    return catalog.find(given)
  if found.suffix in ('.npz', '.safetensors') and not found.is_dir():
    return weight_files.existing_file(found)
  if found.suffix in _PICKLES:
    raise ValueError(
      f'{found} is a pickle, which is not read, because it can run code. Give'
      ' a .npz file, or a Hugging Face folder with model.safetensors.'
    )
  if huggingface.is_folder(found):
    return found
  if not found.exists():
    folders = {name.rpartition('/')[0] for name in catalog.names()}
    if given.rpartition('/')[0] in folders:
      catalog.entry(given)  # Raises, and lists similar names.
    if names := catalog.similar(given):
      raise ValueError(
        f'No checkpoint at {found}: the path does not exist. Released weights'
        f' with similar names are {", ".join(names)}.'
      )
  return checkpoint_lib.find(path)


def read(
  path: epath.PathLike,
  *,
  check: Callable[[Weights], Collection[str] | None] | None = None,
) -> Weights:
  """Reads weights of any kind.

  Args:
    path: a released or similar `.npz` file; a Hugging Face folder; a run's
      directory, or one of its checkpoints; a name of `catalog.names()`; or
      any of the first two on the Hugging Face Hub, `hf://OWNER/NAME`.
    check: called for a `.npz` file before any values are read, with weights
      whose arrays are zeros that take no memory. May raise. It may return names
      of parameters to skip, which stay zeros.

  Raises:
    ValueError: see `locate` and the readers of each kind.
  """
  if hub.is_address(path):
    address, found = os.fspath(path), locate(path)
    return dataclasses.replace(
      _read(found, '', check), origin=hub.pinned(address, found)
    )
  return _read(locate(path), os.fspath(path), check)


def _read(found: epath.Path, name: str, check) -> Weights:
  if found.suffix == '.npz':
    return npz.read(found, name, check=check)
  if found.is_dir() and not huggingface.is_folder(found):
    return _read_run(found)
  return huggingface.read(found)


def load(
  path: epath.PathLike,
  model: nn.Module,
  image_size: ImageSize | None = None,
  *,
  new_head: bool = False,
) -> tuple[Any, Report]:
  """Loads weights of any kind into a model.

  Args:
    path: see `read`.
    model: from `models.build`.
    image_size: side or (height, width) in pixels that the model will see; the
      position embeddings are resized to it (section 3.2 of the paper).
      By default the size that the weights were last used with, or else that
      of a square grid of their position embeddings.
    new_head: gives the model a new head. If False, the file's head is kept and
      must have the model's number of classes. See `fitting.fit`.

  Returns:
    The model's parameters, float32 NumPy arrays in the model's layout, and a
    report of what was done, which is also logged.

  Raises:
    ValueError: the file cannot be read, or does not fit the model. The message
      lists arrays that are missing, extra, of the wrong shape or not finite.
  """
  weights = read(
    path,
    check=lambda w: check_weights(w, model, image_size, new_head=new_head),
  )
  return _load(weights, model, image_size, new_head)


def load_npz(
  path: epath.PathLike,
  model: nn.Module,
  image_size: ImageSize | None = None,
  *,
  new_head: bool = False,
) -> Any:
  """Loads a `.npz` file. As `load`, but returns only the parameters."""
  if not os.fspath(path).endswith('.npz'):
    raise ValueError(
      f'{path} does not end with .npz: use interop.load for other weights.'
    )
  return load(path, model, image_size, new_head=new_head)[0]


def load_huggingface(
  folder: epath.PathLike,
  model: nn.Module,
  image_size: ImageSize,
  *,
  new_head: bool = False,
) -> Any:
  """Loads a Hugging Face folder. As `load`, but returns only the parameters."""
  return _load(huggingface.read(folder), model, image_size, new_head)[0]


def _load(weights, model, image_size, new_head) -> tuple[Any, Report]:
  params, report = fit_weights(weights, model, image_size, new_head=new_head)
  log = logging.warning if report.notes else logging.info
  log('Weights from %s: %s.', weights.origin, report)
  return params, report


def fit_weights(
  weights: Weights,
  model: nn.Module,
  image_size: ImageSize,
  *,
  new_head: bool = False,
) -> tuple[Any, Report]:
  """Does what `load` does, for weights that are already read; logs nothing."""
  return _fit(fitting.fit, weights, model, image_size, new_head)


def check_weights(
  weights: Weights,
  model: nn.Module,
  image_size: ImageSize,
  *,
  new_head: bool = False,
) -> tuple[str, ...]:
  """Raises the ValueError of `fit_weights`, as far as shapes show an error.

  Returns:
    The names of arrays that are left out: their values need not be read.
  """
  return _fit(fitting.match, weights, model, image_size, new_head)[1].dropped


def _fit(fit, weights, model, image_size, new_head):
  if image_size is None:
    image_size = weights.image_size or size_of_table(weights)
  size = pair(image_size)
  return fit(
    weights.params,
    parameter_shapes.initial(
      model,
      size,
      weights.channels or inference.channels(weights.params),
      head=new_head,
    ),
    old_grid=weights.grid,
    new_grid=position.grid_of(model, size),
    new_head=new_head,
    name=weights.origin,
    dropped=weights.dropped,
    notes=weights.remarks(model),
  )


def size_of_table(weights: Weights) -> tuple[int, int]:
  """Returns the image size of the position embeddings; else ValueError."""
  arrays = {'head/bias': np.zeros(1), **weights.params}
  try:
    return inference.infer_model(arrays)[1]
  except ValueError as error:
    raise ValueError(
      f'{weights.origin} does not show the image size: {error} Pass image_size.'
    ) from error


def _read_run(path: epath.Path) -> Weights:
  """Reads one checkpoint of a run, and the run's config."""
  tree, _ = checkpoint_lib.read_params(path)
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  weights = Weights(origin=str(path), params=released.unstack(flat))
  workdir = checkpoint_lib.workdir_of(path)
  saved = config_lib.load(workdir)
  if saved is None or 'image_size' not in saved or 'model' not in saved:
    return weights  # Another program wrote the config.
  json_files.check(saved, _RUN_KINDS, workdir / config_lib.FILE)
  size = pair(saved['image_size'])
  try:
    model = model_of_run(saved)
    grid = position.grid_of(model, size)
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{workdir / config_lib.FILE} describes no model: {error}'
    ) from error
  return dataclasses.replace(
    weights,
    model=model,
    image_size=size,
    channels=saved.get('channels', 0),
    grid=grid,
    class_names=files.read_class_names(workdir),
    preprocessing=_preprocessing(saved),
    decoding=_decoding(saved.get('data', {})),
    loss=_loss(saved),
    settings=settings_of(model),
  )


def _preprocessing(config: Mapping[str, Any]) -> str:
  """Returns the operations of a run's own test, or of any evaluation."""
  evals = sorted(
    config.get('evals', {}).values(),
    key=lambda e: (e.get('kind') != 'classification', bool(e.get('dataset'))),
  )
  return evals[0].get('preprocess', '') if evals else ''


def _loss(config: Mapping[str, Any]) -> str:
  """Returns the loss of a run; '' if it is the default of converted weights."""
  name = config.get('loss', {}).get('name', '')
  trained = config.get('data', {}).get('dataset')
  return name if trained or name != 'softmax' else ''


def _decoding(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns how a run's evaluations decode the user's own photographs.

  Runs that are older than these keys ignored EXIF orientation, and decoded
  accurately.
  """
  upright = section.get('exif_orientation', False)
  if upright is None and not section.get('dataset'):
    return {}  # Converted weights, of which nothing is known.
  return {
    'upright': upright is None or upright,
    'jpeg_dct': section.get('jpeg_dct', 'accurate'),
  }


def model_of_run(config: Mapping[str, Any]) -> nn.Module:
  """Builds the model that a run's `config.json` describes."""
  section = dict(config['model'])
  # How the run computed does not matter for its weights.
  section |= {'dtype': None, 'scan': None, 'remat': None}
  for line in config_lib.set_keys_that_are_gone(config):
    logging.warning('%s: the model is built without it.', line)
  section.pop('quantization', None)  # It changed no weights.
  section |= {'attention_implementation': None}  # It may be for one platform.
  return models.build(
    section.pop('name'), num_classes=config['num_classes'], **section
  )
