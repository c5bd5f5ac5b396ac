"""The families of files: the one place that knows their layouts.

A family is one declaration: rules for the names and shapes of its arrays, which
work both ways; how its `config.json` maps to `models.build`; and how images
were prepared for it. See `layouts.Family`.
"""

from collections.abc import Mapping

import flax.linen as nn
import numpy as np

from vit_jax.interop import timm_layouts, transformers_layouts
from vit_jax.interop.layouts import Arrays, Family, Rule, unstack
from vit_jax.interop.transformers_layouts import CLS, POSITION

# Prefixes under which some code bases keep the parameters.
_PREFIXES = ('opt/target/', 'params/img/', 'params/', 'img/', 'target/')
# Every model has one of these arrays.
_ANCHORS = ('embedding/kernel', 'conv_root/kernel', 'head/kernel')

_IN_BLOCK = 'Transformer/encoderblock{at}/'

# The released ViTs and hybrids, from a Flax older than Linen, which numbers the
# layers of a block across classes. Files since then have our names.
RELEASED = Family(
  rules=(
    *(
      Rule(f'{_IN_BLOCK}{old}/{{leaf}}', f'{_IN_BLOCK}{new}/{{leaf}}')
      for old, new in (
        ('MultiHeadDotProductAttention_1', 'MultiHeadDotProductAttention_0'),
        ('LayerNorm_2', 'LayerNorm_1'),
        ('MlpBlock_3', 'MlpBlock_0'),
      )
    ),
    Rule('{at}gn{n}/{leaf}', '{at}gn{n}/{leaf}', 'vector'),
    Rule(POSITION, POSITION),
  ),
  aliases=((r'^(Transformer/)?pos_embedding$', POSITION),),
)

# BiT's names are TensorFlow's.
_UNIT, _OUR_UNIT = 'resnet/block{i}/unit{j:02}', 'block{i}/unit{j}'
_CONV = 'standardized_conv2d/kernel'
BIT = Family(
  rules=(
    Rule(f'resnet/root_block/{_CONV}', 'conv_root/kernel'),
    Rule('resnet/head/conv2d/kernel', 'head/kernel', 'one_pixel'),
    Rule('resnet/head/conv2d/bias', 'head/bias'),
    Rule(f'{_UNIT}/a/proj/{_CONV}', f'{_OUR_UNIT}/conv_proj/kernel'),
    *(
      Rule(f'{_UNIT}/{part}/{_CONV}', f'{_OUR_UNIT}/conv{n}/kernel')
      for n, part in enumerate('abc', 1)
    ),
    *(
      Rule(f'{theirs}/group_norm/{leaf}', f'{ours}/{our_leaf}')
      for theirs, ours in (
        ('resnet', 'gn_final'),
        (f'{_UNIT}/a', f'{_OUR_UNIT}/gn1'),
        (f'{_UNIT}/b', f'{_OUR_UNIT}/gn2'),
        (f'{_UNIT}/c', f'{_OUR_UNIT}/gn3'),
      )
      for leaf, our_leaf in (('gamma', 'scale'), ('beta', 'bias'))
    ),
  ),
  # Some files number the layers: `standardized_conv2d_3`.
  aliases=((r'/(standardized_conv2d|group_norm)_\d+/', r'/\1/'),),
)

# Of transformers by its `model_type`, and of timm.
OTHERS = transformers_layouts.FAMILIES | timm_layouts.FAMILIES


def layout_of(
  model: nn.Module,
  params: Arrays,
  *,
  among: Mapping[str, Family] = OTHERS,
) -> str:
  """Returns the first layout that has a model.

  Args:
    model: from `models.build`.
    params: its flat parameters, with or without a head.
    among: the layouts, some of `OTHERS`.

  Raises:
    ValueError: there is none. The message says what is closest.
  """
  has_head = 'head/kernel' in params
  unlike = {
    name: family.unlike(model, has_head=has_head)
    + [b for m in family.no_bias if np.any(params.get(b := f'{m}/bias', 0))]
    for name, family in among.items()
  }
  closest = min(unlike, key=lambda name: len(unlike[name]))
  if unlike[closest]:
    raise ValueError(
      'No layout of others can express this model; the closest one,'
      f' {closest}, has none with {", ".join(unlike[closest])}. Save it'
      ' as .npz instead.'
    )
  return closest


def check(layout: str, model: nn.Module, *, has_head: bool) -> None:
  """Raises ValueError with all reasons why a layout lacks a model."""
  if layout not in OTHERS:
    raise ValueError(
      f'layout={layout!r} is unknown; known are {", ".join(OTHERS)}.'
    )
  if reasons := OTHERS[layout].unlike(model, has_head=has_head):
    raise ValueError(
      f'The layout {layout} cannot express this model: it has'
      f' {", ".join(reasons)}. Choose another layout, or save it as .npz.'
    )


# ---- Released files ----------------------------------------------------------


def from_released(arrays: Arrays) -> dict[str, np.ndarray]:
  """Renames a file's arrays to ours, in the layout without `scan`.

  Args:
    arrays: name -> array of a released or similar file. Names may be those
      before or since Linen, or BiT's; blocks may be stacked along their first
      axis. If parameters have a prefix, such as `params/` or `opt/target/`, all
      other arrays are left out. The position embedding has one of three names;
      if it lacks a row for the class token, it gets zeros, which is exact.

  Returns:
    Our name -> array. Unknown names stay, for the caller to refuse.

  Raises:
    ValueError: two names of the file mean the same array.
  """
  arrays, _ = parameters(arrays)
  if any(name.startswith('resnet/') for name in arrays):
    return BIT.read(arrays)
  table = arrays.get('pos_embedding')
  if table is not None and table.ndim == 3 and CLS in arrays:
    # That code adds nothing to the class token. [1, N, D] -> [1, 1 + N, D]
    arrays['pos_embedding'] = np.pad(table, ((0, 0), (1, 0), (0, 0)))
  return RELEASED.read(unstack(arrays))


def to_released(params: Arrays) -> dict[str, np.ndarray]:
  """Inverts `from_released`: the names of the ViT and BiT release buckets.

  Args:
    params: our name -> array, blocks stacked or not.
  """
  if 'gn_final/scale' in params:
    return BIT.write(params)
  return RELEASED.write(unstack(params))


def parameters(
  arrays: Arrays,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Strips the prefix of a file's parameters, and leaves out other arrays.

  Returns:
    Name -> array (all arrays if there is no prefix), and the names left out,
    such as the optimizer's state, counters, or another tower.
  """
  for prefix in _PREFIXES:
    if any(prefix + anchor in arrays for anchor in _ANCHORS):
      own = [name for name in arrays if name.startswith(prefix)]
      params = {name.removeprefix(prefix): arrays[name] for name in own}
      return params, tuple(sorted(arrays.keys() - {*own}))
  return dict(arrays), ()
