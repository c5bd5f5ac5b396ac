"""Maps names and shapes of the released checkpoints to ours, and back.

The released ViT and hybrid files come from a Flax older than Linen, which
numbers the layers of a block across classes (`LayerNorm_0`, `LayerNorm_2`,
`MlpBlock_3` and `MultiHeadDotProductAttention_1`). BiT's files have TensorFlow
names. Both, and files of later code bases, map one to one to our parameters.
Our names are flat here: `Transformer/encoder_norm/scale`.

Arrays may be anything with NumPy's interface; none is changed in place.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]

CLS = 'cls'
POSITION = 'Transformer/posembed_input/pos_embedding'
_FINAL_NORM = 'Transformer/encoder_norm/scale'

# Prefixes under which some code bases keep the parameters.
_PREFIXES = ('opt/target/', 'params/img/', 'params/', 'img/', 'target/')
# Every model has one of these arrays.
_ANCHORS = ('embedding/kernel', 'conv_root/kernel', 'head/kernel')

# Layers in an encoder block: our name -> the name before Linen.
_PRE_LINEN = {
  'MultiHeadDotProductAttention_0': 'MultiHeadDotProductAttention_1',
  'LayerNorm_1': 'LayerNorm_2',
  'MlpBlock_0': 'MlpBlock_3',
}
_LINEN = {old: new for new, old in _PRE_LINEN.items()}
# Most elements of a table that is computed with (1 GiB). A small file may claim
# any size.
LARGEST_TABLE = 2**28
# Most stacked blocks that are split; a small file could claim millions.
_DEEPEST = 1000
_IN_BLOCK = re.compile(r'Transformer/encoderblock(_\d+)?/')

# BiT's layers -> ours, outside of units and within a unit.
_BIT_LAYERS = {
  'root_block/standardized_conv2d': 'conv_root',
  'group_norm': 'gn_final',
  'head/conv2d': 'head',
}
_BIT_UNIT_LAYERS = {
  'a/group_norm': 'gn1',
  'a/standardized_conv2d': 'conv1',
  'a/proj/standardized_conv2d': 'conv_proj',
  'b/group_norm': 'gn2',
  'b/standardized_conv2d': 'conv2',
  'c/group_norm': 'gn3',
  'c/standardized_conv2d': 'conv3',
}
_BIT_LEAVES = {'gamma': 'scale', 'beta': 'bias'}  # Parameters of norms.


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
    params = renamed(arrays, _from_bit)
    kernel = params.get('head/kernel')
    if np.ndim(kernel) == 4 and kernel.shape[:2] == (1, 1):
      params['head/kernel'] = kernel[0, 0]  # A 1x1 convolution.
    return params
  arrays = unstack(arrays)
  if any(_is_pre_linen(name) for name in arrays):
    arrays = renamed(arrays, lambda name: _in_blocks(name, _LINEN))
  arrays = _with_position(arrays)
  return {name: _squeezed(name, array) for name, array in arrays.items()}


def norm_position(params: Arrays) -> str:
  """Returns the `norm_position` of a ViT's parameters; '' for other models.

  Args:
    params: by our names.
  """
  if not any(name.startswith('Transformer/') for name in params):
    return ''
  return 'pre' if _FINAL_NORM in params else 'post'


def to_released(params: Arrays) -> dict[str, np.ndarray]:
  """Inverts `from_released`: the names of the ViT and BiT release buckets.

  Args:
    params: our name -> array, blocks stacked or not.

  Returns:
    The file's name -> array. The shapes are ours, except BiT's head kernel
    [1, 1, 2048w, K] for width factor w and K classes.
  """
  if 'gn_final/scale' in params:
    arrays = renamed(params, _to_bit)
    kernel = 'resnet/head/conv2d/kernel'
    return arrays | {kernel: arrays[kernel][None, None]}
  return renamed(unstack(params), lambda name: _in_blocks(name, _PRE_LINEN))


def unstack(arrays: Arrays) -> dict[str, np.ndarray]:
  """Splits `Transformer/encoderblock/...` [depth, ...] into blocks.

  Raises:
    ValueError: the same block is also there unstacked.
  """
  stacked = 'Transformer/encoderblock/'
  result = {}
  for name, array in arrays.items():
    if name.startswith(stacked) and array.ndim and array.shape[0] <= _DEEPEST:
      rest = name.removeprefix(stacked)
      blocks = {
        f'Transformer/encoderblock_{i}/{rest}': array[i]
        for i in range(array.shape[0])
      }
    else:
      blocks = {name: array}
    if twice := sorted(blocks.keys() & result.keys()):
      raise ValueError(
        f'{twice[0]} is there twice, alone and stacked with other blocks: the'
        ' file mixes two naming schemes.'
      )
    result |= blocks
  return result


def stack(arrays: Arrays) -> dict[str, np.ndarray]:
  """Inverts `unstack`: the parameters of a model with `scan=True`."""
  result, blocks = {}, {}
  for name, array in arrays.items():
    if match := re.match(r'Transformer/encoderblock_(\d+)/', name):
      rest = name[match.end() :]
      blocks.setdefault(rest, {})[int(match[1])] = array
    else:
      result[name] = array
  for rest, array in blocks.items():
    result[f'Transformer/encoderblock/{rest}'] = np.stack(
      [array[i] for i in sorted(array)]
    )
  return result


def parameters(
  arrays: Arrays,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Strips the prefix of a file's parameters, and leaves out other arrays.

  Returns:
    Name -> array (all arrays if there is no prefix), and the names left out,
    such as the optimizer's state, counters, or another tower.

  Raises:
    ValueError: an array is there both with the prefix and without.
  """
  for prefix in _PREFIXES:
    if any(prefix + anchor in arrays for anchor in _ANCHORS):
      break
  else:
    return dict(arrays), ()
  others = {k: v for k, v in arrays.items() if not k.startswith(prefix)}
  both = renamed(arrays, lambda name: name.removeprefix(prefix))
  found = {k: v for k, v in both.items() if k not in others}
  return found, tuple(sorted(others))


