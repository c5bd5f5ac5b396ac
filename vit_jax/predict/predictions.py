"""What a model predicts of images: numbers, tables and text.

Axes: N images, K classes.
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import scipy.special


@dataclasses.dataclass(frozen=True, repr=False)
class Predictions:
  """A model's outputs on images; notebooks show it as a table.

  Attributes:
    names: the images' paths; numbers from 0 for images without a file.
    logits: float32 [N, K].
    class_names: one for each logit.
    loss: the loss that the head was trained with. After 'sigmoid', each class
      has a probability of its own; otherwise an image's add up to 1.
  """

  names: tuple[str, ...]
  logits: np.ndarray
  class_names: tuple[str, ...]
  loss: str = ''

  def __repr__(self) -> str:
    return self.top(3).to_string(index=False)

  def __len__(self) -> int:
    return len(self.names)

  @property
  def probabilities(self) -> np.ndarray:
    """The probability of each class, float32 [N, K]."""
    logits = np.asarray(self.logits, np.float64)
    if self.loss == 'sigmoid':
      return scipy.special.expit(logits).astype(np.float32)
    return scipy.special.softmax(logits, axis=-1).astype(np.float32)

  @property
  def indices(self) -> np.ndarray:
    """The index of each image's most probable class, int64 [N]."""
    return np.argmax(self.logits, axis=-1)

  @property
  def classes(self) -> list[str]:
    """The name of each image's most probable class."""
    return [self.class_names[i] for i in self.indices]

  def best(self, k: int = 5) -> list[list[dict[str, Any]]]:
    """Returns the k most probable classes of each image, the best first.

    Each is a dict of `class` (its name), `index` and `probability`. There are
    fewer than k if the model has fewer classes.
    """
    order = np.argsort(-self.logits, axis=-1, kind='stable')[:, :k]
    return [
      [
        {'class': self.class_names[i], 'index': i, 'probability': float(row[i])}
        for i in chosen
      ]
      for row, chosen in zip(self.probabilities, order.tolist(), strict=True)
    ]

  def top(self, k: int = 5) -> pd.DataFrame:
    """Returns the k most probable classes of each image as a table.

    Returns:
      One row per image and class, the best class first, with the columns
      `image`, `rank` (from 1), `class`, `index` and `probability`.
    """
    rows = [
      {'image': name, 'rank': rank, **found}
      for name, classes in zip(self.names, self.best(k), strict=True)
      for rank, found in enumerate(classes, start=1)
    ]
    columns = ['image', 'rank', 'class', 'index', 'probability']
    return pd.DataFrame(rows, columns=columns)

  def _repr_html_(self) -> str:
    """Returns a table for notebooks; pandas escapes the names."""
    return self.top(3).to_html(index=False)
