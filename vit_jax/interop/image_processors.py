"""How images were prepared for the weights of a Hugging Face folder.

`preprocessor_config.json` becomes operations of `data/ops`, and its mean and
deviation become part of the patch embedding: all models here take [-1, 1].
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data.ops import resizing
from vit_jax.interop import weight_files
from vit_jax.interop.weight_files import Weights

FILE = 'preprocessor_config.json'
# Our own keys.
PREPROCESSING = 'vit_jax_preprocessing'
DECODING = 'vit_jax_decoding'
LOSS = 'vit_jax_loss'

# Fields that change no value of an image in RGB.
_NO_EFFECT = {
  *('image_processor_type', 'feature_extractor_type', 'processor_class'),
  *('do_convert_rgb', 'do_reduce_labels', 'data_format', 'input_data_format'),
  *('return_tensors', 'device', 'disable_grouping'),
}
# Defaults of transformers' image processors, whose files may leave fields out.
_USUAL = {
  'do_resize': True,
  'size': 224,
  'default_to_square': True,
  'resample': 3,
  'do_center_crop': False,
  'crop_size': None,
  'do_rescale': True,
  'rescale_factor': 1 / 255,
  'do_normalize': True,
  'image_mean': 0.5,
  'image_std': 0.5,
}
_CLIP = {
  'size': {'shortest_edge': 224},
  'default_to_square': False,
  'do_center_crop': True,
  'crop_size': 224,
  'image_mean': [0.48145466, 0.4578275, 0.40821073],
  'image_std': [0.26862954, 0.26130258, 0.27577711],
}
PROCESSORS = {
  'ViTImageProcessor': {'resample': 2},
  'DeiTImageProcessor': {
    'size': 256,
    'do_center_crop': True,
    'crop_size': 224,
  },
  'BeitImageProcessor': {'crop_size': 224},
  'BitImageProcessor': _CLIP,  # That of DINOv2.
  'CLIPImageProcessor': _CLIP,
  'SiglipImageProcessor': {
    'size': [224, 224],
    'default_to_square': False,
  },
}
# Of PIL.Image.Resampling.
_METHODS = {n: name for name, n in resizing.PILLOW.items() if n in range(6)}


def described(weights: Weights, folder: epath.Path, processor: str) -> Weights:
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
  path = folder / FILE
  if not path.exists():
    return weights
  # For transformers, None means its default, like a missing key.
  found = weight_files.read_json(path).items()
  content = {k: v for k, v in found if v is not None}
  kind = content.get('feature_extractor_type', processor)
  kind = content.get('image_processor_type', kind)
  kind = kind.removesuffix('Fast').replace('FeatureExtractor', 'ImageProcessor')
  given = _USUAL | PROCESSORS.get(kind, {}) | content
  own = content.get(PREPROCESSING)
  try:
    refused = _refused_range(given)
    if own is None:
      refused += _refused(given, kind)
    if refused:
      raise ValueError('; '.join(refused))
    if own is None:
      own = _operations(given, weights.image_size)
      # transformers decodes with Pillow.
      content = {DECODING: {'jpeg_dct': 'accurate'}} | content
    weights = dataclasses.replace(
      weights,
      preprocessing=own,
      decoding=content.get(DECODING, {}),
      loss=content.get(LOSS, ''),
    )
    if not given['do_normalize']:
      return _normalized(weights, 0.0, 1.0)
    return _normalized(weights, given['image_mean'], given['image_std'])
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is refused: {error}. Correct the file to how images were'
      ' prepared for these weights.'
    ) from error


def _sides(size: Any, square: bool = True) -> tuple[int, ...]:
  """Returns (height, width), or (the shorter side,)."""
  if isinstance(size, dict):
    keys = ('height', 'width', 'shortest_edge')
    size = [size[key] for key in keys if size.get(key)]
  elif isinstance(size, int):
    size = [size, size] if square else [size]
  if len(size or ()) == 1:
    return weight_files.pair(size[0])[:1]
  return weight_files.pair(size) if size else ()


def _refused_range(given: Mapping[str, Any]) -> list[str]:
  if given['do_rescale'] and abs(255 * given['rescale_factor'] - 1) < 1e-6:
    return []
  return [
    f'do_rescale={given["do_rescale"]} and'
    f' rescale_factor={given["rescale_factor"]}: the range of the images is'
    ' not known. Expected true and 1/255 (0.00392156862745098)'
  ]


def _refused(given: Mapping[str, Any], kind: str) -> list[str]:
  """Returns the fields that no operation follows, and why."""
  if kind not in PROCESSORS:
    return [f'it is for {kind!r}, known are {", ".join(PROCESSORS)}']
  known = {*_USUAL, *_NO_EFFECT, PREPROCESSING, DECODING, LOSS}
  size = _sides(given['size'], given['default_to_square'])
  crop = _sides(given['crop_size'])
  cropped = given['do_center_crop']
  wrong = {
    'do_resize': not given['do_resize'] and 'leaves images of any size',
    'resample': given['resample'] not in _METHODS and 'is no method of Pillow',
    'size': len(size) == 1
    and not cropped
    and 'leaves images of any shape without do_center_crop',
    'crop_size': cropped
    and (
      (len(crop) != 2 and 'is no height and width')
      or (
        (crop[0] > size[0] or crop[1] > size[-1])
        and f'is larger than size={given["size"]}'
      )
    ),
  } | {
    key: 'is unknown'
    for key, value in given.items()
    if value and key not in known and not key.startswith('_')
  }
  return [f'{k}={given[k]!r:.60} {why}' for k, why in wrong.items() if why]


def _operations(given: Mapping[str, Any], image_size: tuple[int, int]) -> str:
  """Returns what an image processor does, as `data/ops` reads it."""

  def text(sides):  # The size of the model's images goes without saying.
    if sides == image_size or sides * 2 == image_size:
      return ''
    return str(sides[0] if len({*sides}) == 1 else sides)

  size = _sides(given['size'], given['default_to_square'])
  method = f'method={_METHODS[given["resample"]]!r}'
  words = ', '.join(filter(None, (text(size), method)))
  operations = f'{"resize" if len(size) == 2 else "resize_small"}({words})'
  if not given['do_center_crop']:
    return operations
  crop = text(_sides(given['crop_size']))
  return f'{operations}|central_crop' + (f'({crop})' if crop else '')


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
