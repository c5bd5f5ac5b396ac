"""The families of files: the one place that knows their layouts.

A family is one declaration: rules for the names and shapes of its arrays, which
work both ways; how its `config.json` maps to `models.build`; and how images
were prepared for it. See `layouts.Family`.
"""

import dataclasses

import numpy as np

from vit_jax.interop.layouts import (
  Arrays,
  Family,
  Key,
  Rule,
  of_pytorch,
  unstack,
)

CLS, DIST = 'cls', 'dist'
POSITION = 'Transformer/posembed_input/pos_embedding'
# Prefixes under which some code bases keep the parameters.
_PREFIXES = ('opt/target/', 'params/img/', 'params/', 'img/', 'target/')
# Every model has one of these arrays.
_ANCHORS = ('embedding/kernel', 'conv_root/kernel', 'head/kernel')

_BLOCK = 'Transformer/encoderblock_{i}/'
_ATTENTION = f'{_BLOCK}MultiHeadDotProductAttention_0/'
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

_LAYER = 'vit.encoder.layer.{i}'
# ViTForImageClassification and ViTModel of transformers, and DeiT without a
# distillation token.
VIT = Family(
  rules=(
    Rule('vit.embeddings.cls_token', CLS),
    Rule('vit.embeddings.position_embeddings', POSITION),
    *of_pytorch(
      {
        'vit.embeddings.patch_embeddings.projection': 'embedding',
        'vit.layernorm': 'Transformer/encoder_norm',
        'vit.pooler.dense': 'pre_logits',
        'classifier': 'head',
        f'{_LAYER}.layernorm_before': f'{_BLOCK}LayerNorm_0',
        f'{_LAYER}.attention.attention.query': f'{_ATTENTION}query',
        f'{_LAYER}.attention.attention.key': f'{_ATTENTION}key',
        f'{_LAYER}.attention.attention.value': f'{_ATTENTION}value',
        f'{_LAYER}.attention.output.dense': f'{_ATTENTION}out',
        f'{_LAYER}.layernorm_after': f'{_BLOCK}LayerNorm_1',
        f'{_LAYER}.intermediate.dense': f'{_BLOCK}MlpBlock_0/Dense_0',
        f'{_LAYER}.output.dense': f'{_BLOCK}MlpBlock_0/Dense_1',
      }
    ),
  ),
  aliases=(
    # What DDP, torch.compile and Lightning put before all others.
    (r'^((module|_orig_mod|model)\.)+', ''),
    (r'^(vit|deit)\.', ''),
    # Names of newer versions of transformers.
    (r'^layers\.', 'encoder.layer.'),
    (r'\.attention\.q_proj\.', '.attention.attention.query.'),
    (r'\.attention\.k_proj\.', '.attention.attention.key.'),
    (r'\.attention\.v_proj\.', '.attention.attention.value.'),
    (r'\.attention\.o_proj\.', '.attention.output.dense.'),
    (r'\.mlp\.fc1\.', '.intermediate.dense.'),
    (r'\.mlp\.fc2\.', '.output.dense.'),
    (r'^(?!classifier\.)', 'vit.'),
  ),
  unused=('vit.embeddings.mask_token',),
  # The classifier reads the class token.
  unused_with_head=('vit.pooler.dense.weight', 'vit.pooler.dense.bias'),
  keys=(
    Key('hidden_size', 'width', 768),
    Key('num_hidden_layers', 'depth', 12),
    Key('num_attention_heads', 'heads', 12),
    Key('intermediate_size', 'mlp_dim', 3072),
    Key(
      'hidden_act',
      'gelu',
      'gelu',
      {
        'gelu': 'exact',
        **dict.fromkeys(('gelu_new', 'gelu_fast', 'gelu_pytorch_tanh'), 'tanh'),
      },
    ),
    Key('layer_norm_eps', 'norm_epsilon', 1e-12),
    Key('hidden_dropout_prob', 'dropout_rate', 0.0),
    Key('qkv_bias', 'qkv_bias', True),
    Key('patch_size', 'patch_size', 16),
  ),
  fixed={
    'resnet_blocks': None,
    'representation_size': None,
    'pooling': 'token',
    'registers': 0,
    'distillation_token': False,
    'final_norm': 'tokens',
    'kernel_size': None,
    'position_grid': None,
    'attention': 'full',
    'position_embedding': '1d',
    'position_site': 'stem',
    'norm_position': 'pre',
    'parallel': False,
    'qk_norm': False,
    'norm_bias': True,
    'norm': 'layer',
    'mlp': 'gelu',
    'layer_scale': None,
    'rotary': None,
  },
  config={
    'architectures': ['ViTForImageClassification'],
    'model_type': 'vit',
    'attention_probs_dropout_prob': 0.0,
    'torch_dtype': 'float32',
  },
  processor='ViTImageProcessor',
)
# By `model_type` in config.json.
HUGGINGFACE = {
  'vit': VIT,
  'deit': dataclasses.replace(VIT, processor='DeiTImageProcessor'),
}


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
