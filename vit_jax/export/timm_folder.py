"""A folder that timm loads: `timm.create_model('local-dir:FOLDER')`.

Its `model.safetensors` also suits `timm.create_model('vit_base_patch16_224',
checkpoint_path=...)`. Images are float32 [B, C, height, width] in [-1, 1].
"""

import math
from typing import Any

import numpy as np
from etils import epath

from vit_jax.export import huggingface_folder
from vit_jax.export.program import Program
from vit_jax.interop import arrays, families, fitting, inference, weight_files
from vit_jax.models import vit
from vit_jax.models.shared import normalize
from vit_jax.runtime import installed

FOLDER = 'timm'
WEIGHTS, CONFIG = 'model.safetensors', 'config.json'
_EPSILON = 1e-6  # Of every norm in timm's ViTs.
# timm's models of the paper's sizes, by (width, patch size).
_NAMES = {
  (192, 16): 'vit_tiny_patch16_224',
  (384, 8): 'vit_small_patch8_224',
  (384, 16): 'vit_small_patch16_224',
  (384, 32): 'vit_small_patch32_224',
  (768, 8): 'vit_base_patch8_224',
  (768, 16): 'vit_base_patch16_224',
  (768, 32): 'vit_base_patch32_224',
  (1024, 14): 'vit_large_patch14_224',
  (1024, 16): 'vit_large_patch16_224',
  (1024, 32): 'vit_large_patch32_224',
  (1280, 14): 'vit_huge_patch14_224',
}


def check(program: Program) -> None:
  """Raises ValueError with all reasons why timm lacks the model."""
  installed.require('timm', 'torch', extra='hf')
  model, reasons = program.subject.model, []
  if not isinstance(model, vit.ViT):
    reasons = ['it is no Vision Transformer']
  else:
    expected = {
      'resnet_blocks': (None,),
      'representation_size': (None,),
      'pooling': ('token', 'gap'),
      'attention': ('full',),
      'position_embedding': ('1d',),
      'position_site': ('stem',),
      'norm_epsilon': (_EPSILON,),
      'norm_position': ('pre',),
      'parallel': (False,),
      'qk_norm': (False,),
      'qkv_bias': (True,),
      'norm_bias': (True,),
    }
    reasons = [
      f'{key}={getattr(model, key)!r}'
      for key, accepted in expected.items()
      if getattr(model, key) not in accepted
    ]
  if program.dtype != 'float32':
    reasons.append(f'--dtype={program.dtype}: timm folders are float32')
  if reasons:
    raise ValueError(
      f"timm's vision_transformer cannot express this: {'; '.join(reasons)}."
      ' timm loads hybrids and BiT ResNets from .npz files of vit_jax.convert.'
    )


def write(program: Program, folder: epath.Path) -> dict[str, Any]:
  """Writes the folder; returns the name of timm's model, and its arguments."""
  subject, model = program.subject, program.subject.model
  flat = inference.flatten(subject.params)
  fitting.check_params(flat, model, subject.image_size)
  to = folder / FOLDER
  to.mkdir(parents=True, exist_ok=True)
  arrays.write_safetensors(to / WEIGHTS, families.TIMM.write(flat))
  height, width = model.patch_size
  name = _NAMES.get((model.width, height)) if height == width else None
  described = {
    'architecture': name or 'vit_base_patch16_224',
    'num_classes': model.num_classes,
    'num_features': model.width,
    'global_pool': 'token' if model.pooling == 'token' else 'avg',
    'model_args': _arguments(program),
  }
  weight_files.write_json(
    to / CONFIG,
    {
      **described,
      **(
        {'label_names': list(subject.class_names)}
        if subject.class_names
        else {}
      ),
      'pretrained_cfg': {
        'custom_load': False,
        'input_size': [program.channels, *subject.image_size],
        'fixed_input_size': True,
        'interpolation': 'bilinear',
        'crop_pct': 1.0,
        'mean': [0.5] * program.channels,
        'std': [0.5] * program.channels,
        'num_classes': model.num_classes,
        'first_conv': 'patch_embed.proj',
        'classifier': 'head',
      },
    },
  )
  return {
    **{key: described[key] for key in ('architecture', 'model_args')},
    'input': huggingface_folder.INPUT,
  }


def _arguments(program: Program) -> dict[str, Any]:
  """Returns the arguments of timm's VisionTransformer."""
  model = program.subject.model
  arguments = {
    'img_size': list(program.subject.image_size),
    'patch_size': list(model.patch_size),
    'in_chans': program.channels,
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
  import torch

  model = timm.create_model(f'local-dir:{folder / FOLDER}', pretrained=True)
  pixels = np.asarray(normalize(images)).transpose(0, 3, 1, 2)
  with torch.no_grad():
    return model.eval()(torch.tensor(pixels)).numpy()
