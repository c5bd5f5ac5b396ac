"""Saves and restores the training state, and reads its parameters.

A run keeps its states under `WORKDIR/checkpoints/STEP`, and parameters alone
under `WORKDIR/best/STEP` and `WORKDIR/final/STEP`. Orbax gives a directory its
final name only when everything in it is written. Each directory holds digests
of its arrays, so that damage is found before anything is used.
"""

from vit_jax.checkpoint.folders import BEST, DAMAGED, FINAL, FOLDER
from vit_jax.checkpoint.folders import find as find
from vit_jax.checkpoint.folders import latest_step as latest_step
from vit_jax.checkpoint.folders import workdir_of as workdir_of
from vit_jax.checkpoint.reading import read_params, restore_newest
from vit_jax.checkpoint.record import DamagedError, mismatch
from vit_jax.checkpoint.saving import Checkpoints, is_better, save_params

__all__ = [
  'BEST',
  'DAMAGED',
  'FINAL',
  'FOLDER',
  'Checkpoints',
  'DamagedError',
  'find',
  'is_better',
  'latest_step',
  'mismatch',
  'read_params',
  'restore_newest',
  'save_params',
  'workdir_of',
]
