"""Builds models from their names, as the paper prints them, and checks them."""

import ast
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from vit_jax.models import (
  attention,
  axial_resnet,
  position,
  resnet,
  vit,
)
from vit_jax.models.model_options import COMMON, OPTIONS

# B, L, H: Table 1 of arXiv:2010.11929. Ti and S: Table 1 of AugReg,
# arXiv:2106.10270. All but H have 64-wide heads.
SIZES = {
  'Ti': {'width': 192, 'depth': 12, 'heads': 3, 'mlp_dim': 768},
  'S': {'width': 384, 'depth': 12, 'heads': 6, 'mlp_dim': 1536},
  # Figure 4's "ViT-B with all hidden dimensions halved". The paper does not say
  # how many heads it has; 64-wide heads, as elsewhere, make it equal to S.
  'b': {'width': 384, 'depth': 12, 'heads': 6, 'mlp_dim': 1536},
  'B': {'width': 768, 'depth': 12, 'heads': 12, 'mlp_dim': 3072},
  'L': {'width': 1024, 'depth': 24, 'heads': 16, 'mlp_dim': 4096},
  'H': {'width': 1280, 'depth': 32, 'heads': 16, 'mlp_dim': 5120},
  # M, g, G: `decode_variant` of google-research/big_vision, models/vit.py, and
  # Table 2 of arXiv:2106.04560. So400m: SoViT-400m of arXiv:2305.13035. Heads
  # are 64, 88, 104 and 72 wide.
  'M': {'width': 512, 'depth': 12, 'heads': 8, 'mlp_dim': 2048},
  'g': {'width': 1408, 'depth': 40, 'heads': 16, 'mlp_dim': 6144},
  'G': {'width': 1664, 'depth': 48, 'heads': 16, 'mlp_dim': 8192},
  'So400m': {'width': 1152, 'depth': 27, 'heads': 16, 'mlp_dim': 4304},
}
# Units of each stage. R26 is AugReg's; the others are in BiT's public code.
RESNETS = {
  '26': (2, 2, 2, 2),
  '50': (3, 4, 6, 3),
  '101': (3, 4, 23, 3),
  '152': (3, 8, 36, 3),
  '200': (3, 24, 36, 3),
}


def paper_name(name: str) -> str:
  """Returns the paper's form of a name, even if no model has that name.

  AugReg writes `S/16` for `ViT-S/16` and `R26+S/32` for `R26+ViT-S/32`, and
  Table 6 leaves out `BiT-`.
  """
  name = re.sub(r'^(?=\w+/)', 'ViT-', name)
  name = re.sub(r'^(R\d*\+)(?!ViT-)', r'\1ViT-', name)
  return re.sub(r'^R(?=\d+x)', 'BiT-R', name)


