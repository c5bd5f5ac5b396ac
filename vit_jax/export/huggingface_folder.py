"""A folder that transformers loads, with a model card."""

import dataclasses
from typing import Any

import numpy as np
from etils import epath

from vit_jax import interop
from vit_jax.export import card
from vit_jax.export.program import Program
from vit_jax.interop import families, inference, transformers_layouts
from vit_jax.models.shared import normalize, standardize
from vit_jax.runtime import installed

PATH, TOLERANCE = 'huggingface', 1e-4  # See `forms`.


def check(program: Program) -> None:
  """Raises ValueError if transformers lacks the model."""
  installed.require('transformers', 'torch', extra='hf')
  params = inference.flatten(program.loaded.params)
  families.layout_of(
    program.loaded.model, params, among=transformers_layouts.FAMILIES
  )
  if program.dtype != 'float32':
    raise ValueError(
      f'--dtype={program.dtype}: Hugging Face folders and what is made of them'
      ' are float32. Export them on their own.'
    )


def write(program: Program, folder: epath.Path) -> None:
  """Writes the folder."""
  # Not in timm's, which the weights may come from.
  loaded = dataclasses.replace(program.loaded, layout='')
  interop.save_huggingface(
    *(folder / PATH, loaded.params, loaded.model, loaded.image_size),
    **loaded.described,
  )
  card.write(folder / PATH, loaded)


def load(folder: epath.Path) -> Any:
  """Returns the model of transformers, for float images [B, C, H, W]."""
  import transformers

  return transformers.AutoModelForImageClassification.from_pretrained(
    folder / PATH
  )


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by transformers."""
  return run(load(folder), folder / PATH, images).logits.numpy()


def run(model: Any, folder: epath.Path, images: np.ndarray) -> Any:
  """Returns what a model of PyTorch makes of uint8 images [B, H, W, C].

  Args:
    model: the model in the folder.
    folder: says how images are normalised.
    images: the images.
  """
  import torch

  of = interop.read(folder).model
  pixels = standardize(normalize(images), of.image_mean, of.image_std)
  pixels = np.array(pixels).transpose(0, 3, 1, 2)
  with torch.no_grad():
    return model.eval()(torch.tensor(pixels))
