"""Reads Hugging Face folders: JSON files and `model.safetensors`.

Needs neither torch nor transformers. `families.HUGGINGFACE` says which models
are known, and how their names and configs map to ours; `processors`, how images
are prepared for them.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
from etils import epath

from vit_jax import models
from vit_jax.interop import (
  arrays,
  families,
  inference,
  processors,
  weight_files,
)
from vit_jax.interop.weight_files import Weights, pair
from vit_jax.workdir import files

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
# Where an image processor may be; transformers prefers the first.
PROCESSORS = 'processor_config.json', 'preprocessor_config.json'


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
  """Adds what the files of a folder say, which need not exist.

  Args:
    weights: of the folder, with the image size that the model sees.
    folder: the folder.
    processor: the image processor if the files name none.

  Returns:
    The weights with operations of our own evaluation, or else those of the
    folder's image processor.

  Raises:
    ValueError: a file asks for what is not done here.
  """
  content = None
  for path in (folder / name for name in PROCESSORS):
    if path.exists():
      content = weight_files.read_json(path)
      # The first file may hold other parts only, such as a tokenizer's.
      if 'image_processor' in content:
        break
  try:
    prepared = processors.from_transformers(
      content,
      processor=processor,
      image_size=weights.image_size,
      channels=weights.channels,
    )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is refused: {error}. Correct the file to how images were'
      ' prepared for these weights.'
    ) from error
  notes = (f'{prepared.image_mean=}',) if prepared.image_mean else ()
  return dataclasses.replace(weights, notes=notes, **prepared.described)