@dataclasses.dataclass(frozen=True)
class Family:
  """Models whose names share one form.

  Attributes:
    form: the form of the names, as error messages show it.
    pattern: regular expression of the names as `paper_name` returns them.
    module: the models' class; docs/extend.md says what it must have.
    fields: maps the pattern's groups to the module's attributes.
    names: names of the models in the paper and in AugReg; at least one, by
      which files describe the family's models.
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
  """Returns fields; `downsampling` counts the ResNet and the patches."""
  blocks = RESNETS[resnet]
  if downsampling == '16':
    # §4.1 removes stage 4 and adds its layers to stage 3.
    blocks = (*blocks[:2], blocks[2] + blocks[3])
  return {**SIZES[size], 'patch_size': 1, 'resnet_blocks': blocks}


def _root_fields(size: str) -> dict[str, Any]:
  # The root halves the image twice, so its 8x8 patches cover 32x32 px, not the
  # 16x16 px of the name. The released weights have the 7x7 grid of 32x32 px.
  return {**SIZES[size], 'patch_size': 8, 'resnet_blocks': ()}


def _bit_fields(resnet: str, factor: str) -> dict[str, Any]:
  return {'blocks': RESNETS[resnet], 'width_factor': int(factor)}


_NAMED_SIZE = f'({"|".join(SIZES)})'
_PATCH = r'([1-9]\d*)'
_RESNET = f'({"|".join(RESNETS)})'
FAMILIES = (
  Family(
    'ViT-SIZE/PATCH',
    f'ViT-{_NAMED_SIZE}/{_PATCH}',
    vit.ViT,
    _vit_fields,
    (
      *('ViT-Ti/16', 'ViT-S/32', 'ViT-S/16', 'ViT-b/32', 'ViT-B/32'),
      *('ViT-B/16', 'ViT-B/8', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14'),
    ),
  ),
  Family(
    'R{26,50,101,152,200}+ViT-SIZE/{16,32}',
    rf'R{_RESNET}\+ViT-{_NAMED_SIZE}/(16|32)',
    vit.ViT,
    _hybrid_fields,
    (
      *('R50+ViT-B/32', 'R50+ViT-B/16', 'R50+ViT-L/32', 'R50+ViT-L/16'),
      # AugReg's names for its own and for two of the paper's.
      *('R26+S/32', 'R26+B/32', 'R50+L/32', 'R50+B/16'),
    ),
  ),
  Family(
    'R+SIZE/16',
    rf'R\+ViT-{_NAMED_SIZE}/16',
    vit.ViT,
    _root_fields,
    ('R+Ti/16',),
  ),
  Family(
    'BiT-R{26,50,101,152,200}xFACTOR',
    f'BiT-R{_RESNET}x{_PATCH}',
    resnet.BiT,
    _bit_fields,
    (
      *('BiT-R50x1', 'BiT-R50x2', 'BiT-R50x3', 'BiT-R101x1', 'BiT-R101x3'),
      *('BiT-R152x1', 'BiT-R152x2', 'BiT-R152x4', 'BiT-R200x3'),
    ),
  ),
  Family(
    'Axial-ViT-SIZE/PATCH',
    f'Axial-ViT-{_NAMED_SIZE}/{_PATCH}',
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


def options(name: str) -> list[str]:
  """Returns the options of a model in `build`; ValueError if it is unknown."""
  module, _ = _lookup(name)
  fields = {field.name for field in dataclasses.fields(module)}
  # The training task sets two of them: see `losses.masked_patch`.
  own = {'num_classes', 'patch_outputs', 'decoder', 'parent', 'name'}
  return sorted(fields - own)


def build(name: str, *, num_classes: int, **overrides) -> nn.Module:
  """Builds a model with the fine-tuning head, one zero-initialised layer.

  Args:
    name: one of `names()`, or another name of the same form, with any patch
      size, any size of `SIZES` and any ResNet of `RESNETS`.
    num_classes: number of logits.
    **overrides: attributes of the model, see `vit.ViT`, `resnet.Classifier`
      and `axial_resnet.AxialResNet`; None keeps the model's own value.
      `patch_size`, `kernel_size` and `position_grid` may be a side or (height,
      width), `dtype` a name.
      `representation_size` adds the pre-training head's hidden tanh layer
      (§3.1) of that size; -1 makes it as wide as the model, 0 leaves it out.

  Returns:
    The model, a Flax module. For a dictionary `variables` with the entry
    `params`, `model.apply(variables, images, train=False)` returns
    `(logits, out)`.

  Raises:
    ValueError: the name or an override is unknown, or a value is not allowed.
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
  # A command line cannot give None, and may not know the model's width.
  if fields.get('representation_size') == 0:
    del fields['representation_size']
  if fields.get('representation_size') == -1:
    fields['representation_size'] = fields['width']
  for key, value in fields.items():
    if isinstance(value, list):
      fields[key] = tuple(value)  # Flax hashes a module's attributes.
  for key in ('patch_size', 'kernel_size', 'position_grid'):
    side = fields.get(key)
    if isinstance(side, int):
      fields[key] = (side, side)
    elif isinstance(side, tuple) and len(side) == 1:  # From a command line.
      fields[key] = side * 2
  model = module(num_classes=num_classes, **fields)
  _check(model)
  return model


