"""Reads and writes weights: released `.npz` files, Hugging Face, checkpoints.

    params, report = interop.load('augreg/B_16', model, 384, new_head=True)
    interop.save_npz('b16.npz', params, model, image_size=384)

`catalog` finds the released files by name. `python -m vit_jax.convert` offers
the same from the command line.
"""

from vit_jax.interop.fitting import Report, fit
from vit_jax.interop.huggingface_export import save_huggingface
from vit_jax.interop.inference import infer_model
from vit_jax.interop.npz import save_npz
from vit_jax.interop.sources import (
  check_weights,
  fit_weights,
  load,
  load_huggingface,
  load_npz,
  locate,
  read,
)
from vit_jax.interop.weights import Weights

__all__ = [
  'Report',
  'Weights',
  'check_weights',
  'fit',
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
