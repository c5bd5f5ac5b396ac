"""A folder that timm loads: `timm.create_model('local-dir:FOLDER')`.

Its `model.safetensors` also suits `timm.create_model('vit_base_patch16_224',
checkpoint_path=...)`. Images are float32 [B, C, height, width] in [-1, 1].
"""

import math
import tempfile
from typing import Any

import numpy as np
from etils import epath

from vit_jax import interop
from vit_jax.export import huggingface_folder
from vit_jax.export.program import Program
from vit_jax.interop import huggingface
from vit_jax.runtime import installed

PATH, TOLERANCE = 'timm', 1e-4  # See `forms`.
_EPSILON = 1e-6  # Of every norm in timm's ViTs.
# Its arguments say all sizes.
_ARCHITECTURE = 'vit_base_patch16_224'


def check(program: Program) -> None:
  """Raises ValueError with the reasons why timm lacks the model."""
  installed.require('timm', 'torch', extra='hf')
  model = program.loaded.model
  # timm lacks what transformers lacks, but for the mean of the tokens.
  with_mean = getattr(model, 'pooling', '') == 'gap'
  huggingface.check_savable(
    model.clone(pooling='token') if with_mean else model
  )
  if model.norm_epsilon != _EPSILON:
    raise ValueError(
      f'norm_epsilon={model.norm_epsilon}: that of timm is {_EPSILON}.'
    )
  if not model.qkv_bias:
    raise ValueError('qkv_bias=False: timm reads weights with biases.')
  if program.dtype != 'float32':
    raise ValueError(f'--dtype={program.dtype}: timm folders are float32.')


def write(program: Program, folder: epath.Path) -> None:
  """Writes the folder."""
  import timm

  loaded, arguments = program.loaded, _arguments(program)
  model = timm.create_model(
    _ARCHITECTURE, num_classes=loaded.model.num_classes, **arguments
  )
  cfg = {
    'input_size': [program.loaded.channels, *loaded.image_size],
    'interpolation': 'bilinear',
    'crop_pct': 1.0,
    'mean': [0.5] * program.loaded.channels,
    'std': [0.5] * program.loaded.channels,
    # Those of the weights that timm has for this architecture.
    **{'tag': '', 'license': ''},
  }
  names = list(loaded.class_names)
  with tempfile.TemporaryDirectory() as temporary:
    weights = epath.Path(temporary, 'a.npz')
    # timm reads files with the released files' names.
    interop.save_npz(
      weights, loaded.params, loaded.model, image_size=loaded.image_size
    )
    model.load_pretrained(str(weights))
  timm.models.save_for_hf(
    model,
    str(folder / PATH),
    model_config={'pretrained_cfg': cfg, 'label_names': names},
    model_args=arguments,
    safe_serialization=True,
  )


def _arguments(program: Program) -> dict[str, Any]:
  """Returns the arguments of timm's VisionTransformer."""
  model = program.loaded.model
  arguments = {
    'img_size': list(program.loaded.image_size),
    'patch_size': list(model.patch_size),
    'in_chans': program.loaded.channels,
    'embed_dim': model.width,
    'depth': model.depth,
    'num_heads': model.heads,
    'mlp_ratio': _ratio(model.mlp_dim, model.width),
    'act_layer': 'gelu' if model.gelu == 'exact' else 'gelu_tanh',
  }
  if model.pooling == 'gap':
    # Our norm comes before the mean, and there is no class token.
    arguments |= {'global_pool': 'avg', 'class_token': False, 'fc_norm': False}
  return arguments


def _ratio(mlp_dim: int, width: int) -> float:
  """Returns the ratio from which timm gets mlp_dim: it truncates a product."""
  ratio = mlp_dim / width
  return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, 9e9)


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by timm."""
  import timm

  model = timm.create_model(f'local-dir:{folder / PATH}', pretrained=True)
  return huggingface_folder.run(model, images).numpy()
