"""Reads weights of any kind, and loads them into a model."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.interop import (
  arrays,
  catalog,
  families,
  fitting,
  hub,
  huggingface,
  inference,
  layouts,
  weight_files,
)
from vit_jax.interop.fitting import Report
from vit_jax.interop.weight_files import ImageSize, Weights, pair
from vit_jax.models import position
from vit_jax.workdir import files

_PICKLES = ('.bin', '.pt', '.pth', '.pkl', '.ckpt')
# What a description of another type or without a key raises.
_WRONG = (AttributeError, KeyError, TypeError, ValueError)


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
  given = os.fspath(path)
  if hub.is_address(given):
    return hub.download(given)
  found = files.absolute(path)
  if given in catalog.names() and not found.exists():
    return catalog.find(given)
  if found.suffix in ('.npz', '.safetensors') and not found.is_dir():
    return weight_files.existing_file(found)
  if found.suffix in _PICKLES:
    raise ValueError(weight_files.pickle_refused(found))
  if huggingface.is_folder(found):
    return found
  if not found.exists() and (names := catalog.similar(given)):
    raise ValueError(
      f'No checkpoint at {found}: the path does not exist. Released weights'
      f' with similar names are {", ".join(names)}.'
    )
  return checkpoint_lib.find(path)


def read(path: epath.PathLike) -> Weights:
  """Reads weights of any kind.

  Args:
    path: a released or similar `.npz` file; a Hugging Face folder; a run's
      directory, or one of its checkpoints; a name of `catalog.names()`; or
      any of the first two on the Hugging Face Hub, `hf://OWNER/NAME`.

  Raises:
    ValueError: see `locate` and the readers of each kind.
  """
  found = locate(path)
  if found.suffix == '.npz':
    weights = _read_npz(found, os.fspath(path))
  elif found.is_dir() and not huggingface.is_folder(found):
    weights = _read_run(found)
  else:
    weights = huggingface.read(found)
  if hub.is_address(path):
    origin = hub.pinned(os.fspath(path), found)
    weights = dataclasses.replace(weights, origin=origin)
  return weights


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
  weights = read(path)
  params, report = fit_weights(weights, model, image_size, new_head=new_head)
  log = logging.warning if report.notes else logging.info
  log('Weights from %s: %s.', weights.origin, report)
  return params, report


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
  return load(folder, model, image_size, new_head=new_head)[0]


def fit_weights(
  weights: Weights,
  model: nn.Module,
  image_size: ImageSize | None,
  *,
  new_head: bool = False,
) -> tuple[Any, Report]:
  """Does what `load` does, for weights that are already read; logs nothing."""
  size = image_size and pair(image_size)
  _, size = model_and_size(weights, model, size)
  params = fitting.initial(model, size, weights.channels, head=new_head)
  grid = position.stored_grid(model, size)
  return fitting.fit(weights, params, model, grid, new_head=new_head)


def model_and_size(
  weights: Weights,
  model: nn.Module | None = None,
  image_size: tuple[int, int] | None = None,
) -> tuple[nn.Module, tuple[int, int]]:
  """Returns a model and image size: given, described, or else inferred.

  Args:
    weights: as read.
    model: the model; None: that of the weights.
    image_size: (height, width) in pixels; None: that of the weights.

  Raises:
    ValueError: the arrays do not show what is unknown.
  """
  model, image_size = model or weights.model, image_size or weights.image_size
  if model is None or image_size is None:
    try:
      found, image_size = inference.infer_model(weights.params, image_size)
    except ValueError as error:
      raise ValueError(f'{weights.origin}: {error}') from error
    model = model or found
  return model, image_size


# ---- Each kind ---------------------------------------------------------------


def _read_npz(path: epath.Path, name: str) -> Weights:
  """Reads a `.npz` file, and the `.json` beside it.

  Args:
    path: the file.
    name: its name in the catalogue, if it has one.
  """
  stored = arrays.read_npz(path)
  params = families.from_released(stored)
  _, dropped = families.parameters(stored)
  weights = Weights(
    origin=str(path),
    params=params,
    channels=inference.channels(params),
    dropped=dropped,
  )
  beside = weight_files.beside(path)
  if beside.exists():
    content = weight_files.read_json(beside)
    try:
      classes, names = content['num_classes'], content['class_names']
      weight_files.check_class_names(names, classes)
      overrides = content['overrides'] | {'num_classes': classes}
      size = content.get('prepared_size')
      return dataclasses.replace(
        weights,
        model=models.build(content['model'], **overrides),
        image_size=content['image_size'] and pair(content['image_size']),
        class_names=tuple(names),
        preprocessing=content['preprocessing'],
        decoding=content.get('decoding', {}),
        prepared_size=pair(size) if size else None,
        loss=content.get('loss', ''),
      )
    except _WRONG as error:
      raise ValueError(
        f'{beside} does not describe weights: {error}. Remove it, or write'
        f' {path.name} again with interop.save_npz.'
      ) from error
  if name not in catalog.names():
    return weights
  hidden, entry = params.get('pre_logits/bias'), catalog.entry(name)
  return dataclasses.replace(
    weights,
    model=models.build(
      entry.model,
      num_classes=entry.num_classes,
      representation_size=None if hidden is None else hidden.size,
    ),
    image_size=pair(entry.image_size),
    class_names=entry.class_names(),
  )


def _read_run(path: epath.Path) -> Weights:
  """Reads one checkpoint of a run, and the run's config."""
  tree, _ = checkpoint_lib.read_params(path)
  params = layouts.unstack(flax.traverse_util.flatten_dict(tree, sep='/'))
  weights = Weights(
    origin=str(path), params=params, channels=inference.channels(params)
  )
  workdir = checkpoint_lib.workdir_of(path)
  saved = config_lib.load(workdir)
  if saved is None:
    return weights
  try:
    return dataclasses.replace(
      weights,
      model=_model_of_run(saved),
      image_size=pair(saved['image_size']),
      channels=saved['channels'],
      class_names=files.read_class_names(workdir),
      preprocessing=_preprocessing(saved),
      decoding={
        'upright': saved['data']['exif_orientation'] is not False,
        'jpeg_dct': saved['data']['jpeg_dct'],
      },
      loss=saved.get('loss', {}).get('name', ''),
    )
  except _WRONG as error:
    raise ValueError(
      f'{workdir / config_lib.FILE} describes no model: {error}'
    ) from error


def _preprocessing(config: Mapping[str, Any]) -> str:
  """Returns the operations of a run's own test, or of any evaluation."""
  evals = sorted(
    config.get('evals', {}).values(),
    key=lambda e: (e.get('kind') != 'classification', bool(e.get('dataset'))),
  )
  return evals[0].get('preprocess', '') if evals else ''


def _model_of_run(config: Mapping[str, Any]) -> nn.Module:
  """Builds the model that a run's `config.json` describes."""
  section = dict(config['model'])
  # How the run computed does not matter for its weights.
  section |= {'dtype': None, 'scan': None, 'remat': None}
  section.pop('quantization', None)  # This key is gone; it changed no weights.
  section |= {'attention_implementation': None}  # It may be for one platform.
  return models.build(
    section.pop('name'), num_classes=config['num_classes'], **section
  )
