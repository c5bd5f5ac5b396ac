"""The options of all models, each declared once: type, meaning, right values.

`build` checks a model by `OPTIONS`. These are also the keys `model.NAME` of a
config, apart from `num_classes`, which the data decide. `Options` holds those
of a Transformer's blocks. A new one is a field there, an entry of `OPTIONS`,
and what a block does with it.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.models import position
from vit_jax.models.shared import REMAT_POLICIES

# The values that a type may have; text may stand for any other type.
_TYPES = {int: int, bool: bool, float: numbers.Real, tuple: (tuple, list)}


class Check(NamedTuple):
  """What a value must be.

  Attributes:
    holds: whether a value is right.
    expected: says in a message what is right, after "must be".
  """

  holds: Callable[[Any], bool]
  expected: str


def at_least(low: float) -> Check:
  """Returns the check of a smallest number."""
  return Check(lambda value: low <= value < math.inf, f'at least {low}')


def within(interval: str, what: str = '') -> Check:
  """Returns the check of an interval, such as '[0, 1)'; `what` names it."""
  low, high = map(float, interval[1:-1].split(','))
  open_low, open_high = interval[0] == '(', interval[-1] == ')'
  return Check(
    lambda x: (
      (low < x if open_low else low <= x)
      and (x < high if open_high else x <= high)
    ),
    f'{what}in {interval}',
  )


def one_of(*choices: Any) -> Check:
  """Returns the check of a choice."""
  return Check(choices.__contains__, f'one of {list(choices)}')


class Key(NamedTuple):
  """An option of a model, or another key of a config.

  Attributes:
    default: its value; a type if it is unset.
    doc: what it means.
    check: what its value must be. None: a number is at least 0, and the part
      that reads another value checks it.
    field_type: the type of its values, if it is not that of the default:
      `object` if a word may stand for a number.
  """

  default: Any
  doc: str
  check: Check | None = None
  field_type: type | None = None

  @property
  def kind(self) -> type:
    """The type of the value."""
    unset = isinstance(self.default, type)
    return self.field_type or (self.default if unset else type(self.default))

  @property
  def rule(self) -> Check | None:
    """What the value must be, if it is set."""
    usual = {int: at_least(0), float: at_least(0), bool: one_of(False, True)}
    return self.check or usual.get(self.kind)

  def refusal(self, value: Any) -> str:
    """Returns what a wrong value must be; '' for a right one."""
    rule = self.rule
    if not rule or (value is None and isinstance(self.default, type)):
      return ''
    try:
      right = isinstance(value, _TYPES.get(self.kind, object))
      # Python would take a bool for 0 or 1.
      right &= isinstance(value, bool) == (self.kind is bool)
      right = right and rule.holds(value)
    except (TypeError, ValueError, OverflowError):  # It has another type.
      right = False
    return '' if right else rule.expected


# A file may claim any size, and to build its model would take forever.
_SIZE = within('[1, 16777216]', 'a whole number ')
_DEPTH = within('[1, 1000]', 'a whole number ')
_MOST_STAGES = 16


def _sizes(values: Any, each: Check = _SIZE) -> bool:
  return len(values) <= _MOST_STAGES and all(
    isinstance(x, int) and each.holds(x) for x in values
  )


_BLOCKS = Check(
  lambda x: _sizes(x, _DEPTH),
  f'up to {_MOST_STAGES} numbers of units, each {_DEPTH.expected}',
)
_SIDES = Check(
  lambda x: len(x) in (1, 2) and _sizes(x),
  'a side or (height, width), each at least 1',
)
_RATE = within('[0, 1)')
_FACTOR = Check(
  # The stages need an even root.
  lambda x: 0 < x <= 64 and 64 * x % 2 == 0,
  'a multiple of 1/32 of at most 64, so that the root has an even number of'
  ' channels',
)

OPTIONS = {
  'num_classes': Key(int, 'Number of logits.', _SIZE),
  'width': Key(int, 'Width of the tokens.', _SIZE),
  'depth': Key(int, 'Number of blocks.', _DEPTH),
  'heads': Key(int, 'Heads of attention.', _SIZE),
  'mlp_dim': Key(int, "Width of the MLPs' hidden layer.", _SIZE),
  'patch_size': Key(tuple, '(height, width), or one side.', _SIDES),
  'resnet_blocks': Key(
    tuple,
    "Units in each stage of a hybrid's ResNet, such as (3, 4, 9).",
    _BLOCKS,
  ),
  'resnet_width': Key(float, "Multiplies a hybrid's channels.", _FACTOR),
  'representation_size': Key(
    int,
    "Width of the head's hidden tanh layer; -1: the model's; 0: no layer.",
    within('[-1, 16777216]'),
  ),
  'pooling': Key(
    str,
    'What the head reads.',
    one_of('token', 'gap', 'map', 'gap_patches', 'token_gap'),
  ),
  'image_mean': Key(
    tuple,
    'Of each channel, in [0, 1]: the model subtracts it from images, and'
    ' divides by `image_std`. Unset: it takes images in [-1, 1] as they are.',
    Check(lambda x: all(0 <= v <= 1 for v in x), 'numbers in [0, 1]'),
  ),
  'image_std': Key(
    tuple,
    'The standard deviation of each channel, see `image_mean`.',
    Check(lambda x: all(0 < v < math.inf for v in x), 'numbers above 0'),
  ),
  'patch_bias': Key(bool, 'Whether the embedding of patches has a bias.'),
  'registers': Key(int, 'Learned tokens without a position. Unset: 0.'),
  'final_norm': Key(
    str, 'Before pooling, or after it.', one_of('tokens', 'pooled')
  ),
  'distillation_token': Key(bool, "A second token and head, as DeiT's."),
  'kernel_size': Key(tuple, 'Of the stored kernel (FlexiViT).', _SIDES),
  'position_grid': Key(tuple, 'Of the stored positions (FlexiViT).', _SIDES),
  'position_embedding': Key(
    str,
    'How tokens know their places.',
    one_of('none', *position.ADDED, 'relative', 'relative_per_head'),
  ),
  'position_site': Key(
    str,
    'Where position embeddings are added.',
    one_of('stem', 'every_layer', 'every_layer_shared'),
  ),
  'class_position': Key(
    bool, 'Whether the class token has a position embedding, too.'
  ),
  'position_stddev': Key(
    float,
    'Of initial position embeddings: 0.02.',
    within('(0, inf)'),
  ),
  'attention': Key(
    str, 'Among all tokens, or rows and columns.', one_of('full', 'axial')
  ),
  'attention_implementation': Key(
    str,
    "'lanes' is for TPUs, 'cudnn' for GPUs; unset: the best one measured on the"
    ' platform.',
    one_of('plain', 'lanes', 'cudnn'),
  ),
  'gelu': Key(str, 'Of the MLPs.', one_of('tanh', 'exact', 'quick')),
  'norm_epsilon': Key(
    float,
    "Added to LayerNorm's variance.",
    within('(0, 1)'),
  ),
  'norm_position': Key(
    str,
    "Where blocks have their LayerNorms: 'pre' (the paper's) before attention"
    " and MLP, 'post' (arXiv:1706.03762) after each residual sum.",
    one_of('pre', 'post'),
  ),
  'parallel': Key(
    bool,
    'Attention and MLP read the same LayerNorm. This and the next three keys'
    ' are for large models, from arXiv:2302.05442.',
  ),
  'qk_norm': Key(bool, 'Whether queries and keys are normalised.'),
  'qkv_bias': Key(bool, 'Whether queries, keys and values have a bias.'),
  'key_bias': Key(bool, 'Whether keys have one, if queries and values do.'),
  'embedding_norm': Key(bool, "A norm before the first block, as CLIP's."),
  'norm_bias': Key(bool, 'Whether LayerNorms have a bias.'),
  'norm': Key(str, 'LayerNorm or RMSNorm.', one_of('layer', 'rms')),
  'mlp': Key(str, 'Its activation.', one_of('gelu', 'swiglu')),
  'layer_scale': Key(
    float,
    'Initial value of the factors of each channel of a residual branch. Unset:'
    ' no factors.',
  ),
  'rotary': Key(
    str,
    'Rotary positions, beside those of `position_embedding`. Unset: none.',
    one_of('axial', 'mixed', 'dinov3'),
  ),
  'rotary_base': Key(
    float,
    'Of their frequencies. Unset: 100, or 10 for mixed ones.',
    within('[1, inf)'),
  ),
  'rotary_registers': Key(
    float,
    'That of the registers, on a square grid of their own: 100 in ViT-5. Unset:'
    ' registers have no rotary positions.',
    within('[1, inf)'),
  ),
  'dropout_rate': Key(float, 'The share of units set to 0. Unset: 0.', _RATE),
  'stochastic_depth': Key(
    float,
    'The share of examples that leave a branch of the last block out in'
    ' training, falling linearly to 0 in the first. Unset: 0.',
    _RATE,
  ),
  'stochastic_depth_rule': Key(
    str,
    "'uniform' gives all blocks the rate of the last one.",
    one_of('linear', 'uniform'),
  ),
  'scan': Key(bool, 'Compiles one block, and loops over it.'),
  'blocks': Key(
    tuple,
    'Units in each stage of a ResNet.',
    Check(lambda x: bool(x) and _BLOCKS.holds(x), _BLOCKS.expected),
  ),
  'width_factor': Key(float, "Multiplies a ResNet's channels.", _FACTOR),
  'head_bias': Key(
    float,
    "Initial value of the head's bias. Unset: 0 for softmax; for sigmoid the"
    ' log-odds of one class among all.',
    Check(math.isfinite, 'a finite number'),
  ),
  'head_stddev': Key(
    float,
    "Of the head's initial kernel. Unset: 0; with LAMB and LARS, which could"
    ' hardly leave 0, 0.02.',
  ),
  'dtype': Key(
    str,
    'Of products and activations; parameters are float32.',
    Check(
      lambda x: jnp.dtype(x).name in ('float32', 'bfloat16'),
      'one of float32, bfloat16',
    ),
  ),
  'remat': Key(
    'none',
    "What the backward pass recomputes: 'none', 'full' blocks, or with 'dots'"
    ' all but matmuls and convolutions.',
    one_of(*REMAT_POLICIES),
  ),
}
# Those of every model: a user's may use other names for other things.
COMMON = 'num_classes', 'dtype', 'remat', 'head_bias', 'stochastic_depth'


# Flax hashes it, as an attribute of modules, but it cannot be frozen: modules
# are not, and `vit.ViT` inherits from it. A `repr` here would replace Flax's.
@dataclasses.dataclass(unsafe_hash=True, repr=False)
class Options:
  """The attributes of a `vit.ViT` that its encoder reads.

  Attributes:
    depth: number of Transformer blocks.
    heads: attention heads of a block; must divide the width.
    mlp_dim: hidden size of a block's MLP.
    position_embedding: '1d' (the paper's), '2d', 'sincos2d', 'sincos2d_mae',
      'none', 'relative' (the heads share its embeddings) or
      'relative_per_head'. See `position` and, for the relative ones,
      `attention.relative_scores`.
    position_site: where the position embedding is added (§D.4): 'stem',
      'every_layer' (each layer learns its own) or 'every_layer_shared'.
    class_position: whether there is a position embedding for the class and the
      distillation token, too. It is not in DeiT III (arXiv:2204.07118).
    position_stddev: standard deviation of a learned position embedding's
      initial values.
    position_grid: (rows, columns) of the position embedding that is stored;
      None: the image's, see `position.Table`.
    registers: how many learned tokens come directly before the patches
      (arXiv:2309.16588). Position embeddings are not for them.
    final_norm: 'tokens', the paper's, or 'pooled', which has no LayerNorm after
      the last block, but one after pooling.
    attention: 'full', or 'axial', in which each block attends within the rows
      of the patches, then within the columns (§D.6).
    attention_implementation: 'plain', 'lanes' or 'cudnn', see `attention`.
    gelu: 'tanh', the approximation of the released code and weights, 'exact',
      or 'quick', which is x * sigmoid(1.702 x), as in CLIP (openai/CLIP,
      clip/model.py).
    norm_epsilon: epsilon of every LayerNorm.
    norm_position: 'pre', the paper's: a LayerNorm before attention, before the
      MLP and after the last block. 'post' is the original Transformer's
      (arXiv:1706.03762, §3.1): a LayerNorm after each residual sum, so that no
      other one follows the last block. It has no `parallel` blocks.
    parallel: whether a block's MLP reads the same normalised tokens as its
      attention, instead of the sum with attention's output. This and the next
      three are options for large models, from arXiv:2302.05442, §2.
    qk_norm: whether LayerNorms, without a bias, normalise queries and keys.
    qkv_bias: whether the blocks' queries, keys and values have biases.
    key_bias: whether the keys have one if `qkv_bias` is set. In DINOv3 and EVA
      (arXiv:2211.07636), they have none.
    embedding_norm: whether a norm of the tokens precedes the first block, as in
      CLIP (arXiv:2103.00020, §2.4).
    norm_bias: whether the encoder's LayerNorms have biases.
    norm: 'layer', or 'rms': RMSNorm (arXiv:1910.07467) in the blocks, after
      the last one, and on queries and keys if `qk_norm` is set. It has no bias.
    mlp: 'gelu' or 'swiglu', see `encoder.MlpBlock`.
    layer_scale: initial value of LayerScale's factors (arXiv:2103.17239), one
      for each channel of a residual branch; None for no factors.
    rotary: None, or rotary position embeddings, 'axial', 'mixed' or 'dinov3',
      see `rotary`. They go with an added position embedding or with 'none'.
    rotary_base: base of their frequencies, for 'mixed' of the initial ones;
      None for that of the kind's source, see `rotary.BASES`.
    rotary_registers: that of the registers' frequencies, see `rotary.angles`;
      None if registers do not turn.
    dropout_rate: probability of zeroing, at the four places of the released
      code; attention weights are never dropped.
    stochastic_depth: probability that an example leaves a branch of the last
      block out, see `shared.stochastic_depth`. A hybrid's ResNet has none.
    stochastic_depth_rule: 'linear', from 0 in the first block, or 'uniform',
      see `shared.depth_rates`.
    dtype: compute dtype. Parameters, the softmax, the normalisations'
      statistics and the head are float32 throughout.
    remat: what the backward pass recomputes of a block; see
      `shared.REMAT_POLICIES`.
    scan: run the blocks as one loop, which compiles faster. The blocks'
      parameters are then stacked (`unstack_blocks`). Equal values give equal
      logits, but a random key gives other initial values and dropout masks.
  """

  depth: int
  heads: int
  mlp_dim: int
  position_embedding: str = '1d'
  position_site: str = 'stem'
  class_position: bool = True
  position_stddev: float = position.STDDEV
  position_grid: tuple[int, int] | None = None
  registers: int = 0
  final_norm: str = 'tokens'
  attention: str = 'full'
  attention_implementation: str = 'plain'
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  norm_position: str = 'pre'
  parallel: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  key_bias: bool = True
  embedding_norm: bool = False
  norm_bias: bool = True
  norm: str = 'layer'
  mlp: str = 'gelu'
  layer_scale: float | None = None
  rotary: str | None = None
  rotary_base: float | None = None
  rotary_registers: float | None = None
  dropout_rate: float = 0.0
  stochastic_depth: float = 0.0
  stochastic_depth_rule: str = 'linear'
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'
  scan: bool = False

  @property
  def relative(self) -> bool:
    """Whether attention learns relative positions."""
    return self.position_embedding.startswith('relative')


def options_of(model: Any) -> Options:
  """Returns the `Options` of a `vit.ViT`, without its other attributes."""
  names = [field.name for field in dataclasses.fields(Options)]
  return Options(**{name: getattr(model, name) for name in names})
