"""A folder that timm loads: `timm.create_model('local-dir:FOLDER')`.

Images are float32 [B, C, height, width], normalised as `config.json` says.
"""

import numpy as np
from etils import epath

from vit_jax import interop
from vit_jax.export import huggingface_folder
from vit_jax.export.program import Program
from vit_jax.interop import families, inference, timm_layouts
from vit_jax.runtime import installed

PATH, TOLERANCE = 'timm', 1e-4  # See `forms`.


def check(program: Program) -> None:
  """Raises ValueError with the reasons why timm lacks the model."""
  installed.require('timm', 'torch', extra='hf')
  _layout(program)
  if program.dtype != 'float32':
    raise ValueError(f'--dtype={program.dtype}: timm folders are float32.')


def _layout(program: Program) -> str:
  loaded = program.loaded
  params = inference.flatten(loaded.params)
  return families.layout_of(loaded.model, params, among=timm_layouts.FAMILIES)


def write(program: Program, folder: epath.Path) -> None:
  """Writes the folder."""
  loaded = program.loaded
  interop.save_huggingface(
    *(folder / PATH, loaded.params, loaded.model, loaded.image_size),
    layout=_layout(program),
    **loaded.described,
  )


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by timm."""
  import timm

  model = timm.create_model(f'local-dir:{folder / PATH}', pretrained=True)
  return huggingface_folder.run(model, folder / PATH, images).numpy()
