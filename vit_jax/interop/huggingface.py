"""Reads Hugging Face folders: JSON files and `model.safetensors`.

Needs neither torch nor transformers. `families.HUGGINGFACE` says which models
are known, and how their names and configs map to ours. The image processor
becomes operations of `data/ops`, and its mean and deviation become part of the
patch embedding: all models here take inputs in [-1, 1].
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax import models
from vit_jax.data.ops import resizing
from vit_jax.interop import (
  arrays,
  families,
  inference,
  weight_files,
)
from vit_jax.interop.weight_files import Weights, pair
from vit_jax.workdir import files

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
PROCESSOR = 'preprocessor_config.json'
# What our own keys of the latter begin with.
OWN = 'vit_jax_'
# Fields that change no value of an image in RGB.
_NO_EFFECT = {
  *('image_processor_type', 'feature_extractor_type', 'processor_class'),
  *('do_convert_rgb', 'do_reduce_labels', 'data_format', 'input_data_format'),
  *('return_tensors', 'device', 'disable_grouping', 'default_to_square'),
}
# Of PIL.Image.Resampling.
_METHODS = {n: name for name, n in resizing.PILLOW.items() if n in range(6)}


def is_folder(path: epath.Path) -> bool:
  """Returns whether a path is a folder with Hugging Face's files of weights."""
  names = (WEIGHTS, f'{WEIGHTS}.index.json', 'pytorch_model.bin')
  return path.is_dir() and any((path / name).exists() for name in names)


def read(path: epath.PathLike) -> Weights:
  """Reads a folder, or a `.safetensors` file in one.

  Raises:
    ValueError: files are missing or damaged, the weights exist only as a
      pickle, the model is of no family in `families.HUGGINGFACE`, or images
      were prepared for it in a way that is not done here.
  """
  path = files.absolute(path)
  folder, file = path.parent, path
  if path.is_dir():
    folder, file = path, path / WEIGHTS
    if not file.exists():
      raise ValueError(
        f'{path} has no {WEIGHTS}. Weights in several files are not read, nor'
        ' is a pickle (pytorch_model.bin), because it can run code. If you'
        ' trust it and have torch, transformers.AutoModelForImageClassification'
        '.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER,'
        f" max_shard_size='100GB') writes {WEIGHTS}."
      )
  config = weight_files.read_json(folder / CONFIG)
  tensors = arrays.read_safetensors(file)
  kind = str(config.get('model_type', 'vit'))
  family = families.HUGGINGFACE.get(kind)
  if family is None or not family.knows(tensors):
    raise ValueError(
      f'{path} holds a model of type {kind!r} with arrays called'
      f' {", ".join(sorted(tensors)[:4])}, ...: this layout is not read.'
      ' Expected a folder that save_pretrained of transformers wrote, of type'
      f' {" or ".join(map(repr, families.HUGGINGFACE))}.'
    )
  try:
    model = models.build('ViT-B/16', num_classes=1, **family.options(config))
    has_head = 'head/bias' in family.read(tensors, model.heads)
    unused = family.unused + family.unused_with_head * has_head
    dropped = {name for name in tensors if family.plain(name) in unused}
    used = {k: v for k, v in tensors.items() if k not in dropped}
    params = family.read(used, model.heads)
    for name, attribute in (
      ('head', 'num_classes'),
      ('pre_logits', 'representation_size'),
    ):
      if f'{name}/bias' in params:
        model = model.clone(**{attribute: params[f'{name}/bias'].size})
    activation = config.get('pooler_act', 'tanh')
    if model.representation_size and activation != 'tanh':
      raise ValueError(f'pooler_act={activation!r}: the pooler here has tanh.')
    names = ()
    if has_head:
      names = _class_names(config.get('id2label') or {}, model.num_classes)
    weights = Weights(
      origin=str(path),
      params=params,
      model=model,
      image_size=pair(config.get('image_size', 224)),
      channels=inference.channels(params),
      class_names=names,
      dropped=tuple(sorted(dropped)),
    )
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
      f'{folder / CONFIG} describes no model of these weights: {error}'
    ) from error
  return _prepared(weights, folder, family.processor)


def _class_names(labels: Mapping[str, str], classes: int) -> tuple[str, ...]:
  """Returns a name for each class; () for placeholders or other classes."""
  indices = list(map(str, range(classes)))
  if labels.keys() != {*indices} or all(
    name == f'LABEL_{i}' for i, name in labels.items()
  ):
    return ()
  return tuple(labels[i] for i in indices)


def check_savable(model: nn.Module) -> None:
  """Raises ValueError with all reasons why transformers lacks the model."""
  if reasons := families.VIT.unlike(model):
    raise ValueError(
      "Hugging Face's ViT cannot express this model: it has"
      f' {", ".join(reasons)}. Save it as .npz instead.'
    )


# ---- Images ------------------------------------------------------------------


