"""What files say of weights; their paths, and the JSON beside them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from etils import epath

from vit_jax.models import position
from vit_jax.runtime import printable
from vit_jax.workdir import files

_LARGEST_SIDE = 2**14  # Pixels; images are resized to the size in a file.
ImageSize = int | Sequence[int]  # Side, or (height, width), in pixels.


@dataclasses.dataclass(frozen=True)
class Weights:
  """Parameters as read from any kind of file.

  Attributes:
    origin: where the parameters come from, for messages.
    params: flat name by our names -> array, blocks not stacked.
    model: the parameters' model, if known.
    image_size: (height, width) in pixels of the images that the parameters
      were last used with, if known.
    channels: of these images.
    class_names: one for each logit; empty if unknown.
    preprocessing: operations before the model (see `data/ops`); '' if
      unknown.
    decoding: how images are decoded before that: the arguments `upright` and
      `jpeg_dct` of `ops.parse`, as far as they are known.
    prepared_size: (height, width) of the images that `preprocessing` is for, if
      that is not `image_size`.
    loss: the loss that the head was trained with, such as 'sigmoid'; '' if
      unknown.
    dropped: names of the file's arrays that are not parameters.
    layout: a key of `families.OTHERS` if the file is a folder of Hugging
      Face's, else ''.
    resize: how position embeddings are brought to another grid, see
      `position.resize`.
    notes: notes for the report of loading.
  """

  origin: str
  params: Mapping[str, np.ndarray]
  model: nn.Module | None = None
  image_size: tuple[int, int] | None = None
  channels: int = 3
  class_names: tuple[str, ...] = ()
  preprocessing: str = ''
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  prepared_size: tuple[int, int] | None = None
  loss: str = ''
  dropped: tuple[str, ...] = ()
  layout: str = ''
  resize: str = 'bilinear'
  notes: tuple[str, ...] = ()

  def __post_init__(self):
    _ = self.grid  # Raises ValueError if the images are below one patch.

  @property
  def grid(self) -> tuple[int, int] | None:
    """(rows, columns) of the position embeddings, if known."""
    size = self.image_size
    known = size and self.model
    return position.stored_grid(self.model, size) if known else None

  @property
  def described(self) -> dict[str, Any]:
    """What files say beside the arrays, as far as it is known."""
    keys = ('class_names', 'preprocessing', 'decoding', 'prepared_size', 'loss')
    return {key: getattr(self, key) for key in keys if getattr(self, key)}

  @property
  def settings(self) -> dict[str, Any]:
    """Attributes of the model, if known, that change logits but no shape."""
    keys = ('gelu', 'norm_epsilon', 'pooling', 'position_embedding')
    keys += ('position_site', 'rotary', 'rotary_base', 'rotary_registers')
    return {k: getattr(self.model, k) for k in keys if hasattr(self.model, k)}

  def remarks(self, model: nn.Module) -> tuple[str, ...]:
    """Returns the notes, and differences from a model that no shape shows."""
    differing = tuple(
      f'these weights come from a model with {key}={value!r}, this one has'
      f' {getattr(model, key)!r}: set {key}={value!r} to compute the same'
      for key, value in self.settings.items()
      if getattr(model, key, value) != value
    )
    return self.notes + differing


def pair(size: ImageSize) -> tuple[int, int]:
  """Returns (height, width) for a side or a pair; ValueError for other values.

  Args:
    size: side or (height, width) in pixels, at most 16,384.
  """
  sides = (size, size) if isinstance(size, int) else size
  if (
    not isinstance(sides, Sequence)
    or len(sides) != 2
    or not all(type(n) is int and 0 < n <= _LARGEST_SIDE for n in sides)
  ):
    raise ValueError(
      f'the size {size!r:.60} is none: expected a side in pixels or (height,'
      f' width), at most {_LARGEST_SIDE:,}.'
    )
  return tuple(sides)


def check_class_names(names: Sequence[str] | None, num_classes: int) -> None:
  """Raises ValueError if there are names, but not one for each logit."""
  if names and len(names) != num_classes:
    raise ValueError(
      f'There are {len(names)} class names for {num_classes} classes: give one'
      ' name per class.'
    )


def pickle_refused(path: epath.PathLike) -> str:
  """Returns why a pickle, or a folder of one, is not read, and what to do."""
  return (
    f'{path} holds its weights as a pickle only, which is not read, because it'
    ' can run code. If you trust it, and have torch, convert it once. A folder:'
    ' python -c "import transformers as t;'
    " t.AutoModel.from_pretrained('FOLDER').save_pretrained('NEW')\" (or"
    ' t.AutoModelForImageClassification, with its head). A file: python -c'
    ' "import torch, safetensors.torch as s; w = torch.load('
    "'FILE', weights_only=True); s.save_file(w.get('model', w),"
    " 'NEW.safetensors')\"."
  )


# ---- Paths -------------------------------------------------------------------


def existing_file(path: epath.PathLike) -> epath.Path:
  """Returns the absolute path; ValueError if no regular file is there."""
  path = files.absolute(path)
  if not path.exists():
    raise ValueError(f'There is no file {path}.')
  if path.is_dir():
    raise ValueError(f'{path} is a directory, expected a file.')
  files.check_regular(path)
  return path


def beside(path: epath.Path) -> epath.Path:
  """Returns the path `weights.npz.json`, of a description of `weights.npz`."""
  return path.with_name(f'{path.name}.json')


def check_target(
  to: epath.Path, overwrite: bool, kind: str, is_same: bool
) -> None:
  """Raises ValueError if what is at a path must not be replaced.

  Args:
    to: the path. Nothing, or an empty folder, is always replaced.
    overwrite: whether something of the same kind may be replaced.
    kind: what will be written, for messages.
    is_same: whether something of this kind is there.
  """
  if not to.exists() or (to.is_dir() and not any(to.iterdir())):
    return
  if not is_same:
    raise ValueError(
      f'{to} exists and is no {kind}, so it is not replaced: choose another'
      ' --to.'
    )
  if not overwrite:
    raise ValueError(f'{to} exists; --overwrite replaces it.')


# ---- Small files -------------------------------------------------------------


def class_names(path: epath.PathLike) -> tuple[str, ...]:
  """Reads a text file with one class name on each line.

  Raises:
    ValueError: no regular file is there, or a line before the last is blank.
  """
  lines = existing_file(path).read_text().rstrip().split('\n')
  for i, line in enumerate(lines):
    if not line.strip():
      raise ValueError(
        f'{path}: line {i + 1} is blank, expected one class name on each line.'
      )
  return tuple(map(printable.name, lines))


def read_json(path: epath.PathLike) -> dict[str, Any]:
  """Reads a JSON object; ValueError if there is no file, or no JSON object."""
  return files.read_object(existing_file(path), 'write it again')


def write_json(path: epath.Path, content: Mapping[str, Any]) -> None:
  """Writes a JSON file, whole or not at all."""
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(content, indent=2) + '\n')
