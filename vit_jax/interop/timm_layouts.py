"""The layouts of timm: those of its VisionTransformer, and of DINOv3 in it.

timm's `config.json` names an architecture, and the arguments that differ from
it. What neither arguments nor arrays show follows from the name.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from vit_jax.interop import transformers_layouts as common
from vit_jax.interop.layouts import Family, Fused, Rule, of_pytorch
from vit_jax.interop.transformers_layouts import ATTENTION, BLOCK, MAP

_GELU = {'gelu': 'exact', 'gelu_tanh': 'tanh', 'quick_gelu': 'quick'}
# timm's name of a pooling -> ours, for models with a class token or without.
_POOLING = {
  'token': ('token', 'token'),
  'avg': ('gap_patches', 'gap'),
  'map': ('map', 'map'),
}
# Pattern of architectures -> the width of a head, where it is not 64.
_HEAD_WIDTHS = (
  (r'vit_base_patch16_gap_', 48),
  (r'giantopt', 96),
  (r'7b', 128),
  (r'so400m', 72),
  (r'huge_(?!plus)', 80),
  (r'giant_(?!.*(dinov2|tips))', 88),
  (r'gigantic', 104),
)
_TANH = (
  r'patch32_siglip|giantopt|so400m_patch16_siglip|large_patch16_siglip.*512'
)
# Arguments that the arrays show, that are read, or that change no output.
_KNOWN = {
  *('embed_dim', 'depth', 'num_heads', 'mlp_ratio', 'patch_size', 'img_size'),
  *('in_chans', 'num_classes', 'global_pool', 'qkv_bias', 'init_values'),
  *('class_token', 'no_embed_class', 'reg_tokens', 'num_reg_tokens'),
  *('pre_norm', 'fc_norm', 'use_fc_norm', 'act_layer', 'rope_temperature'),
  *('dynamic_img_size', 'drop_rate', 'drop_path_rate', 'weight_init'),
}
# They have the names of a VisionTransformer, but compute something else.
_REFUSED = (
  r'aimv2|beit|_d(little|wee)|eva|lingbot|_pe_|pwee|radio|rope|_rpn_|sapiens'
  r'|intern300m|so150m|test_vit|_xp_|_\d+x\d_'
)


def _rules(*layer_scale: str, bias: tuple[Rule, ...] = ()) -> tuple[Rule, ...]:
  parts = 'q', 'k', 'v', 'proj'
  return (
    Rule('cls_token', common.CLS),
    Rule('dist_token', common.DIST),
    Rule('reg_token', common.REGISTERS),
    Rule('pos_embed', common.POSITION),
    *bias,
    *(
      Rule(f'blocks.{{i}}.{name}', f'{BLOCK}layer_scale_{n}')
      for n, name in enumerate(layer_scale)
    ),
    *of_pytorch(
      {
        'patch_embed.proj': 'embedding',
        'norm_pre': 'Transformer/embedding_norm',
        'norm': 'Transformer/encoder_norm',
        'fc_norm': 'fc_norm',
        'head': 'head',
        'head_dist': 'head_dist',
      }
    ),
    *of_pytorch(
      common.norms('norm1', 'norm2')
      | common.attention(*(f'attn.{part}' for part in parts)),
      within='blocks.{i}.',
      ours=BLOCK,
    ),
    *of_pytorch(
      common.mlp('fc1_x', 'fc2', 'fc1_g'),
      within='blocks.{i}.mlp.',
      ours=BLOCK,
      needs='/gate/',
    ),
    *of_pytorch(common.mlp('fc1', 'fc2'), within='blocks.{i}.mlp.', ours=BLOCK),
    Rule('attn_pool.latent', f'{MAP}probe'),
    *common.map_head('attn_pool.', 'norm', *parts),
  )


_QKV = Fused(
  'blocks.{i}.attn.qkv.{leaf}',
  tuple(f'blocks.{{i}}.attn.{n}.{{leaf}}' for n in 'qkv'),
)


def _clashing(model: nn.Module) -> tuple[str, ...]:
  """See `Family.clashing`, for timm's VisionTransformer."""
  has_token = 'cls' in model.prefix
  distilled, norm = model.distillation_token, model.embedding_norm
  found = {
    # Its models with registers have positions of patches alone; those with a
    # distillation token have positions of all, and no registers.
    'class_position': not model.class_position
    if distilled
    else has_token and model.registers and model.class_position,
    'registers': distilled and model.registers,
    # Its embedding has a bias if no norm follows.
    'patch_bias': model.patch_bias == norm,
    'norm_epsilon': norm and model.norm_epsilon != 1e-5,
  }
  return tuple(key for key, clashes in found.items() if clashes)


