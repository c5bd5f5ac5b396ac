"""A program in JAX's stable format, for CPUs, NVIDIA GPUs and TPUs at once."""

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import export

from vit_jax.export.program import Program
from vit_jax.runtime import installed

PATH, TOLERANCE = 'model.stablehlo', 1e-5  # See `forms`.
PLATFORMS = ('cpu', 'cuda', 'tpu')


def check(program: Program) -> None:
  """Raises ValueError if the program cannot be written."""
  installed.require('flatbuffers', extra='export')
  program.check_one_file('a StableHLO file')


def write(program: Program, folder: epath.Path) -> None:
  """Writes the program, its weights inside."""
  dimensions = ','.join(map(str, program.input_shape))
  # Smaller images have no pixels left for some layers.
  limits = ['h >= 1', 'w >= 1'] if program.takes_any_size else []
  images = jax.ShapeDtypeStruct(
    export.symbolic_shape(dimensions, constraints=limits), jnp.uint8
  )
  # The program names the files of its source: without the folders, which would
  # tell about the user's machine.
  folders = jax.config.jax_hlo_source_file_canonicalization_regex
  jax.config.update('jax_hlo_source_file_canonicalization_regex', '.*/')
  try:
    exported = export.export(jax.jit(program), platforms=PLATFORMS)(images)
  finally:
    jax.config.update('jax_hlo_source_file_canonicalization_regex', folders)
  (folder / PATH).write_bytes(exported.serialize())


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K]."""
  data = (folder / PATH).read_bytes()
  return np.asarray(export.deserialize(bytearray(data)).call(images))
