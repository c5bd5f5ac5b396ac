"""Reads Hugging Face folders: `config.json` and `model.safetensors`.

Needs neither torch nor transformers. `families.HUGGINGFACE` says which models
are known, and how their names and configs map to ours.
"""

import os
from collections.abc import Mapping

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax import models
from vit_jax.interop import (
  arrays,
  families,
  image_processors,
  layouts,
  weight_files,
)
from vit_jax.interop.weight_files import Weights, pair

CONFIG = 'config.json'
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
      pickle, the model is of no family in `families.HUGGINGFACE`, or images
      were prepared for it in a way that is not done here.
  """
  path = weight_files.absolute(path)
  folder = path if path.is_dir() else path.parent
  config = weight_files.read_json(folder / CONFIG)
  tensors = (
    _read_folder(path) if path.is_dir() else arrays.read_safetensors(path)
  )
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
    params, dropped = _parameters(tensors, family, model.heads)
    for name, attribute in (
      ('head', 'num_classes'),
      ('pre_logits', 'representation_size'),
    ):
      if f'{name}/bias' in params:
        model = model.clone(**{attribute: params[f'{name}/bias'].size})
    names = ()
    if 'head/bias' in params:
      names = _class_names(config.get('id2label') or {}, model.num_classes)
    weights = Weights(
      origin=str(path),
      params=params,
      model=model,
      image_size=pair(config.get('image_size', 224)),
      class_names=names,
      dropped=dropped,
    )
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
      f'{folder / CONFIG} describes no model of these weights: {error}'
    ) from error
  return image_processors.described(weights, folder, family.processor)


def _parameters(
  tensors: Mapping[str, np.ndarray], family: layouts.Family, heads: int
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Returns our name -> array, and the names of arrays that are left out."""
  params = family.read(tensors, heads)
  unused = family.unused
  if 'head/bias' in params:
    unused += family.unused_with_head
  dropped = [name for name in tensors if family.plain(name) in unused]
  used = {k: v for k, v in tensors.items() if k not in dropped}
  return family.read(used, heads), tuple(sorted(dropped))


def _class_names(labels: Mapping[str, str], classes: int) -> tuple[str, ...]:
  """Returns a name for each class, 'class 3' for one without a label.

  The result is () for placeholders, or if the labels are about more classes,
  or about fewer.
  """
  others = len(labels) > classes or str(classes - 1) not in labels
  if others or all(n == f'LABEL_{i}' for i, n in labels.items()):
    return ()
  names = [labels.get(str(i), '') for i in range(classes)]
  return tuple(n if n.strip() else f'class {i}' for i, n in enumerate(names))


def _read_folder(folder: epath.Path) -> dict[str, np.ndarray]:
  if (folder / WEIGHTS).exists():
    return arrays.read_safetensors(folder / WEIGHTS)
  if not (folder / INDEX).exists():
    raise ValueError(
      f'{folder} has no {WEIGHTS}. A pickle (pytorch_model.bin) is not read,'
      ' because it can run code. If you trust it and have torch,'
      ' transformers.AutoModelForImageClassification.from_pretrained('
      f'FOLDER).save_pretrained(NEW_FOLDER) writes {WEIGHTS}.'
    )
  shards = weight_files.read_json(folder / INDEX).get('weight_map')
  files = set(shards.values()) if isinstance(shards, dict) else {None}
  tensors = {}
  for name in files:
    if os.path.basename(str(name)) != name or not name.endswith('.safetensors'):
      raise ValueError(
        f'{folder / INDEX} names {name!r}, expected .safetensors files of the'
        ' same folder.'
      )
    tensors |= arrays.read_safetensors(folder / name)
  if missing := sorted(shards.keys() - tensors.keys()):
    raise ValueError(
      f'{folder} lacks arrays that {INDEX} lists: {", ".join(missing)}.'
    )
  return tensors


def check_savable(model: nn.Module) -> None:
  """Raises ValueError with all reasons why transformers lacks the model."""
  if reasons := families.VIT.unlike(model):
    raise ValueError(
      "Hugging Face's ViT cannot express this model: it has"
      f' {", ".join(reasons)}. Save it as .npz instead.'
    )
