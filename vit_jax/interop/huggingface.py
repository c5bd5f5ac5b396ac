"""Reads Hugging Face folders: `config.json` and `model.safetensors`.

Of ViTForImageClassification and ViTModel, and DeiT stored as either. Neither
torch nor transformers is needed.
"""

import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax import models, paths
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import torch_names
from vit_jax.interop.weights import Weights, pair

CONFIG, PREPROCESSOR = 'config.json', 'preprocessor_config.json'
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
PREPROCESSING = 'vit_jax_preprocessing'  # Our own key.

# Of `transformers.ViTConfig`, where a config.json leaves them out.
_DEFAULTS = {
  'num_attention_heads': 12,
  'hidden_act': 'gelu',
  'layer_norm_eps': 1e-12,
  'image_size': 224,
  'patch_size': 16,
  'qkv_bias': True,
}
_GELUS = {
  'gelu': 'exact',
  'gelu_new': 'tanh',
  'gelu_fast': 'tanh',
  'gelu_pytorch_tanh': 'tanh',
}


def is_folder(path: epath.Path) -> bool:
  """Whether a directory holds weights as Hugging Face names them."""
  names = (WEIGHTS, INDEX, 'pytorch_model.bin', 'pytorch_model.bin.index.json')
  return path.is_dir() and any((path / name).exists() for name in names)


def read(path: epath.PathLike) -> Weights:
  """Reads a folder, or a `.safetensors` file in one.

  Raises:
    ValueError: files that are missing or damaged, weights that only exist
      pickled, a model that is no ViT, or one with a distillation token.
  """
  path = paths.absolute(path)
  folder = path if path.is_dir() else path.parent
  config = _DEFAULTS | arrays_lib.read_json(folder / CONFIG)
  if config.get('model_type', 'vit') not in ('vit', 'deit'):
    raise ValueError(
      f'{folder} holds a model of type {config["model_type"]!r}, expected'
      " 'vit'."
    )
  tensors = (
    _read_folder(path) if path.is_dir() else arrays_lib.read_safetensors(path)
  )
  tensors = {torch_names.name_in_file(k): v for k, v in tensors.items()}
  if 'embeddings.distillation_token' in tensors:
    raise ValueError(
      f'{folder} holds a DeiT with a distillation token, which has a position'
      ' embedding and a head of its own; the models here have none. Use a DeiT'
      ' that was stored as a ViT.'
    )
  preprocessor = {}
  if (folder / PREPROCESSOR).exists():
    preprocessor = arrays_lib.read_json(folder / PREPROCESSOR)
  notes = _notes(config, preprocessor)
  if 'classifier.bias' in tensors and 'pooler.dense.bias' in tensors:
    # So does transformers: the classifier reads the class token itself.
    tensors = {k: v for k, v in tensors.items() if not k.startswith('pooler.')}
    notes += ('the pooler, which the classifier does not use, is left out',)
  params = torch_names.from_torch(
    tensors,
    heads=config['num_attention_heads'],
    qkv_bias=config['qkv_bias'],
  )
  size, patch = pair(config['image_size']), pair(config['patch_size'])
  settings = {'norm_epsilon': config['layer_norm_eps']}
  if config['hidden_act'] in _GELUS:
    settings['gelu'] = _GELUS[config['hidden_act']]
  return Weights(
    origin=str(path),
    params=params,
    model=_model(params, config, settings),
    image_size=size,
    grid=(size[0] // patch[0], size[1] // patch[1]),
    class_names=_class_names(config, params),
    preprocessing=preprocessor.get(PREPROCESSING, ''),
    settings=settings,
    notes=notes,
  )


def _read_folder(folder: epath.Path) -> dict[str, np.ndarray]:
  if (folder / WEIGHTS).exists():
    return arrays_lib.read_safetensors(folder / WEIGHTS)
  if not (folder / INDEX).exists():
    if not is_folder(folder):
      raise ValueError(f'{folder} has no weights: there is no {WEIGHTS}.')
    raise ValueError(
      f'{folder} holds its weights only as a pickle (pytorch_model.bin), which'
      ' is not read, because it can run code. Where you trust it and have'
      ' torch, transformers.AutoModelForImageClassification.from_pretrained('
      f'FOLDER).save_pretrained(NEW_FOLDER) writes {WEIGHTS}.'
    )
  shards = arrays_lib.read_json(folder / INDEX).get('weight_map', {})
  tensors = {}
  for shard in sorted(set(shards.values())):
    if os.path.basename(shard) != shard or not shard.endswith('.safetensors'):
      raise ValueError(
        f'{folder / INDEX} names {shard!r}, expected a .safetensors file of'
        ' the same folder.'
      )
    found = arrays_lib.read_safetensors(folder / shard)
    tensors |= {k: v for k, v in found.items() if shards.get(k) == shard}
  if missing := sorted(shards.keys() - tensors.keys()):
    raise ValueError(
      f'{folder} lacks arrays that {INDEX} lists: {", ".join(missing)}.'
    )
  return tensors


def _notes(
  config: Mapping[str, Any], preprocessor: Mapping[str, Any]
) -> tuple[str, ...]:
  """What this package computes in another way, settings apart."""
  notes = []
  if config['hidden_act'] not in _GELUS:
    notes.append(
      f'these weights are of a model with hidden_act={config["hidden_act"]!r},'
      ' which no model here has'
    )
  if config.get('pooler_act', 'tanh') != 'tanh':
    notes.append(f'their pooler_act={config["pooler_act"]!r} becomes tanh')
  mean, std = (
    preprocessor.get(key, [0.5]) for key in ('image_mean', 'image_std')
  )
  if set(mean) | set(std) != {0.5}:
    notes.append(
      f'these weights are for inputs normalised with mean {mean} and standard'
      f' deviation {std}; the models here get inputs in [-1, 1] (0.5 and 0.5)'
    )
  return tuple(notes)


def _model(
  params: Mapping[str, np.ndarray],
  config: Mapping[str, Any],
  settings: Mapping[str, Any],
) -> nn.Module | None:
  """The model of the folder; None if it has no head."""
  needed = ('head/bias', 'Transformer/encoder_norm/bias')
  dense = 'Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias'
  if any(name not in params for name in (*needed, dense)):
    return None
  return models.build(
    'ViT-B/16',
    num_classes=len(params['head/bias']),
    width=len(params['Transformer/encoder_norm/bias']),
    depth=sum(name.endswith('/LayerNorm_0/bias') for name in params),
    heads=config['num_attention_heads'],
    mlp_dim=len(params[dense]),
    patch_size=pair(config['patch_size']),
    **settings,
  )


def _class_names(
  config: Mapping[str, Any], params: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
  """The names in `id2label`, unless they are the library's placeholders."""
  labels = config.get('id2label') or {}
  names = tuple(labels.get(str(i), '') for i in range(len(labels)))
  classes = len(params.get('head/bias', ()))
  placeholders = all(n == f'LABEL_{i}' for i, n in enumerate(names))
  return () if placeholders or len(names) != classes else names
