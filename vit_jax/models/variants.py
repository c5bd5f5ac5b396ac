"""From a model's name, as the paper prints it, to the model."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from vit_jax.models import axial_resnet, bit, checks, vit

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
# Units of each stage. R26 is AugReg's; the others are in BiT's public code.
RESNETS = {
  '26': (2, 2, 2, 2),
  '50': (3, 4, 6, 3),
  '101': (3, 4, 23, 3),
  '152': (3, 8, 36, 3),
  '200': (3, 24, 36, 3),
}


@dataclasses.dataclass(frozen=True)
class Family:
  """Models whose names have one form.

  Attributes:
    form: of the names, for people.
    pattern: of the names as `paper_name` gives them, a regular expression.
    module: the class.
    fields: from the pattern's groups to the module's attributes.
    names: the members in the paper and in AugReg.
  """

  form: str
  pattern: str
  module: type[nn.Module]
  fields: Callable[..., dict[str, Any]]
  names: tuple[str, ...]


def _vit_fields(size: str, patch: str) -> dict[str, Any]:
  return {**SIZES[size], 'patch_size': int(patch)}


def _axial_fields(size: str, patch: str) -> dict[str, Any]:
  # A grid has no place for a class token.
  return _vit_fields(size, patch) | {'attention': 'axial', 'pooling': 'gap'}


def _hybrid_fields(resnet: str, size: str, downsampling: str) -> dict[str, Any]:
  """The number after the slash is the ResNet's and the patches' together."""
  blocks = RESNETS[resnet]
  if downsampling == '16':
    # §4.1: without stage 4, whose layers go to stage 3.
    blocks = (*blocks[:2], blocks[2] + blocks[3])
  return {**SIZES[size], 'patch_size': 1, 'resnet_blocks': blocks}


def _root_fields(size: str) -> dict[str, Any]:
  # The root halves twice, so that 8x8 patches of it are 32x32 px, not 16x16 as
  # the name has it. The released weights have the 7x7 grid of the former.
  return {**SIZES[size], 'patch_size': 8, 'resnet_blocks': ()}


def _bit_fields(resnet: str, factor: str) -> dict[str, Any]:
  return {'blocks': RESNETS[resnet], 'width_factor': int(factor)}


_SIZE = f'({"|".join(SIZES)})'
_PATCH = r'([1-9]\d*)'
_RESNET = f'({"|".join(RESNETS)})'
FAMILIES = (
  Family(
    'ViT-SIZE/PATCH',
    f'ViT-{_SIZE}/{_PATCH}',
    vit.ViT,
    _vit_fields,
    (
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
    ),
  ),
  Family(
    'R{26,50,101,152,200}+ViT-SIZE/{16,32}',
    rf'R{_RESNET}\+ViT-{_SIZE}/(16|32)',
    vit.ViT,
    _hybrid_fields,
    (
      'R50+ViT-B/32',
      'R50+ViT-B/16',
      'R50+ViT-L/32',
      'R50+ViT-L/16',
      # AugReg's names for its own and for two of the paper's.
      'R26+S/32',
      'R26+B/32',
      'R50+L/32',
      'R50+B/16',
    ),
  ),
  Family(
    'R+SIZE/16',
    rf'R\+ViT-{_SIZE}/16',
    vit.ViT,
    _root_fields,
    ('R+Ti/16',),
  ),
  Family(
    'BiT-R{26,50,101,152,200}xFACTOR',
    f'BiT-R{_RESNET}x{_PATCH}',
    bit.BiT,
    _bit_fields,
    (
      'BiT-R50x1',
      'BiT-R50x2',
      'BiT-R50x3',
      'BiT-R101x1',
      'BiT-R101x3',
      'BiT-R152x1',
      'BiT-R152x2',
      'BiT-R152x4',
      'BiT-R200x3',
    ),
  ),
  Family(
    'Axial-ViT-SIZE/PATCH',
    f'Axial-ViT-{_SIZE}/{_PATCH}',
    vit.ViT,
    _axial_fields,
    ('Axial-ViT-B/32', 'Axial-ViT-B/16'),
  ),
  Family(
    'AxialResNet{26,50,101,152,200}',
    f'AxialResNet{_RESNET}',
    axial_resnet.AxialResNet,
    lambda resnet: {'blocks': RESNETS[resnet]},
    ('AxialResNet50',),
  ),
)


def names() -> list[str]:
  """Returns the names of the models in the paper and in AugReg."""
  return [name for family in FAMILIES for name in family.names]


def paper_name(name: str) -> str:
  """Returns the paper's form of a name, whether there is such a model or not.

  AugReg writes `R26+S/32` for `R26+ViT-S/32`, and Table 6 has no `BiT-`.
  """
  name = re.sub(r'^(R\d*\+)(?!ViT-)', r'\1ViT-', name)
  return re.sub(r'^R(?=\d+x)', 'BiT-R', name)


def options(name: str) -> list[str]:
  """Returns what `build` can override of a model; ValueError if unknown."""
  module, _ = _lookup(name)
  fields = {field.name for field in dataclasses.fields(module)}
  # `patch_outputs` follows from what is trained for: see `masked_patch`.
  return sorted(fields - {'num_classes', 'patch_outputs', 'parent', 'name'})


def build(name: str, *, num_classes: int, **overrides) -> nn.Module:
  """Builds a model with the fine-tuning head, one zero-initialised layer.

  Args:
    name: one of `names()`, or another of the same form: any patch size, any
      size of `SIZES`, any ResNet of `RESNETS`.
    num_classes: number of logits.
    **overrides: attributes of the model, see `vit.ViT`, `bit.BiT` and
      `axial_resnet.AxialResNet`; None keeps the model's own value.
      `patch_size` may be a side or (height, width), `dtype` a name.
      `representation_size` adds the pre-training head's hidden tanh layer
      (§3.1), -1 one as wide as the model; 0 leaves it out.

  Returns:
    A module; `module.apply({'params': params}, images, train=False)` gives
    `(logits, out)`.

  Raises:
    ValueError: unknown name or override, or a value that cannot work.
  """
  module, fields = _lookup(name)
  overrides = {k: v for k, v in overrides.items() if v is not None}
  choices = options(name)
  if unknown := sorted(set(overrides) - set(choices)):
    raise ValueError(
      f'{name} has no option {", ".join(unknown)}; its options are '
      f'{", ".join(choices)}.'
    )
  fields |= overrides
  # A command line cannot say None, nor what another override makes the width.
  if fields.get('representation_size') == 0:
    del fields['representation_size']
  if fields.get('representation_size') == -1:
    fields['representation_size'] = fields['width']
  for key in ('patch_size', 'blocks', 'resnet_blocks'):
    if isinstance(fields.get(key), list):
      fields[key] = tuple(fields[key])  # A module's attributes are hashed.
  # A side, which a command line makes a tuple of one.
  side = fields.get('patch_size')
  if isinstance(side, int):
    fields['patch_size'] = (side, side)
  elif isinstance(side, tuple) and len(side) == 1:
    fields['patch_size'] = side * 2
  model = module(num_classes=num_classes, **fields)
  checks.check(model)
  return model


def _lookup(name: str) -> tuple[type[nn.Module], dict[str, Any]]:
  for family in FAMILIES:
    if match := re.fullmatch(family.pattern, paper_name(name)):
      return family.module, family.fields(*match.groups())
  forms = ', '.join(family.form for family in FAMILIES)
  hint = ''
  if timm := re.fullmatch(r'vit_([a-z]+)_patch(\d+)(?:_.*)?', name):
    size = {'tiny': 'Ti', 'huge': 'H'}.get(timm[1], timm[1][0].upper())
    hint = f" timm's {name} is ViT-{size}/{timm[2]} here."
  raise ValueError(
    f'Unknown model {name!r}.{hint} Available: {", ".join(names())}, and any'
    f' other of the forms {forms}, with SIZE one of {", ".join(SIZES)}, PATCH'
    ' the side of a patch in pixels and FACTOR a multiple of the width.'
  )