_ANY_POOLING = (lambda value: value != 'token_gap',) * 2
_FREE = 'registers', 'final_norm', 'qkv_bias', 'mlp'
VISION_TRANSFORMER = Family(
  rules=_rules('ls1.gamma', 'ls2.gamma'),
  fused=(
    _QKV,
    Fused('attn_pool.kv.{leaf}', ('attn_pool.k.{leaf}', 'attn_pool.v.{leaf}')),
    Fused(
      'blocks.{i}.mlp.fc1.{leaf}',
      ('blocks.{i}.mlp.fc1_g.{leaf}', 'blocks.{i}.mlp.fc1_x.{leaf}'),
      reader='blocks.{i}.mlp.fc2.weight',
    ),
  ),
  aliases=(common.WRAPPERS,),
  fixed={'norm_epsilon': lambda value: value in (1e-6, 1e-5)},
  free=(
    *(*_FREE, 'gelu', 'embedding_norm', 'class_position', 'patch_bias'),
    *('distillation_token', 'layer_scale'),
  ),
  clashing=_clashing,
  pooling=_ANY_POOLING,
  resize='bicubic_antialias',
)
EVA = Family(
  rules=_rules(
    'gamma_1',
    'gamma_2',
    bias=tuple(
      Rule(f'blocks.{{i}}.attn.{n}_bias', f'{ATTENTION}{ours}/bias', 'to_heads')
      for n, ours in (('q', 'query'), ('v', 'value'))
    ),
  ),
  fused=(_QKV,),
  aliases=(common.WRAPPERS,),
  fixed={
    'position_embedding': 'none',
    'rotary': 'dinov3',
    'layer_scale': common.is_set,
    'gelu': 'exact',
    'norm_epsilon': 1e-5,
  },
  free=(*_FREE, 'key_bias', 'rotary_base'),
  clashing=lambda model: ('key_bias',) * (model.qkv_bias and model.key_bias),
  pooling=_ANY_POOLING,
)
FAMILIES = {'timm': VISION_TRANSFORMER, 'timm_dinov3': EVA}


def family_of(config: Mapping[str, Any]) -> str:
  """Returns the family of a `config.json` of timm, which may be empty.

  Raises:
    ValueError: the architecture is not one that is read.
  """
  name = config.get('architecture', '')
  if 'dinov3' in name:
    return 'timm_dinov3'
  if re.search(_REFUSED, name):
    raise ValueError(
      f"timm's {name!r} is not read: expected one of its plain Vision"
      ' Transformers, or of its DINOv3 models.'
    )
  return 'timm'


def options(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict:
  """Returns the options of `models.build` that the arrays do not show.

  Args:
    config: timm's `config.json`, or {}.
    found: the options that the arrays show.
  """
  name, given = config.get('architecture', ''), config.get('model_args') or {}
  heads = next((w for key, w in _HEAD_WIDTHS if re.search(key, name)), 64)
  named = 'gelu_tanh' if re.search(_TANH, name) else 'gelu'
  named = 'quick_gelu' if 'quickgelu' in name else named
  act = given.get('act_layer') or named
  if act == 'silu':  # Of the gate, which the arrays show.
    act = 'gelu'
  if act not in _GELU:
    raise ValueError(f'act_layer={act!r}: known are {", ".join(_GELU)}.')
  larger = found.get('embedding_norm') or re.search('clip|dinov3', name)
  changed = {
    'heads': given.get('num_heads', max(1, found['width'] // heads)),
    'gelu': _GELU[act],
    'norm_epsilon': 1e-5 if larger else 1e-6,
  }
  if 'rope_temperature' in given:
    changed['rotary_base'] = given['rope_temperature']
  pool = given.get('global_pool') or config.get('global_pool') or ''
  strange = [*(given.keys() - _KNOWN), *({pool} - {'', *_POOLING})]
  if strange:
    raise ValueError(f'timm with {", ".join(strange)} is not read.')
  if pool and found['pooling'] != 'map':
    changed['pooling'] = _POOLING[pool][found['pooling'] == 'gap']
  return changed


def configured(
  model: nn.Module,
  image_size: tuple[int, int],
  channels: int,
  *,
  has_head: bool,
) -> dict[str, Any]:
  """Inverts `options`: returns a `config.json` without `pretrained_cfg`."""
  pool = {'token': 'token', 'map': 'map'}.get(model.pooling, 'avg')
  arguments = {
    'img_size': list(image_size),
    'patch_size': list(model.patch_size),
    'in_chans': channels,
    'embed_dim': model.width,
    'depth': model.depth,
    'num_heads': model.heads,
    'mlp_ratio': _ratio(model),
    'qkv_bias': model.qkv_bias,
    'init_values': model.layer_scale,
    'global_pool': pool,
  }
  if model.rotary:
    plus = 'plus_' if model.mlp == 'swiglu' else ''
    name = f'vit_small_{plus}patch16_dinov3'
    arguments |= {
      'num_reg_tokens': model.registers,
      'use_fc_norm': model.final_norm == 'pooled',
    }
    if model.rotary_base:
      arguments['rope_temperature'] = model.rotary_base
  else:
    name = _architecture(model)
    arguments |= {
      'reg_tokens': model.registers,
      'pre_norm': model.embedding_norm,
      'class_token': 'cls' in model.prefix,
      'no_embed_class': not model.class_position or model.registers > 0,
      'fc_norm': model.final_norm == 'pooled',
    }
    if model.mlp == 'gelu':
      names = {ours: theirs for theirs, ours in _GELU.items()}
      arguments['act_layer'] = names[model.gelu]
  if model.distillation_token:  # This class has not all the arguments.
    for key in ('reg_tokens', 'class_token', 'no_embed_class'):
      del arguments[key]
  return {
    'architecture': name,
    'num_classes': model.num_classes if has_head else 0,
    'num_features': model.width,
    'global_pool': pool,
    'model_args': arguments,
  }


def _architecture(model: nn.Module) -> str:
  """Returns an architecture with what `model_args` cannot say."""
  if model.distillation_token:
    return 'deit_base_distilled_patch16_224'
  if model.mlp == 'swiglu':
    return 'vit_giant_patch14_dinov2'
  clip = model.norm_epsilon == 1e-5
  return f'vit_base_patch16_{"clip_" if clip else ""}224'


def _ratio(model: nn.Module) -> float:
  """Returns the ratio from which timm gets mlp_dim: it truncates a product."""
  fused = 2 if model.mlp == 'swiglu' and not model.rotary else 1
  hidden = fused * model.mlp_dim
  ratio = hidden / model.width
  exact = int(model.width * ratio) == hidden
  return ratio if exact else math.nextafter(ratio, math.inf)
