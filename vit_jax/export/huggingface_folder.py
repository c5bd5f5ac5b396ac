"""A folder that transformers loads, with a model card."""

from typing import Any

import numpy as np
from etils import epath

from vit_jax import interop
from vit_jax.export import card
from vit_jax.export.program import Program
from vit_jax.interop import huggingface
from vit_jax.models.shared import normalize
from vit_jax.runtime import installed

PATH, TOLERANCE = 'huggingface', 1e-4  # See `forms`.


def check(program: Program) -> None:
  """Raises ValueError if transformers lacks the model."""
  installed.require('transformers', 'torch', extra='hf')
  huggingface.check_savable(program.loaded.model)
  if program.dtype != 'float32':
    raise ValueError(
      f'--dtype={program.dtype}: Hugging Face folders and what is made of them'
      ' are float32. Export them on their own.'
    )


def write(program: Program, folder: epath.Path) -> None:
  """Writes the folder."""
  loaded = program.loaded
  interop.save_huggingface(
    *(folder / PATH, loaded.params, loaded.model, loaded.image_size),
    **loaded.described,
  )
  card.write(folder / PATH, loaded)


def load(folder: epath.Path) -> Any:
  """Returns the model of transformers, for float images [B, C, H, W]."""
  import transformers

  return transformers.ViTForImageClassification.from_pretrained(folder / PATH)


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by transformers."""
  return run(load(folder), images).logits.numpy()


def run(model: Any, images: np.ndarray) -> Any:
  """Returns what a model of PyTorch makes of uint8 images [B, H, W, C]."""
  import torch

  pixels = np.asarray(normalize(images)).transpose(0, 3, 1, 2)
  with torch.no_grad():
    return model.eval()(torch.tensor(pixels))
