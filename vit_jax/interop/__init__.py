"""Reads and writes weights: released `.npz` files, Hugging Face, checkpoints.

    params, report = interop.load('augreg/B_16', model, 384, new_head=True)
    interop.save_npz('b16.npz', params, model, image_size=384)

`catalog` finds the released files by name. `python -m vit_jax.convert` offers
the same from the command line.
"""

from vit_jax.interop.inference import infer_model
from vit_jax.interop.saving import save_huggingface, save_npz
from vit_jax.interop.sources import (
  fit_weights,
  load,
  load_huggingface,
  load_npz,
  locate,
  read,
)
from vit_jax.interop.weight_files import Weights

__all__ = [
  'Weights',
  'fit_weights',
  'infer_model',
  'load',
  'load_huggingface',
  'load_npz',
  'locate',
  'read',
  'save_huggingface',
  'save_npz',
]
