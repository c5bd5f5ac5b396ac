"""Reads Hugging Face folders: `config.json` and `model.safetensors`.

Reads ViTForImageClassification and ViTModel, and DeiT stored as either. Needs
neither torch nor transformers.
"""

import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax import models
from vit_jax.interop import (
  huggingface_config,
  json_files,
  released,
  safetensors_files,
  torch_names,
  weight_files,
)
from vit_jax.interop.weights import Weights
from vit_jax.models import position

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


def is_folder(path: epath.Path) -> bool:
  """Returns whether a path is a folder with Hugging Face's files of weights."""
  names = (WEIGHTS, INDEX, 'pytorch_model.bin', 'pytorch_model.bin.index.json')
  return path.is_dir() and any((path / name).exists() for name in names)


def read(path: epath.PathLike) -> Weights:
  """Reads a folder, or a `.safetensors` file in one.

  Raises:
    ValueError: files are missing or damaged, the weights exist only as a
      pickle, the model is not a ViT or has a distillation token, or
      `huggingface_config.read` refuses the folder.
  """
  path = weight_files.absolute(path)
  folder = path if path.is_dir() else path.parent
  config = huggingface_config.read(folder)
  tensors = (
    _read_folder(path) if path.is_dir() else safetensors_files.read(path)
  )
  torch_names.check_layout(tensors, path, expected=True)
  in_file = {torch_names.name_in_file(name): name for name in tensors}
  tensors = released.renamed(tensors, torch_names.name_in_file)
  if 'embeddings.distillation_token' in tensors:
    raise ValueError(
      f'{folder} holds a DeiT with a distillation token, which has its own'
      ' position embedding and head; no model here has that token. Use a DeiT'
      ' that was stored as a ViT.'
    )
  used, notes = _without_unused(tensors, config)
  params = torch_names.from_torch(
    used, heads=config.heads, qkv_bias=config.qkv_bias
  )
  # Errors name unknown arrays, which the user knows by their names in the file.
  params = {in_file.get(name, name): array for name, array in params.items()}
  params, folded = huggingface_config.fold_normalization(params, config)
  settings = {'norm_epsilon': config.norm_epsilon, 'gelu': config.gelu}
  try:
    model = _model(params, config, settings)
    grid = position.token_grid(config.image_size, config.patch_size)
  except ValueError as error:
    raise ValueError(
      f'{folder / huggingface_config.CONFIG} describes no model for these'
      f' weights: {error}'
    ) from error
  return Weights(
    origin=str(path),
    params=params,
    model=model,
    image_size=config.image_size,
    grid=grid,
    class_names=config.class_names(model.num_classes) if model else (),
    preprocessing=config.preprocessing,
    decoding=config.decoding,
    loss=config.loss,
    settings=settings,
    dropped=tuple(sorted(in_file[k] for k in tensors.keys() - used.keys())),
    notes=notes + folded,
  )


def _without_unused(
  tensors: Mapping[str, np.ndarray], config: huggingface_config.Config
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Leaves out arrays that change no output; returns the rest, and notes."""
  used, notes = dict(tensors), ()
  if used.pop('embeddings.mask_token', None) is not None:
    notes += ('the mask token, for masked images only, is left out',)
  if 'classifier.bias' in used and 'pooler.dense.bias' in used:
    # In transformers, the classifier reads the class token, not the pooler.
    used = {k: v for k, v in used.items() if not k.startswith('pooler.')}
    notes += ('the pooler, which the classifier does not use, is left out',)
  if 'pooler.dense.bias' in used and config.pooler_act != 'tanh':
    notes += (f"the folder's pooler_act={config.pooler_act!r} becomes tanh",)
  return used, notes


def _read_folder(folder: epath.Path) -> dict[str, np.ndarray]:
  if (folder / WEIGHTS).exists():
    return safetensors_files.read(folder / WEIGHTS)
  if not (folder / INDEX).exists():
    if not is_folder(folder):
      raise ValueError(f'{folder} has no weights: there is no {WEIGHTS}.')
    raise ValueError(
      f'{folder} holds its weights only as a pickle (pytorch_model.bin), which'
      ' is not read, because it can run code. If you trust it and have torch,'
      ' transformers.AutoModelForImageClassification.from_pretrained('
      f'FOLDER).save_pretrained(NEW_FOLDER) writes {WEIGHTS}.'
    )
  content = {'weight_map': {}} | json_files.read(folder / INDEX)
  json_files.check(
    content, {'weight_map': json_files.OBJECT_OF_TEXTS}, folder / INDEX
  )
  shards = content['weight_map']
  tensors = {}
  for shard in sorted(set(shards.values())):
    if os.path.basename(shard) != shard or not shard.endswith('.safetensors'):
      raise ValueError(
        f'{folder / INDEX} names {shard!r}, expected a .safetensors file of'
        ' the same folder.'
      )
    found = safetensors_files.read(folder / shard)
    tensors |= {k: v for k, v in found.items() if shards.get(k) == shard}
  if missing := sorted(shards.keys() - tensors.keys()):
    raise ValueError(
      f'{folder} lacks arrays that {INDEX} lists: {", ".join(missing)}.'
    )
  return tensors


def _model(
  params: Mapping[str, np.ndarray],
  config: huggingface_config.Config,
  settings: Mapping[str, Any],
) -> nn.Module | None:
  """Returns the folder's model; None if a bias is missing or does not fit."""
  biases = [
    params.get(f'{name}/bias')
    for name in (
      'head',
      'Transformer/encoder_norm',
      'Transformer/encoderblock_0/MlpBlock_0/Dense_0',
    )
  ]
  if any(bias is None or bias.ndim != 1 for bias in biases):
    return None
  classes, width, mlp_dim = map(len, biases)
  return models.build(
    'ViT-B/16',
    num_classes=classes,
    width=width,
    depth=sum(name.endswith('/LayerNorm_0/bias') for name in params),
    heads=config.heads,
    mlp_dim=mlp_dim,
    patch_size=config.patch_size,
    **settings,
  )
