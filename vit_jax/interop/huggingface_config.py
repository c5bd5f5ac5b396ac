"""Reads the JSON files of a Hugging Face folder, which describe its weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data.ops import resizing
from vit_jax.interop import json_files
from vit_jax.interop.weights import pair

CONFIG, PREPROCESSOR = 'config.json', 'preprocessor_config.json'
# Our own keys.
PREPROCESSING = 'vit_jax_preprocessing'
DECODING = 'vit_jax_decoding'
LOSS = 'vit_jax_loss'

# Defaults of `transformers.ViTConfig`, for keys that a config.json leaves out.
_DEFAULTS = {
  'model_type': 'vit',
  'num_attention_heads': 12,
  'hidden_act': 'gelu',
  'layer_norm_eps': 1e-12,
  'image_size': 224,
  'patch_size': 16,
  'qkv_bias': True,
  'pooler_act': 'tanh',
  'id2label': None,
}
_CONFIG_KINDS = {
  'model_type': json_files.TEXT,
  'num_attention_heads': json_files.COUNT,
  'hidden_act': json_files.TEXT,
  'layer_norm_eps': json_files.POSITIVE,
  'image_size': json_files.SIZE,
  'patch_size': json_files.SIZE,
  'qkv_bias': json_files.BOOL,
  'pooler_act': json_files.TEXT,
  'id2label': json_files.optional(json_files.OBJECT_OF_TEXTS),
}


def _is_size(value: Any) -> bool:
  if not isinstance(value, dict):
    return json_files.SIZE.accepts(value)
  keys = {key for key, side in value.items() if side is not None}
  return keys in ({'height', 'width'}, {'shortest_edge'}) and all(
    type(value[key]) is int and json_files.SIZE.accepts(value[key])
    for key in keys
  )


_SIDES = json_files.Kind(
  f'{json_files.SIZE.words}, or an object with either height and width or'
  ' shortest_edge',
  _is_size,
)
_PREPROCESSOR_KINDS = {
  'image_processor_type': json_files.optional(json_files.TEXT),
  'feature_extractor_type': json_files.optional(json_files.TEXT),
  'do_resize': json_files.optional(json_files.BOOL),
  'size': json_files.optional(_SIDES),
  'default_to_square': json_files.optional(json_files.BOOL),
  'resample': json_files.Kind(
    'a number of PIL.Image.Resampling, 0 to 5, or null',
    lambda v: v is None or (type(v) is int and v in range(6)),
  ),
  'do_center_crop': json_files.optional(json_files.BOOL),
  'crop_size': json_files.optional(_SIDES),
  'do_rescale': json_files.optional(json_files.BOOL),
  'rescale_factor': json_files.optional(json_files.POSITIVE),
  'do_normalize': json_files.optional(json_files.BOOL),
  'image_mean': json_files.optional(json_files.NUMBERS),
  'image_std': json_files.optional(json_files.POSITIVES),
  PREPROCESSING: json_files.TEXT,
  DECODING: json_files.DECODING,
  LOSS: json_files.TEXT,
}
# Fields that change no value of an image in RGB.
_NO_EFFECT = {
  *('processor_class', 'do_convert_rgb', 'do_reduce_labels', 'data_format'),
  *('input_data_format', 'return_tensors', 'device', 'disable_grouping'),
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
_PROCESSORS = {
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
_OF_MODEL = {'vit': 'ViTImageProcessor', 'deit': 'DeiTImageProcessor'}
_GELUS = {
  'gelu': 'exact',
  'gelu_new': 'tanh',
  'gelu_fast': 'tanh',
  'gelu_pytorch_tanh': 'tanh',
}


@dataclasses.dataclass(frozen=True)
class Config:
  """A model and its inputs.

  Attributes:
    heads: attention heads.
    gelu: as in `vit.ViT`.
    norm_epsilon: epsilon of every LayerNorm.
    image_size: (height, width) in pixels.
    patch_size: (height, width) in pixels.
    qkv_bias: whether queries, keys and values have biases.
    pooler_act: the pooler's activation, by its name in transformers.
    labels: the content of `id2label`.
    mean: subtracted from images in [0, 1]; one number, or one per channel.
    std: divides images after the subtraction; one number, or one per channel.
    preprocessing: operations of our own evaluation, or else those of the
      folder's image processor; '' if unknown.
    decoding: see `Weights`.
    loss: see `Weights`.
  """

  heads: int
  gelu: str
  norm_epsilon: float
  image_size: tuple[int, int]
  patch_size: tuple[int, int]
  qkv_bias: bool
  pooler_act: str
  labels: Mapping[str, str]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  preprocessing: str
  decoding: Mapping[str, Any]
  loss: str

  def class_names(self, classes: int) -> tuple[str, ...]:
    """Returns one label per class, '' in gaps.

    The result is () for placeholders, or if the labels are about more classes,
    or about fewer.
    """
    names = tuple(self.labels.get(str(i), '') for i in range(classes))
    placeholders = all(n == f'LABEL_{i}' for i, n in self.labels.items())
    number = len(self.labels)
    fewer = number < classes and not names[-1]
    return () if placeholders or number > classes or fewer else names


def read(folder: epath.Path) -> Config:
  """Reads `config.json` and, if it is there, `preprocessor_config.json`.

  Raises:
    ValueError: a file is missing or damaged, a value is not allowed, the model
      is not a ViT, or it has an unknown activation or range of inputs.
  """
  path = folder / CONFIG
  config = _DEFAULTS | json_files.read(path)
  json_files.check(config, _CONFIG_KINDS, path)
  if config['model_type'] not in _OF_MODEL:
    raise ValueError(
      f'{folder} holds a model of type {config["model_type"]!r}, expected'
      " 'vit'."
    )
  if config['hidden_act'] not in _GELUS:
    raise ValueError(
      f'{path} says hidden_act={config["hidden_act"]!r}, which no model here'
      f' has. Known are {", ".join(_GELUS)}.'
    )
  image_size = pair(config['image_size'])
  preprocessor, mean, std = _preprocessor(
    folder / PREPROCESSOR, _OF_MODEL[config['model_type']], image_size
  )
  return Config(
    heads=config['num_attention_heads'],
    gelu=_GELUS[config['hidden_act']],
    norm_epsilon=config['layer_norm_eps'],
    image_size=image_size,
    patch_size=pair(config['patch_size']),
    qkv_bias=config['qkv_bias'],
    pooler_act=config['pooler_act'],
    labels=config['id2label'] or {},
    mean=mean,
    std=std,
    preprocessing=preprocessor.get(PREPROCESSING, ''),
    decoding=preprocessor.get(DECODING, {}),
    loss=preprocessor.get(LOSS, ''),
  )


def _preprocessor(
  path: epath.Path, kind: str, image_size: tuple[int, int]
) -> tuple[dict[str, Any], tuple, tuple]:
  """Returns our keys, and the mean and std for images in [0, 1].

  Args:
    path: the file, which need not exist.
    kind: the image processor if the file names none.
    image_size: (height, width) that the model sees.

  Raises:
    ValueError: a field is of a wrong type, or asks for what is not done here.
  """
  content = json_files.read(path) if path.exists() else {PREPROCESSING: ''}
  json_files.check(content, _PREPROCESSOR_KINDS, path)
  # For transformers, None means its default, like a missing key.
  content = {k: v for k, v in content.items() if v is not None}
  kind = content.get('feature_extractor_type', kind)
  kind = content.get('image_processor_type', kind)
  kind = kind.removesuffix('Fast').replace('FeatureExtractor', 'ImageProcessor')
  given = _USUAL | _PROCESSORS.get(kind, {}) | content
  refused = []
  if not given['do_rescale'] or abs(255 * given['rescale_factor'] - 1) > 1e-6:
    refused.append(
      f'do_rescale={given["do_rescale"]} and'
      f' rescale_factor={given["rescale_factor"]}: the range of the images is'
      ' not known. Expected true and 1/255 (0.00392156862745098)'
    )
  if PREPROCESSING not in content:
    refused += _refused(content, given, kind)
  if refused:
    raise ValueError(
      f'{path} is refused: {"; ".join(refused)}. Correct the file to how images'
      ' were prepared for these weights.'
    )
  if PREPROCESSING not in content:
    content[PREPROCESSING] = _operations(given, image_size)
    # transformers decodes with Pillow.
    content.setdefault(DECODING, {'jpeg_dct': 'accurate'})
  if not given['do_normalize']:
    return content, (0.0,), (1.0,)
  mean, std = (
    np.ravel(given[key]).tolist() for key in ('image_mean', 'image_std')
  )
  return content, tuple(mean), tuple(std)


def _sides(size: Any, square: bool = True) -> tuple[int, ...]:
  """Returns (height, width), or (the shorter side,)."""
  if isinstance(size, dict):
    keys = ('height', 'width', 'shortest_edge')
    return tuple(size[key] for key in keys if size.get(key))
  if isinstance(size, int):
    return (size, size) if square else (size,)
  return tuple(size or ())


def _refused(
  content: Mapping[str, Any], given: Mapping[str, Any], kind: str
) -> list[str]:
  """Returns the fields that no operation follows, and why.

  Args:
    content: the file.
    given: the file with the defaults of its kind.
    kind: the image processor.
  """
  if kind not in _PROCESSORS:
    return [f'it is for {kind!r}, known are {", ".join(_PROCESSORS)}']
  known = {*_PREPROCESSOR_KINDS, *_NO_EFFECT}
  found = [
    f'{key}={value!r:.60} is unknown'
    for key, value in content.items()
    if value and key not in known and not key.startswith('_')
  ]
  if not given['do_resize']:
    found.append('do_resize=False leaves images of any size')
  size = _sides(given['size'], given['default_to_square'])
  crop = _sides(given['crop_size'])
  if not given['do_center_crop']:
    if len(size) == 1:
      found.append(
        f'size={given["size"]} without do_center_crop leaves images of any'
        ' shape'
      )
  elif len(crop) != 2:
    found.append(f'crop_size={given["crop_size"]} is no height and width')
  elif crop[0] > size[0] or crop[1] > size[-1]:
    found.append(
      f'crop_size={given["crop_size"]} is larger than size={given["size"]}'
    )
  return found


def _operations(given: Mapping[str, Any], image_size: tuple[int, int]) -> str:
  """Returns what an image processor does, as `data/ops` reads it."""

  def text(sides):  # The size of the model's images goes without saying.
    if sides == image_size or sides * 2 == image_size:
      return ''
    return str(sides[0] if len({*sides}) == 1 else sides)

  size = _sides(given['size'], given['default_to_square'])
  (method,) = (k for k, v in resizing.PILLOW.items() if v == given['resample'])
  words = filter(None, (text(size), f'method={method!r}'))
  name = 'resize' if len(size) == 2 else 'resize_small'
  operations = f'{name}({", ".join(words)})'
  if not given['do_center_crop']:
    return operations
  crop = text(_sides(given['crop_size']))
  return f'{operations}|central_crop' + (f'({crop})' if crop else '')


def fold_normalization(
  params: Mapping[str, np.ndarray], config: Config
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Changes the embedding so that it takes inputs in [-1, 1].

  For our input x in [-1, 1], the folder's input is
  z = (x / 2 + 1 / 2 - mean) / std. This is linear, and the embedding has no
  padding, so the outputs stay the same.

  Args:
    params: our name -> array; `embedding/kernel` is [height, width, channels,
      D].
    config: gives the mean and standard deviation for z.

  Returns:
    The parameters, and a note if they were changed.

  Raises:
    ValueError: the number of means or deviations is not that of the channels.
  """
  params = dict(params)
  if {*config.mean, *config.std} == {0.5}:
    return params, ()
  given = f'mean {list(config.mean)} and standard deviation {list(config.std)}'
  kernel, bias = (params.get(f'embedding/{k}') for k in ('kernel', 'bias'))
  if kernel is None or bias is None or (kernel.ndim, bias.ndim) != (4, 1):
    return params, ()  # `fitting` raises an error that lists all such arrays.
  channels = kernel.shape[2]
  if {len(config.mean), len(config.std)} - {1, channels}:
    raise ValueError(
      f'{PREPROCESSOR} says {given}, expected numbers for {channels} channels.'
    )
  mean, std = (
    np.broadcast_to(np.asarray(v, np.float64), channels)
    for v in (config.mean, config.std)
  )
  kernel, bias = kernel.astype(np.float64), bias.astype(np.float64)
  bias = bias + np.einsum('hwcd,c->d', kernel, (0.5 - mean) / std)
  kernel = kernel * (0.5 / std)[:, None]  # [height, width, channels, D]
  params['embedding/kernel'] = kernel.astype(np.float32)
  params['embedding/bias'] = bias.astype(np.float32)
  return params, (
    f'these weights are for inputs normalised with {given}; this is now made'
    ' part of their embedding, so that inputs in [-1, 1] give the same outputs',
  )
