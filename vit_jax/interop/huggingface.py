"""Reads and writes folders of transformers and timm.

These have JSON files and `model.safetensors`. Needs neither torch nor the
libraries: `families.OTHERS` says which models are known, and how their names
and configs map to ours; `processors`, how images are prepared for them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from vit_jax import models
from vit_jax.interop import (
  arrays,
  families,
  inference,
  layouts,
  processors,
  timm_layouts,
  transformers_layouts,
  weight_files,
)
from vit_jax.interop.weight_files import Weights, pair
from vit_jax.workdir import files

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
INDEX = f'{WEIGHTS}.index.json'
# Where an image processor may be; transformers prefers the first.
PROCESSORS = 'processor_config.json', 'preprocessor_config.json'


def is_folder(path: epath.Path) -> bool:
  """Returns whether a path is a folder with Hugging Face's files of weights."""
  names = (WEIGHTS, INDEX, 'pytorch_model.bin')
  return path.is_dir() and any((path / name).exists() for name in names)


# ---- Reading -----------------------------------------------------------------


def read(path: epath.PathLike) -> Weights:
  """Reads a folder, or a `.safetensors` file, if possible in one.

  Raises:
    ValueError: files are missing or damaged, the weights exist only as a
      pickle, the model is of no family in `families.OTHERS`, or images were
      prepared for it in a way that is not done here.
  """
  path = files.absolute(path)
  folder = path if path.is_dir() else path.parent
  tensors = _tensors(path)
  config = {}
  # timm's files do without it.
  is_timm = any(name.endswith('patch_embed.proj.weight') for name in tensors)
  if (folder / CONFIG).exists() or not is_timm:
    config = weight_files.read_json(folder / CONFIG)
  try:
    layout = _layout(config, tensors)
    weights = _weights(path, layout, config, tensors)
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    reason = str(error)
    if isinstance(error, KeyError):
      reason = f'its arrays are of another kind of model, as they lack {error}'
    raise ValueError(
      f'{folder / CONFIG} describes no model of these weights: {reason}'
    ) from error
  return _prepared(weights, folder, config)


def _tensors(path: epath.Path) -> dict[str, np.ndarray]:
  """Reads the arrays of a file or folder; ValueError if any are missing."""
  if not path.is_dir():
    return arrays.read_safetensors(path)
  if (path / WEIGHTS).exists():
    return arrays.read_safetensors(path / WEIGHTS)
  if not (path / INDEX).exists():
    raise ValueError(weight_files.pickle_refused(path))
  places = weight_files.read_json(path / INDEX).get('weight_map')
  if not isinstance(places, dict) or not all(
    isinstance(name, str) and '/' not in name for name in places.values()
  ):
    raise ValueError(f'{path / INDEX} names no files: download it again.')
  parts = sorted({*places.values()})
  if missing := [name for name in parts if not (path / name).exists()]:
    raise ValueError(
      f'{path} lacks {", ".join(missing)}, {len(missing)} of the {len(parts)}'
      f' files that {INDEX} names: download the folder again.'
    )
  found = {}
  for name in parts:
    found |= arrays.read_safetensors(path / name)
  if lacking := sorted(places.keys() - found.keys()):
    raise ValueError(
      f'The files of {path} lack {len(lacking)} arrays that {INDEX} names, such'
      f' as {lacking[0]}: download the folder again.'
    )
  return found


def _layout(config: Mapping[str, Any], tensors: layouts.Arrays) -> str:
  """Returns the key in `families.OTHERS`; ValueError if there is none."""
  if 'model_type' in config:
    kind = str(config['model_type'])
    layout = transformers_layouts.COMPOSITE.get(kind, kind)
  else:
    layout = timm_layouts.family_of(config)
  family = families.OTHERS.get(layout)
  if family is None or not family.knows(tensors):
    kind = config.get('model_type', config.get('architecture', ''))
    raise ValueError(
      f'a model of type {kind!r} with arrays called'
      f' {", ".join(sorted(tensors)[:4])}, ... is not read. Expected a folder'
      ' that save_pretrained of transformers wrote, of type'
      f' {", ".join(transformers_layouts.FAMILIES)}, or one of a Vision'
      ' Transformer of timm.'
    )
  return layout


def _weights(
  path: epath.Path,
  layout: str,
  config: Mapping[str, Any],
  tensors: layouts.Arrays,
) -> Weights:
  """Returns the weights, without how images are prepared for them."""
  family, section = families.OTHERS[layout], config.get('vision_config', config)
  sized = _timm_images(config) or section
  size = sized.get('image_size', 224 if 'model_type' in config else None)
  size = size and pair(size)
  has_head = 'head/kernel' in family.read(tensors)
  dropped = family.drops(tensors, has_head=has_head)
  used = {k: v for k, v in tensors.items() if k not in dropped}
  found = inference.fields(family.read(used), size)
  if layout in timm_layouts.FAMILIES:
    found |= timm_layouts.options(config, found)
  else:
    found['pooling'] = family.pooling[has_head]
  found |= {
    key: family.fixed[key]
    for key in ('position_embedding', 'rotary')
    if key in family.fixed
  } | family.options(section)
  params = family.read(used, found['heads'])
  model = models.build(
    'ViT-B/16', num_classes=inference.num_classes(params), **found
  )
  if others := family.unlike(model, has_head=has_head):
    raise ValueError(f'no {layout} has {", ".join(others)}, as the arrays show')
  if family.check:
    family.check(model, section)
  names = ()
  if 'head' in family.no_bias and has_head:  # A projection, no classifier.
    names = tuple(f'dimension {i}' for i in range(model.num_classes))
  elif has_head:
    labels = config.get('id2label') or _timm_labels(config)
    names = _class_names(labels, model.num_classes)
  if size is None:
    size = inference.patches_size(params, model)
  return Weights(
    origin=str(path),
    params=params,
    model=model,
    image_size=size,
    channels=inference.channels(params),
    class_names=names,
    dropped=tuple(sorted(dropped)),
    layout=layout,
    resize=family.resize,
  )