def renamed(
  arrays: Arrays, rename: Callable[[str], str]
) -> dict[str, np.ndarray]:
  """Renames arrays; ValueError if two get the same name."""
  result, origin = {}, {}
  for name, array in arrays.items():
    new = rename(name)
    if new in result:
      raise ValueError(
        f'{origin[new]} and {name} are both {new}: the file mixes two naming'
        ' schemes.'
      )
    result[new], origin[new] = array, name
  return result


def _is_pre_linen(name: str) -> bool:
  return bool(_IN_BLOCK.match(name)) and not _LINEN.keys().isdisjoint(
    name.split('/')
  )


def _in_blocks(name: str, layers: Mapping[str, str]) -> str:
  """Renames layers in encoder blocks only: `MAPHead_0` was never renumbered."""
  if not _IN_BLOCK.match(name):
    return name
  return '/'.join(layers.get(part, part) for part in name.split('/'))


def _with_position(arrays: Arrays) -> dict[str, np.ndarray]:
  arrays = dict(arrays)
  for name, has_cls_row in (
    ('Transformer/pos_embedding', True),
    ('pos_embedding', False),
  ):
    if name not in arrays:
      continue
    if POSITION in arrays:
      raise ValueError(
        f'{name} and {POSITION} are both the position embedding: the file'
        ' mixes two naming schemes.'
      )
    table = arrays.pop(name)
    is_table = table.ndim == 3 and table.size <= LARGEST_TABLE
    if CLS in arrays and not has_cls_row and is_table:
      zeros = np.zeros_like(table[:, :1])  # That code adds nothing to cls.
      table = np.concatenate([zeros, table], axis=1)  # [1, 1 + N, D]
    arrays[POSITION] = table
  return arrays


def _squeezed(name: str, array: np.ndarray) -> np.ndarray:
  """Squeezes GroupNorm's parameters, [1, 1, 1, C] in old hybrid files."""
  layer = name.split('/')[-2:-1]
  if layer and layer[0].startswith('gn') and array.shape[:-1] == (1, 1, 1):
    return array[0, 0, 0]
  return array


def _from_bit(name: str) -> str:
  layer, _, leaf = name.removeprefix('resnet/').rpartition('/')
  # Some files number the layers: `standardized_conv2d_3`.
  layer = re.sub(r'(standardized_conv2d|group_norm)_\d+$', r'\1', layer)
  if ours := _BIT_LAYERS.get(layer):
    return f'{ours}/{_BIT_LEAVES.get(leaf, leaf)}'
  match = re.fullmatch(r'block(\d{1,4})/unit(\d{1,4})/(.+)', layer)
  if match and (ours := _BIT_UNIT_LAYERS.get(match[3])):
    unit = f'block{match[1]}/unit{int(match[2])}'
    return f'{unit}/{ours}/{_BIT_LEAVES.get(leaf, leaf)}'
  return name


def _to_bit(name: str) -> str:
  layer, _, leaf = name.rpartition('/')
  block, _, last = layer.rpartition('/')
  if last.startswith('gn'):
    leaf = {ours: theirs for theirs, ours in _BIT_LEAVES.items()}[leaf]
  layers = _BIT_UNIT_LAYERS if block else _BIT_LAYERS
  theirs = {ours: theirs for theirs, ours in layers.items()}.get(last, last)
  if match := re.fullmatch(r'block(\d+)/unit(\d+)', block):
    theirs = f'block{match[1]}/unit{int(match[2]):02}/{theirs}'
  return f'resnet/{theirs}/{leaf}'