def parse(spec: str, *, num_classes: int, **defaults) -> nn.Module:
  """Builds the model of a spec such as `ViT-B/16:gelu=exact,patch_size=(8, 4)`.

  Args:
    spec: a name and options of the model, see `build`. A value that
      is not a Python literal is taken as text.
    num_classes: number of logits.
    **defaults: options that the spec may override.

  Raises:
    ValueError: an option has no value, the options include `num_classes`, or
      `build` refuses them.
  """
  name, _, options = spec.partition(':')
  overrides = {}
  # A comma within a value, as in (8, 4), has no KEY= after it.
  for option in filter(None, re.split(r',(?=\w+=)', options)):
    key, equals, value = option.partition('=')
    if not equals:
      raise ValueError(f'{spec}: expected KEY=VALUE, got {option!r}.')
    try:
      overrides[key] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
      overrides[key] = value
  if 'num_classes' in overrides:
    raise ValueError(
      f'{spec}: num_classes is no option here: remove it. It comes from'
      ' --num_classes, or from the head of the weights.'
    )
  return build(name, num_classes=num_classes, **defaults | overrides)


def check_call(model: nn.Module, result: Any, variables: Any) -> None:
  """Checks what a model returns and holds: a user's may do otherwise.

  Args:
    model: the model.
    result: what its call returns, arrays or shapes.
    variables: its variables, arrays or shapes.

  Raises:
    ValueError: other code could not train, save or load such a model.
  """
  what = type(model).__name__
  if not (isinstance(result, tuple) and len(result) == 2):
    raise ValueError(
      f'{what} does not return (logits, out): out is a dictionary of named'
      ' values, such as pre_logits.'
    )
  if others := sorted(variables.keys() - {'params'}):
    raise ValueError(
      f'{what} has the variables {", ".join(others)}, which would not be'
      ' trained or saved: keep all in params, without batch statistics, for'
      ' example with GroupNorm or LayerNorm.'
    )
  layers = variables['params']
  predicts_patches = getattr(model, 'patch_outputs', None) is not None
  if not predicts_patches and {'kernel', 'bias'} - set(layers.get('head', ())):
    raise ValueError(
      f'{what} has the layers {", ".join(layers)}, expected one called head'
      " that makes the logits: nn.Dense(num_classes, name='head'), with a bias."
    )


def _lookup(name: str) -> tuple[type[nn.Module], dict[str, Any]]:
  for family in FAMILIES:
    if match := re.fullmatch(family.pattern, paper_name(name)):
      return family.module, family.fields(*match.groups())
  forms = ', '.join(family.form for family in FAMILIES)
  raise ValueError(
    f'Unknown model {name!r}. Available: {", ".join(names())}, and any'
    f' other of the forms {forms}, with SIZE one of {", ".join(SIZES)}, PATCH'
    ' the side of a patch in pixels and FACTOR a multiple of the width. A model'
    ' of your own is known once its family is added (docs/extend.md).'
  )


def _check(model: nn.Module) -> None:
  """Checks the attributes of a model, apart from what depends on the images.

  A model of the user's is only checked for the attributes that all models
  have, and for `stochastic_depth`, which the config can set, too.

  Raises:
    ValueError: an attribute is not allowed. The message names the attribute,
      its value and the allowed values.
  """
  ours = isinstance(model, (vit.ViT, resnet.Classifier))
  for name in OPTIONS if ours else COMMON:
    value = getattr(model, name, None)
    # None leaves the layer out.
    if value is not None and (wanted := OPTIONS[name].refusal(value)):
      raise ValueError(f'{name} is {value!r:.80}, expected {wanted}.')
  if isinstance(model, vit.ViT):
    _check_vit(model)


def _check_vit(model: vit.ViT) -> None:
  """Raises ValueError if attributes do not fit each other."""
  attention.head_width(model.width, model.heads)
  for does_not_fit, reason in _REFUSED:
    if does_not_fit(model):
      raise ValueError(reason.format(model))


