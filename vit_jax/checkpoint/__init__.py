"""Saves and restores the training state, and reads its parameters.

A run keeps its states under `WORKDIR/checkpoints/STEP`, and parameters alone
under `WORKDIR/best/STEP` and `WORKDIR/final/STEP`. Orbax gives a directory its
final name only when everything in it is written. Each directory holds digests
of its arrays, so that damage is found before anything is used.
"""

from vit_jax.checkpoint.folders import BEST as BEST
from vit_jax.checkpoint.folders import DAMAGED as DAMAGED
from vit_jax.checkpoint.folders import FINAL as FINAL
from vit_jax.checkpoint.folders import FOLDER as FOLDER
from vit_jax.checkpoint.folders import find as find
from vit_jax.checkpoint.folders import latest_step as latest_step
from vit_jax.checkpoint.folders import workdir_of as workdir_of
from vit_jax.checkpoint.reading import read_params as read_params
from vit_jax.checkpoint.reading import restore as restore
from vit_jax.checkpoint.reading import restore_newest as restore_newest
from vit_jax.checkpoint.reading import verify as verify
from vit_jax.checkpoint.record import DamagedError as DamagedError
from vit_jax.checkpoint.record import digests as digests
from vit_jax.checkpoint.record import mismatch as mismatch
from vit_jax.checkpoint.saving import Checkpoints as Checkpoints
from vit_jax.checkpoint.saving import is_better as is_better
from vit_jax.checkpoint.saving import save_params as save_params
