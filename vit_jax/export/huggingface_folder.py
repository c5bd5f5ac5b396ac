"""A folder that transformers loads, with a model card."""

from typing import Any

import numpy as np
from etils import epath

from vit_jax.export import card
from vit_jax.export.program import Program
from vit_jax.interop import huggingface, saving
from vit_jax.models.shared import normalize
from vit_jax.runtime import installed

PATH, TOLERANCE = 'huggingface', 1e-4  # See `forms`.
# Of the models in the folder; the other forms take uint8 pixels.
INPUT = 'float32 [batch, channels, height, width] in [-1, 1]'


def check(program: Program) -> None:
  """Raises ValueError if transformers lacks the model."""
  installed.require('transformers', 'torch', extra='hf')
  huggingface.check_savable(program.loaded.model)
  if program.dtype != 'float32':
    raise ValueError(
      f'--dtype={program.dtype}: Hugging Face folders and what is made of them'
      ' are float32. Export them on their own.'
    )


def write(program: Program, folder: epath.Path) -> dict[str, Any]:
  """Writes the folder."""
  loaded = program.loaded
  prepared = loaded.preprocess
  about = {
    'image_size': loaded.image_size,
    'preprocessing': prepared.text,
    'decoding': {'upright': prepared.upright, 'jpeg_dct': prepared.jpeg_dct},
  }
  saving.save_huggingface(
    folder / PATH,
    loaded.params,
    loaded.model,
    class_names=loaded.class_names,
    loss=loaded.loss,
    **about,
  )
  card.write(
    folder / PATH,
    loaded.model,
    loaded.origin,
    channels=program.channels,
    **about,
  )
  return {'class': 'ViTForImageClassification', 'input': INPUT}


def load(folder: epath.Path) -> Any:
  """Returns the model of transformers, for float images [B, C, H, W]."""
  import transformers

  return transformers.ViTForImageClassification.from_pretrained(
    folder / PATH
  ).eval()


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by transformers."""
  import torch

  pixels = np.asarray(normalize(images)).transpose(0, 3, 1, 2)
  with torch.no_grad():
    return load(folder)(torch.tensor(pixels)).logits.numpy()