def _timm_images(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns how timm prepares images, with `image_size`; {} if unknown."""
  if 'model_type' in config:
    return {}
  found = dict(config.get('pretrained_cfg', config))
  if 'input_size' in found:
    found['image_size'] = tuple(found['input_size'][1:])
  return found


def _timm_labels(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns index -> name of the classes in timm's config."""
  names = config.get('label_names') or []
  described = config.get('label_descriptions') or {}
  names = names if isinstance(names, dict) else dict(enumerate(names))
  return {str(i): described.get(name, name) for i, name in names.items()}


def _class_names(labels: Mapping[str, str], classes: int) -> tuple[str, ...]:
  """Returns a name for each class; () for placeholders or other classes."""
  indices = list(map(str, range(classes)))
  if labels.keys() != {*indices} or all(
    name == f'LABEL_{i}' for i, name in labels.items()
  ):
    return ()
  return tuple(labels[i] for i in indices)


def _prepared(
  weights: Weights, folder: epath.Path, config: Mapping[str, Any]
) -> Weights:
  """Adds how images are prepared, as far as the files of a folder say it.

  Raises:
    ValueError: a file asks for what is not done here.
  """
  path, content = folder / CONFIG, None
  try:
    if weights.layout in timm_layouts.FAMILIES:
      cfg = _timm_images(config)
      found = processors.from_timm(
        'mean' in cfg and cfg, image_size=weights.image_size
      )
    else:
      for path in (folder / name for name in PROCESSORS):
        if path.exists():
          content = weight_files.read_json(path)
          # The first file may hold other parts only, such as a tokenizer's.
          if 'image_processor' in content:
            break
      found = processors.from_transformers(
        content,
        processor=families.OTHERS[weights.layout].processor,
        image_size=weights.image_size,
        channels=weights.channels,
      )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is refused: {error}. Correct the file to how images were'
      ' prepared for these weights.'
    ) from error
  own = dict(found.described, prepared_size=found.size)
  if not found.preprocessing:
    own['notes'] = (
      f'{folder} does not say how images were prepared for these weights, so'
      ' inputs in [-1, 1] are assumed: set model.image_mean and'
      ' model.image_std if they are for others',
    )
  model = weights.model.clone(
    image_mean=found.image_mean, image_std=found.image_std
  )
  return dataclasses.replace(weights, model=model, **own)


# ---- Writing -----------------------------------------------------------------


def write(folder: epath.Path, weights: Weights) -> None:
  """Writes a folder in the layout of `weights`; replaces files in it.

  Args:
    folder: created if it does not exist.
    weights: with the model, the image size and a layout that has the model.
  """
  family, model = families.OTHERS[weights.layout], weights.model
  has_head = 'head/kernel' in weights.params
  tensors = family.write(weights.params)
  prepared = processors.Prepared(
    *(weights.preprocessing, weights.decoding, weights.loss),
    *(model.image_mean, model.image_std),
  )
  shape = dict(image_size=weights.image_size, channels=weights.channels)
  images = shape | {'image_size': weights.prepared_size or weights.image_size}
  if weights.layout in timm_layouts.FAMILIES:
    config = timm_layouts.configured(model, **shape, has_head=has_head)
    config['pretrained_cfg'] = processors.to_timm(prepared, **images)
    if has_head and weights.class_names:
      config['label_names'] = list(weights.class_names)
  else:
    config = family.configured(model, has_head=has_head)
    section = config.get('vision_config', config)
    section['image_size'] = layouts.side(weights.image_size)
    section['num_channels'] = weights.channels
    if has_head and 'head' not in family.no_bias:
      names = weights.class_names or [
        f'LABEL_{i}' for i in range(model.num_classes)
      ]
      config['id2label'] = {str(i): name for i, name in enumerate(names)}
      # The first of classes with the same name.
      backwards = reversed([*enumerate(names)])
      config['label2id'] = {name: i for i, name in backwards}
  folder.mkdir(parents=True, exist_ok=True)
  arrays.write_safetensors(folder / WEIGHTS, tensors)
  weight_files.write_json(folder / CONFIG, config)
  if family.processor:
    images['processor'] = family.processor
    content = processors.to_transformers(prepared, **images)
    weight_files.write_json(folder / PROCESSORS[1], content)