def _prepared(weights: Weights, folder: epath.Path, processor: str) -> Weights:
  """Adds what the file of a folder says, which need not exist.

  Args:
    weights: of the folder, with the image size that the model sees.
    folder: the folder.
    processor: the image processor if the file names none.

  Returns:
    The weights with operations of our own evaluation, or else those of the
    folder's image processor, and for inputs in [-1, 1].

  Raises:
    ValueError: the file asks for what is not done here.
  """
  path = folder / PROCESSOR
  if not path.exists():
    return weights
  # For transformers, None means its default, like a missing key.
  found = weight_files.read_json(path).items()
  content = {k: v for k, v in found if v is not None}
  kind = content.get('feature_extractor_type', processor)
  kind = content.get('image_processor_type', kind)
  kind = kind.removesuffix('Fast').replace('FeatureExtractor', 'ImageProcessor')
  try:
    described = {
      key: content.pop(OWN + key)
      for key in ('preprocessing', 'decoding', 'loss')
      if OWN + key in content
    }
    usual = families.PROCESSORS.get(kind, families.PROCESSORS[processor])
    given = usual | content
    if not given['do_rescale'] or abs(255 * given['rescale_factor'] - 1) > 1e-6:
      raise ValueError(
        f'do_rescale={given["do_rescale"]} and'
        f' rescale_factor={given["rescale_factor"]}: the range of the images is'
        ' not known. Expected true and 1/255 (0.00392156862745098)'
      )
    if 'preprocessing' not in described:
      if refused := [*_refused(given, kind)]:
        raise ValueError('; '.join(refused))
      # transformers decodes with Pillow.
      described = {'decoding': {'jpeg_dct': 'accurate'}} | described
      described['preprocessing'] = _operations(given, weights.image_size)
    weights = dataclasses.replace(weights, **described)
    if not given['do_normalize']:
      return _normalized(weights, 0.0, 1.0)
    return _normalized(weights, given['image_mean'], given['image_std'])
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is refused: {error}. Correct the file to how images were'
      ' prepared for these weights.'
    ) from error


def _refused(given: Mapping[str, Any], kind: str) -> Iterator[str]:
  """Yields the fields that no operation follows, and why."""
  if kind not in families.PROCESSORS:
    yield f'it is for {kind!r}, known are {", ".join(families.PROCESSORS)}'
  if not given['do_resize']:
    yield 'do_resize=False leaves images of any size'
  if given['resample'] not in _METHODS:
    yield f'resample={given["resample"]} is no method of Pillow'
  known = {*families.PROCESSORS['DeiTImageProcessor'], *_NO_EFFECT}
  for key, value in given.items():
    if value and key not in known and not key.startswith('_'):
      yield f'{key}={value!r:.60} is unknown'


def _operations(given: Mapping[str, Any], image_size: tuple[int, int]) -> str:
  """Returns what an image processor does, as `data/ops` reads it."""

  def text(size):  # The size of the model's images goes without saying.
    if isinstance(size, dict) and size.keys() >= {'height', 'width'}:
      size = (size['height'], size['width'])
    sides = pair(size)
    if sides == image_size:
      return ''
    return str(sides[0] if sides[0] == sides[1] else sides)

  method = f'method={_METHODS[given["resample"]]!r}'
  words = ', '.join(filter(None, (text(given['size']), method)))
  operations = f'resize({words})'
  if given['do_center_crop']:
    crop = text(given['crop_size'])
    operations += '|central_crop' + (f'({crop})' if crop else '')
  return operations


def _normalized(weights: Weights, mean: Any, std: Any) -> Weights:
  """Changes the embedding so that it takes inputs in [-1, 1].

  For our input x in [-1, 1], the folder's input is
  z = (x / 2 + 1 / 2 - mean) / std. This is linear, and the embedding has no
  padding, so the outputs stay the same.

  Args:
    weights: `embedding/kernel` is [height, width, channels, D].
    mean: subtracted from images in [0, 1]; one number, or one per channel.
    std: divides images after the subtraction; one number, or one per channel.

  Raises:
    ValueError: the number of means or deviations is not that of the channels,
      or a deviation is not above 0.
  """
  params = dict(weights.params)
  mean, std = (np.ravel(np.float64(v)) for v in (mean, std))
  kernel, bias = (params.get(f'embedding/{k}') for k in ('kernel', 'bias'))
  if {*mean, *std} == {0.5} or kernel is None or bias is None:
    return weights
  given = f'mean {mean.tolist()} and standard deviation {std.tolist()}'
  channels = kernel.shape[2]
  if {len(mean), len(std)} - {1, channels} or not (std > 0).all():
    raise ValueError(f'{given}, expected numbers for {channels} channels')
  mean, std = (np.broadcast_to(v, channels) for v in (mean, std))
  kernel, bias = kernel.astype(np.float64), bias.astype(np.float64)
  bias = bias + np.einsum('hwcd,c->d', kernel, (0.5 - mean) / std)
  kernel = kernel * (0.5 / std)[:, None]  # [height, width, channels, D]
  params['embedding/kernel'] = kernel.astype(np.float32)
  params['embedding/bias'] = bias.astype(np.float32)
  note = (
    f'these weights are for inputs normalised with {given}; this is now made'
    ' part of their embedding, so that inputs in [-1, 1] give the same outputs'
  )
  return dataclasses.replace(weights, params=params, notes=(note,))
