"""Reads the JSON files of a Hugging Face folder, which describe its weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

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
_PREPROCESSOR_KINDS = {
  'do_rescale': json_files.optional(json_files.BOOL),
  'rescale_factor': json_files.optional(json_files.POSITIVE),
  'do_normalize': json_files.optional(json_files.BOOL),
  'image_mean': json_files.optional(json_files.NUMBERS),
  'image_std': json_files.optional(json_files.POSITIVES),
  PREPROCESSING: json_files.TEXT,
  DECODING: json_files.DECODING,
  LOSS: json_files.TEXT,
}
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
    preprocessing: operations of our own evaluation; '' if unknown.
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
  if config['model_type'] not in ('vit', 'deit'):
    raise ValueError(
      f'{folder} holds a model of type {config["model_type"]!r}, expected'
      " 'vit'."
    )
  if config['hidden_act'] not in _GELUS:
    raise ValueError(
      f'{path} says hidden_act={config["hidden_act"]!r}, which no model here'
      f' has. Known are {", ".join(_GELUS)}.'
    )
  preprocessor, mean, std = _preprocessor(folder / PREPROCESSOR)
  return Config(
    heads=config['num_attention_heads'],
    gelu=_GELUS[config['hidden_act']],
    norm_epsilon=config['layer_norm_eps'],
    image_size=pair(config['image_size']),
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


def _preprocessor(path: epath.Path) -> tuple[dict[str, Any], tuple, tuple]:
  """Returns the content, and the mean and std for images in [0, 1]."""
  content = json_files.read(path) if path.exists() else {}
  json_files.check(content, _PREPROCESSOR_KINDS, path)
  # For ViTImageProcessor, None means its default, like a missing key.
  given = {k: v for k, v in content.items() if v is not None}
  factor = given.get('rescale_factor', 1 / 255)
  if not given.get('do_rescale', True) or abs(255 * factor - 1) > 1e-6:
    raise ValueError(
      f'{path} says do_rescale={given.get("do_rescale", True)} and'
      f' rescale_factor={factor}: the range of the images is not known.'
      ' Expected true and 1/255 (0.00392156862745098).'
    )
  if not given.get('do_normalize', True):
    return content, (0.0,), (1.0,)
  mean, std = (
    np.ravel(given.get(key, 0.5)).tolist()
    for key in ('image_mean', 'image_std')
  )
  return content, tuple(mean), tuple(std)


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