# Attributes of a ViT that do not go together: the test, and what to do.
_REFUSED = (
  (
    lambda m: m.parallel and m.norm_position == 'post',
    'parallel=True means that attention and MLP read the same LayerNorm, but'
    ' norm_position="post" has none before them: choose one of the two.',
  ),
  (
    lambda m: (
      m.position_site != 'stem' and m.position_embedding not in position.ADDED
    ),
    'position_site={0.position_site!r} says where an embedding is added, but '
    'position_embedding={0.position_embedding!r} adds none: leave position_site'
    ' at "stem".',
  ),
  (
    lambda m: (
      m.position_site == 'every_layer'
      and m.position_embedding in position.FIXED
    ),
    'position_embedding={0.position_embedding!r} is fixed, so layers cannot'
    ' learn their own: use position_site="every_layer_shared".',
  ),
  (
    lambda m: m.position_embedding == '2d' and m.width % 2,
    'position_embedding="2d" gives half of the width to x and half to y: '
    'width is {0.width}, expected an even one.',
  ),
  (
    lambda m: (
      m.position_embedding in position.FIXED and (m.width % 4 or m.width < 8)
    ),
    'position_embedding={0.position_embedding!r} gives a quarter of the width'
    ' to each of four waves: width is {0.width}, expected a multiple of 4, at'
    ' least 8.',
  ),
  (
    lambda m: m.rotary and m.relative,
    'rotary={0.rotary!r} and position_embedding={0.position_embedding!r} both'
    ' change the scores: use position_embedding="1d" or "none".',
  ),
  (
    lambda m: m.rotary and m.width // m.heads % 4,
    'rotary={0.rotary!r} gives a quarter of each head to the sines and cosines'
    ' of x and of y: width {0.width} / heads {0.heads} is no multiple of 4;'
    ' change one of the two.',
  ),
  (
    lambda m: m.rotary_base and not m.rotary,
    'rotary_base={0.rotary_base} has no effect without rotary: set that to'
    ' "axial", "mixed" or "dinov3", or leave both unset.',
  ),
  (
    lambda m: m.rotary_registers and m.rotary != 'axial',
    'rotary_registers={0.rotary_registers} needs rotary="axial", but that is'
    ' {0.rotary!r}: leave rotary_registers unset.',
  ),
  (
    lambda m: m.rotary_registers and (m.registers**0.5 % 1 or not m.registers),
    'rotary_registers={0.rotary_registers} turns registers by their places on a'
    ' square: set registers={0.registers} to 1, 4, 9 or so.',
  ),
  (
    lambda m: m.attention == 'axial' and m.num_prefix_tokens,
    'attention="axial" works on a grid, in which a class token and registers'
    ' have no place: set pooling to "gap" or "map", and registers to 0.',
  ),
  (
    lambda m: m.relative and (m.registers or m.distillation_token),
    'position_embedding={0.position_embedding!r} numbers the tokens; registers'
    ' and a distillation token have no number: use "1d", or leave them out.',
  ),
  (
    lambda m: m.distillation_token and m.pooling != 'token',
    'distillation_token=True needs pooling="token", not {0.pooling!r}.',
  ),
  (
    lambda m: m.distillation_token and m.representation_size,
    'distillation_token=True has two heads of one layer: set'
    ' representation_size={0.representation_size} to 0.',
  ),
  (
    lambda m: (
      m.final_norm == 'pooled'
      and (m.distillation_token or m.norm_position == 'post')
    ),
    'final_norm="pooled" is neither for a distillation token nor for'
    ' norm_position="post", which has no last norm: leave it at "tokens".',
  ),
  (
    lambda m: (m.image_mean is None) != (m.image_std is None),
    'image_mean={0.image_mean} and image_std={0.image_std} belong together: set'
    ' both, or leave both unset.',
  ),
  (
    lambda m: m.final_norm == 'pooled' and m.pooling == 'token_gap',
    'final_norm="pooled" is not for pooling="token_gap", which is twice as'
    ' wide: leave it at "tokens".',
  ),
  (
    lambda m: m.position_grid and m.position_embedding not in position.ADDED,
    'position_grid={0.position_grid} is of an embedding that is added, which'
    ' position_embedding={0.position_embedding!r} is not: leave it unset.',
  ),
)
