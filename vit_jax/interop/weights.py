"""Parameters as read from any kind of file."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from vit_jax.models import resnet

# Losses that say what probabilities are; '' if it is unknown.
_LOSSES = ('', 'softmax', 'sigmoid')
ImageSize = int | Sequence[int]  # Side, or (height, width), in pixels.


@dataclasses.dataclass(frozen=True)
class Weights:
  """Parameters by our names, and what their file says about them.

  Attributes:
    origin: where the parameters come from, for messages.
    params: flat name -> array, blocks not stacked.
    model: the parameters' model, if known.
    image_size: (height, width) in pixels of the images that the parameters
      were last used with, if known.
    channels: of these images, if known; 0 if only the arrays show them.
    grid: (rows, columns) of the position embeddings, if known.
    class_names: one for each logit; empty if unknown. A class without a name
      is called 'class 0' and so on.
    preprocessing: operations before the model (see `data/ops`); '' if
      unknown.
    decoding: how images are decoded before that: the arguments `upright` and
      `jpeg_dct` of `ops.parse`, as far as they are known.
    loss: the loss that the head was trained with, such as 'sigmoid'; '' if
      unknown.
    settings: attributes of the model that shapes do not show, if known.
    dropped: names of the file's arrays that are not parameters.
    notes: notes for the report of loading.
  """

  origin: str
  params: Mapping[str, np.ndarray]
  model: nn.Module | None = None
  image_size: tuple[int, int] | None = None
  channels: int = 0
  grid: tuple[int, int] | None = None
  class_names: tuple[str, ...] = ()
  preprocessing: str = ''
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  loss: str = ''
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dropped: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()

  def __post_init__(self):
    # A name that cannot be seen says nothing about a prediction.
    names = tuple(
      name if name.strip() else f'class {i}'
      for i, name in enumerate(self.class_names)
    )
    object.__setattr__(self, 'class_names', names)

  def remarks(self, model: nn.Module) -> tuple[str, ...]:
    """Returns the notes, and differences from a model that no shape shows."""
    differing = tuple(
      f'these weights come from a model with {key}={value!r}, this one has'
      f' {getattr(model, key)!r}: set {key}={value!r} to compute the same'
      for key, value in self.settings.items()
      if getattr(model, key, value) != value
    )
    if self.loss not in _LOSSES:
      differing += (
        f'their loss {self.loss!r:.60} says nothing about probabilities: those'
        ' of softmax are shown',
      )
    if self.model is None:
      differing += self._of_narrow_norms()
    return self.notes + differing

  def _of_narrow_norms(self) -> tuple[str, ...]:
    """Returns a note if a norm's groups may differ where the file is from."""
    channels = {
      len(array)
      for name, array in self.params.items()
      if re.search(r'(^|/)gn[^/]*/scale$', name) and array.ndim == 1
    }
    narrow = [n for n in sorted(channels) if resnet.groups(n) < resnet.GROUPS]
    if not narrow:
      return ()
    return (
      f'norms of {", ".join(map(str, narrow))} channels have half as many'
      f" groups here, and {resnet.GROUPS} in the authors' code: weights of a"
      ' ResNet this narrow compute something else, unless this code made them',
    )


def settings_of(model: nn.Module) -> dict[str, Any]:
  """Returns a model's attributes that change logits but no array's shape."""
  keys = ('gelu', 'norm_epsilon', 'position_site')
  return {key: getattr(model, key) for key in keys if hasattr(model, key)}


def pair(size: ImageSize) -> tuple[int, int]:
  """Returns (height, width) for a side or a pair."""
  return (size, size) if isinstance(size, int) else tuple(size)


def check_class_names(names: Sequence[str] | None, num_classes: int) -> None:
  """Raises ValueError if there are names, but not one for each logit."""
  if names and len(names) != num_classes:
    raise ValueError(
      f'There are {len(names)} class names for {num_classes} classes: give one'
      ' name per class.'
    )
