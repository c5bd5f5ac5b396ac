"""The model that is looked into, and the images it looks at."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax import interop
from vit_jax.data import listing, ops
from vit_jax.interop import inference, sources, weight_files

# Overrides that make a model another one than its name says.
_SIZES = {
  *('width', 'depth', 'heads', 'mlp_dim', 'patch_size'),
  *('resnet_blocks', 'resnet_width', 'blocks', 'width_factor'),
}


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model with its weights.

  Attributes:
    origin: where the weights come from, for messages.
    name: of the model, for titles.
    model: from `models.build`.
    params: its parameters.
    image_size: (height, width) in pixels that it sees.
    preprocess: from an image's bytes to uint8 [height, width, channels].
    notes: remarks on the weights.
  """

  origin: str
  name: str
  model: nn.Module
  params: Any
  image_size: tuple[int, int]
  preprocess: ops.Preprocess
  notes: tuple[str, ...] = ()


def load(
  checkpoint: str,
  *,
  config: Mapping[str, Any] | None = None,
  image_size: tuple[int, int] | None = None,
  preprocess: str | None = None,
  max_inflation: float = interop.MAX_INFLATION,
  max_pixels: int = ops.MAX_PIXELS,
) -> Subject:
  """Reads weights of any kind and finds out what they are of.

  The head does not matter: files without one are read, too, and a config's
  number of classes need not be theirs.

  Args:
    checkpoint: see `interop.read`.
    config: of a run, whose model, image size and first evaluation's
      preprocessing count; None: what the checkpoint says, or what follows from
      its arrays.
    image_size: (height, width) in pixels, in place of theirs; position
      embeddings are resized to it.
    preprocess: operations, see `ops.parse`, in place of theirs; if nobody has
      any, images are resized.
    max_inflation: see `interop.read`.
    max_pixels: of an image, see `ops.parse`.

  Raises:
    ValueError: there are no weights, or they are not the model's.
  """
  if config is not None and 'model' not in config:
    raise ValueError(
      f'--config is of stages, expected one of a run; it has {list(config)}.'
    )

  def understood(weights):
    return _model_and_size(weights, config, image_size)

  # Before all of a file is read: do the shapes fit?
  weights = interop.read(
    checkpoint,
    check=lambda w: interop.check_weights(w, *understood(w), new_head=True),
    max_inflation=max_inflation,
  )
  model, size = understood(weights)
  params, report = interop.fit_weights(weights, model, size, new_head=True)
  operations = _first(
    preprocess,
    _preprocess_of(config) if config else weights.preprocessing,
    'resize',
  )
  return Subject(
    origin=weights.origin,
    name=title(model),
    model=model,
    params=params,
    image_size=size,
    preprocess=ops.parse(
      operations,
      image_size=size,
      channels=inference.channels(weights.params),
      upright=True,  # They are files that somebody names.
      max_pixels=max_pixels,
    ),
    notes=report.notes,
  )


def title(model: nn.Module) -> str:
  """The name of a model, or of that which it is a modification of."""
  name, overrides = inference.describe(model)
  return f'modified {name}' if _SIZES & overrides.keys() else name


def _model_and_size(
  weights: interop.Weights,
  config: Mapping[str, Any] | None,
  image_size: tuple[int, int] | None,
) -> tuple[nn.Module, tuple[int, int]]:
  """The model, and the image size it is to see."""
  if config is not None:
    model = sources.model_of_run({**config, 'num_classes': 1})
    return model, image_size or tuple(config['image_size'])
  if weights.model is not None and weights.image_size is not None:
    return weights.model, image_size or weights.image_size
  arrays = {'head/bias': np.zeros(1), **weights.params}
  inferred, size = interop.infer_model(arrays, weights.image_size)
  return weights.model or inferred, image_size or size


def _preprocess_of(config: Mapping[str, Any]) -> str:
  evals = [e.get('preprocess', '') for e in config['evals'].values()]
  return _first(*evals, '')


def _first(*choices: str | None) -> str:
  """The first that is something, or else the last."""
  return next(filter(None, choices), choices[-1])


def find_images(words: Sequence[str]) -> list[epath.Path]:
  """Lists image files.

  Args:
    words: paths of files, of any name, and of folders, which are searched to
      any depth for names with `listing.SUFFIXES`; hidden ones are left out.

  Returns:
    Absolute paths, each once, those of a folder sorted.

  Raises:
    ValueError: a path does not exist, or a folder has no images.
  """
  found = []
  for word in words:
    path = weight_files.absolute(word)
    if not path.is_dir():
      found.append(weight_files.existing_file(path))
      continue
    inside = sorted(_walk(path))
    if not inside:
      raise ValueError(
        f'{path} holds no images; their suffixes are'
        f' {", ".join(listing.SUFFIXES)}.'
      )
    found += inside
  return list(dict.fromkeys(found))


def _walk(path: epath.Path) -> Iterator[epath.Path]:
  """Yields the images below a folder."""
  for name, is_folder in listing.entries(os.fspath(path)):
    if is_folder:
      yield from _walk(path / name)
    elif name.lower().endswith(listing.SUFFIXES):
      yield path / name


def choose(
  paths: Sequence[epath.Path], count: int, seed: int
) -> list[epath.Path]:
  """Returns `count` paths in random order, or all if there are fewer."""
  order = np.random.default_rng(seed).permutation(len(paths))
  return [paths[i] for i in order[:count]]


def read_images(
  paths: Sequence[epath.Path], preprocess: ops.Preprocess
) -> np.ndarray:
  """Reads images as evaluations do.

  Returns:
    uint8 [N, height, width, channels].

  Raises:
    ValueError: a file is no image, or does not come out as the model's size.
  """
  rng = np.random.default_rng(0)
  images = []
  for path in paths:
    try:
      images.append(
        preprocess(weight_files.existing_file(path).read_bytes(), rng)
      )
    except ValueError as error:
      raise ValueError(f'{path}: {error}') from error
  return np.stack(images)
