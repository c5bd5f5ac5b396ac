"""From a model's name, as the paper prints it, to the model."""

import dataclasses
import re

import flax.linen as nn
import jax.numpy as jnp

from vit_jax.models import attention, vit

# B, L, H: Table 1 of arXiv:2010.11929. Ti and S: Table 1 of AugReg,
# arXiv:2106.10270. All but H have 64-wide heads.
SIZES = {
  'Ti': {'width': 192, 'depth': 12, 'heads': 3, 'mlp_dim': 768},
  'S': {'width': 384, 'depth': 12, 'heads': 6, 'mlp_dim': 1536},
  # Figure 4's "ViT-B with all hidden dimensions halved". The paper leaves
  # its number of heads open; 64-wide heads as elsewhere make it equal to S.
  'b': {'width': 384, 'depth': 12, 'heads': 6, 'mlp_dim': 1536},
  'B': {'width': 768, 'depth': 12, 'heads': 12, 'mlp_dim': 3072},
  'L': {'width': 1024, 'depth': 24, 'heads': 16, 'mlp_dim': 4096},
  'H': {'width': 1280, 'depth': 32, 'heads': 16, 'mlp_dim': 5120},
}


def _vit_fields(size: str, patch: str) -> dict:
  return {**SIZES[size], 'patch_size': int(patch)}


# Name pattern -> (module, function of the pattern's groups to its fields).
_VIT_PATTERN = rf'ViT-({"|".join(SIZES)})/([1-9]\d*)'
FAMILIES = {_VIT_PATTERN: (vit.ViT, _vit_fields)}

# The paper's ResNets, hybrids and axial models.
_ABSENT = r'(BiT-)?R\d+x\d+|R\d*\+.+|Axial.+'

# Any other patch size works too.
_NAMES = (
  'ViT-Ti/16',
  'ViT-S/32',
  'ViT-S/16',
  'ViT-b/32',
  'ViT-B/32',
  'ViT-B/16',
  'ViT-B/8',
  'ViT-L/32',
  'ViT-L/16',
  'ViT-H/14',
)


def names() -> list[str]:
  """Returns the names of the models in the paper and in AugReg."""
  return list(_NAMES)


def build(name: str, *, num_classes: int, **overrides) -> nn.Module:
  """Builds a model with the fine-tuning head, one zero-initialised layer.

  Args:
    name: one of `names()`, or another `ViT-{size}/{patch}`: a key of `SIZES`
      and the side of a patch in pixels.
    num_classes: number of logits.
    **overrides: attributes of the model, see `vit.ViT`; None keeps the
      variant's own value. `patch_size` may be a side or (height, width),
      `dtype` a name. `representation_size` adds the pre-training head's
      hidden tanh layer (§3.1); 0 leaves it out.

  Returns:
    A module; `module.apply({'params': params}, images, train=False)` gives
    `(logits, out)`.

  Raises:
    ValueError: unknown name or override, or a value that cannot work.
  """
  module, fields = _family(name)
  choices = sorted(
    {field.name for field in dataclasses.fields(module)}
    - {'num_classes', 'parent', 'name'}
  )
  if unknown := sorted(set(overrides) - set(choices)):
    raise ValueError(
      f'{name} has no option {", ".join(unknown)}; its options are '
      f'{", ".join(choices)}.'
    )
  fields |= {k: v for k, v in overrides.items() if v is not None}
  # A command line cannot say None.
  if fields.get('representation_size') == 0:
    del fields['representation_size']
  if isinstance(fields['patch_size'], int):
    fields['patch_size'] = (fields['patch_size'], fields['patch_size'])
  model = module(num_classes=num_classes, **fields)
  _check(model)
  return model


def _family(name: str) -> tuple[type[nn.Module], dict]:
  for pattern, (module, fields_of) in FAMILIES.items():
    if match := re.fullmatch(pattern, name):
      return module, fields_of(*match.groups())
  problem = f'Unknown model {name!r}'
  if re.fullmatch(_ABSENT, name):
    problem = (
      f'{name!r} is not available yet: this version has none of the ResNets, '
      'hybrids and axial models'
    )
  raise ValueError(
    f'{problem}. Available: {", ".join(names())}, and any other '
    f'ViT-SIZE/PATCH with SIZE one of {", ".join(SIZES)} and PATCH the side '
    'of a patch in pixels.'
  )


def _check(model: vit.ViT) -> None:
  if len(model.patch_size) != 2 or min(model.patch_size) < 1:
    raise ValueError(
      f'patch_size is {model.patch_size}, expected a side or (height, width), '
      'each at least 1.'
    )
  for key in (
    'num_classes',
    'width',
    'depth',
    'heads',
    'mlp_dim',
    'representation_size',
  ):
    value = getattr(model, key)
    if value is not None and value < 1:
      raise ValueError(f'{key} is {value}, expected at least 1.')
  attention.head_width(model.width, model.heads)
  if not 0 <= model.dropout_rate < 1:
    raise ValueError(
      f'dropout_rate is {model.dropout_rate}, expected 0 <= rate < 1.'
    )
  dtype = model.dtype
  for key, value, choices in (
    ('pooling', model.pooling, vit.POOLINGS),
    ('remat', model.remat, tuple(vit.REMAT_POLICIES)),
    (
      'dtype',
      dtype if isinstance(dtype, str) else jnp.dtype(dtype).name,
      ('float32', 'bfloat16'),
    ),
  ):
    if value not in choices:
      raise ValueError(
        f'{key} is {value!r}, expected one of {", ".join(choices)}.'
      )
