"""The layouts of Hugging Face's transformers, as declarations.

A new family is one entry of `FAMILIES`: how its names map to ours, how its
`config.json` maps to `models.build`, and what its models have in common. Names
are those that `save_pretrained` writes; `ALIASES` has those of other versions.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn

from vit_jax.interop.layouts import Family, Fused, Key, Rule, of_pytorch

CLS, DIST, REGISTERS = 'cls', 'dist', 'registers'
POSITION = 'Transformer/posembed_input/pos_embedding'
BLOCK = 'Transformer/encoderblock_{i}/'
ATTENTION = f'{BLOCK}MultiHeadDotProductAttention_0/'
MAP = 'MAPHead_0/'

# What DDP, torch.compile and Lightning put before all others.
WRAPPERS = (r'^((module|_orig_mod|model)\.)+', '')
# Names of newer versions of transformers.
ALIASES = (
  WRAPPERS,
  (r'^(vit|deit)\.', ''),
  (r'^(encoder\.)?layers\.', 'encoder.layer.'),
  (r'\.attention\.q_proj\.', '.attention.attention.query.'),
  (r'\.attention\.k_proj\.', '.attention.attention.key.'),
  (r'\.attention\.v_proj\.', '.attention.attention.value.'),
  (r'\.attention\.o_proj\.', '.attention.output.dense.'),
)
_OLD_MLP = (
  (r'\.mlp\.fc1\.', '.intermediate.dense.'),
  (r'\.mlp\.fc2\.', '.output.dense.'),
)


# ---- Parts of several families -----------------------------------------------


def attention(query: str, key: str, value: str, out: str) -> dict[str, str]:
  """Returns a block's attention: their name -> ours, as `of_pytorch` has it."""
  names = dict(query=query, key=key, value=value, out=out)
  part = ATTENTION.removeprefix(BLOCK)
  return {theirs: part + ours for ours, theirs in names.items()}


def norms(first: str, second: str) -> dict[str, str]:
  """As `attention`, for the norms of a block."""
  return {first: 'LayerNorm_0', second: 'LayerNorm_1'}


def mlp(first: str, second: str, gate: str = '') -> dict[str, str]:
  """As `attention`, for the MLP."""
  dense = {gate: 'gate', first: 'Dense_0', second: 'Dense_1'}
  return {k: f'MlpBlock_0/{v}' for k, v in dense.items() if k}


def map_head(within: str, norm: str, *heads: str) -> Iterator[Rule]:
  """Yields the rules of attention pooling, but for its probe."""
  modules = attention(*heads) | mlp('mlp.fc1', 'mlp.fc2')
  return of_pytorch(modules | {norm: 'LayerNorm_0'}, within=within, ours=MAP)


_BERT_ATTENTION = attention(
  *(f'attention.attention.{name}' for name in ('query', 'key', 'value')),
  'attention.output.dense',
)
_STEM = (
  Rule('embeddings.cls_token', CLS),
  Rule('embeddings.position_embeddings', POSITION),
  Rule('embeddings.distillation_token', DIST),
  Rule('embeddings.register_tokens', REGISTERS),
  *of_pytorch(
    {
      'embeddings.patch_embeddings.projection': 'embedding',
      'layernorm': 'Transformer/encoder_norm',
      'pooler.dense': 'pre_logits',
      'classifier': 'head',
    }
  ),
)
_GELU = {
  'gelu': 'exact',
  **dict.fromkeys(('gelu_new', 'gelu_fast', 'gelu_pytorch_tanh'), 'tanh'),
  'quick_gelu': 'quick',
}
_PYTORCH_GELU = {ours: theirs for theirs, ours in _GELU.items()}


def _keys(
  epsilon: float,
  heads: int = 12,
  act: str = 'gelu',
  patch: int = 16,
  values: Mapping[str, str] = _GELU,
) -> tuple[Key, ...]:
  """Returns the keys of all families, with a family's defaults."""
  return (
    Key('hidden_size', 'width'),
    Key('num_hidden_layers', 'depth'),
    Key('num_attention_heads', 'heads', heads),
    Key('hidden_act', 'gelu', act, values),
    Key('layer_norm_eps', 'norm_epsilon', epsilon),
    Key('patch_size', 'patch_size', patch),
  )


_HIDDEN = Key('intermediate_size', 'mlp_dim')
_DROPOUT = Key('hidden_dropout_prob', 'dropout_rate', 0.0)
_QKV_BIAS = Key('qkv_bias', 'qkv_bias')


def is_set(value: Any) -> bool:
  return value is not None


def _check_pooler(model: nn.Module, config: Mapping[str, Any]) -> None:
  activation = config.get('pooler_act', 'tanh')
  if model.representation_size and activation != 'tanh':
    raise ValueError(f'pooler_act={activation!r}: the pooler here has tanh.')


def _check_gate(model: nn.Module, config: Mapping[str, Any]) -> None:
  activation = config.get('hidden_act', 'gelu')
  if (model.mlp == 'swiglu') != (activation == 'silu'):
    raise ValueError(
      f"hidden_act={activation!r}: it is 'silu' here if, and only if, the MLPs"
      ' have a gate.'
    )


def _config(kind: str, *architectures: str, **others: Any) -> dict[str, Any]:
  return {
    'architectures': architectures,
    'model_type': kind,
    'torch_dtype': 'float32',
    **others,
  }


# ---- The families ------------------------------------------------------------

# ViTForImageClassification and ViTModel; the latter also of DINO.
VIT = Family(
  rules=(
    *_STEM,
    *of_pytorch(
      {
        **norms('layernorm_before', 'layernorm_after'),
        **_BERT_ATTENTION,
        **mlp('intermediate.dense', 'output.dense'),
      },
      within='encoder.layer.{i}.',
      ours=BLOCK,
    ),
  ),
  aliases=ALIASES + _OLD_MLP,
  prefix='vit.',
  unused=(r'embeddings\.mask_token',),
  # The classifier reads the class token.
  unused_with_head=(r'pooler\..*',),
  keys=(*_keys(1e-12), _HIDDEN, _DROPOUT, _QKV_BIAS),
  check=_check_pooler,
  config=_config(
    'vit',
    'ViTModel',
    'ViTForImageClassification',
    pooler_output_size=lambda model: model.representation_size or model.width,
  ),
  processor='ViTImageProcessor',
  resize='bicubic',
)


# Without its distillation token, DeiT is a ViT in transformers.
DEIT = dataclasses.replace(
  VIT,
  rules=(
    *of_pytorch(
      {'cls_classifier': 'head', 'distillation_classifier': 'head_dist'}
    ),
    *VIT.rules,
  ),
  aliases=(*VIT.aliases, (r'^classifier\.', 'cls_classifier.')),
  prefix='deit.',
  unused=VIT.unused + VIT.unused_with_head,
  fixed={'distillation_token': True},
  processor='DeiTImageProcessor',
  config=_config('deit', 'DeiTModel', 'DeiTForImageClassificationWithTeacher'),
)
# The decoder is left out.
MAE = dataclasses.replace(
  VIT,
  unused=(r'decoder\..*', r'embeddings\.mask_token', r'mask_token'),
  pooling=('token', ''),
  config=_config('vit_mae', 'ViTMAEModel', ''),
)
MSN = dataclasses.replace(
  VIT,
  keys=(*_keys(1e-6), _HIDDEN, _DROPOUT, _QKV_BIAS),
  config=_config('vit_msn', 'ViTMSNModel', 'ViTMSNForImageClassification'),
)

# It has no class token: its features are the mean of the patches.
IJEPA = dataclasses.replace(
  VIT,
  prefix='ijepa.',
  pooling=('gap', 'gap'),
  config=_config('ijepa', 'IJepaModel', 'IJepaForImageClassification'),
)


def _layer_scale(block: str) -> tuple[Rule, ...]:
  return tuple(
    Rule(f'{block}.layer_scale{n + 1}.lambda1', f'{BLOCK}layer_scale_{n}')
    for n in range(2)
  )


def _mlp_ratio(model: nn.Module) -> int | None:
  """Returns DINOv2's `mlp_ratio`, of which SwiGLU gets two thirds, if any."""
  if model.mlp == 'gelu':
    ratio, rest = divmod(model.mlp_dim, model.width)
    return None if rest else ratio
  for ratio in range(1, 17):
    if (int(ratio * model.width * 2 / 3) + 7) // 8 * 8 == model.mlp_dim:
      return ratio
  return None


DINOV2 = Family(
  rules=(
    *_STEM,
    *_layer_scale('encoder.layer.{i}'),
    *of_pytorch(
      norms('norm1', 'norm2') | _BERT_ATTENTION,
      within='encoder.layer.{i}.',
      ours=BLOCK,
    ),
    *of_pytorch(
      mlp('up', 'weights_out', 'gate'),
      within='encoder.layer.{i}.mlp.',
      ours=BLOCK,
      needs='/gate/',
    ),
    *of_pytorch(mlp('fc1', 'fc2'), within='encoder.layer.{i}.mlp.', ours=BLOCK),
  ),
  fused=(
    Fused(
      'encoder.layer.{i}.mlp.weights_in.{leaf}',
      tuple(
        f'encoder.layer.{{i}}.mlp.{part}.{{leaf}}' for part in ('gate', 'up')
      ),
    ),
  ),
  aliases=ALIASES,
  prefix='dinov2.',
  unused=(r'embeddings\.mask_token',),
  keys=(*_keys(1e-6, patch=14), _DROPOUT, _QKV_BIAS),
  fixed={'layer_scale': is_set},
  free=('mlp',),
  clashing=lambda model: () if _mlp_ratio(model) else ('mlp_dim',),
  pooling=('token', 'token_gap'),
  config=_config(
    'dinov2',
    'Dinov2Model',
    'Dinov2ForImageClassification',
    mlp_ratio=_mlp_ratio,
    use_swiglu_ffn=lambda model: model.mlp == 'swiglu',
    use_mask_token=False,
  ),
  processor='BitImageProcessor',
  resize='bicubic',
)
DINOV2_WITH_REGISTERS = dataclasses.replace(
  DINOV2,
  prefix='dinov2_with_registers.',
  fixed=DINOV2.fixed | {'registers': bool},
  resize='bicubic_antialias',
  config=DINOV2.config
  | _config(
    'dinov2_with_registers',
    'Dinov2WithRegistersModel',
    'Dinov2WithRegistersForImageClassification',
    num_register_tokens=lambda model: model.registers,
  ),
)
# Positions are rotary alone. Its classes have no classifier.
DINOV3 = Family(
  rules=(
    *_STEM[:1],
    *_STEM[3:4],
    *of_pytorch(
      {
        'embeddings.patch_embeddings': 'embedding',
        'norm': 'Transformer/encoder_norm',
      }
    ),
    *_layer_scale('layer.{i}'),
    *of_pytorch(
      {
        **norms('norm1', 'norm2'),
        **attention(*(f'attention.{n}_proj' for n in 'qkvo')),
        **mlp('mlp.up_proj', 'mlp.down_proj', 'mlp.gate_proj'),
      },
      within='layer.{i}.',
      ours=BLOCK,
    ),
  ),
  aliases=(WRAPPERS,),
  unused=(r'embeddings\.mask_token',),
  keys=(
    *_keys(1e-5, heads=6, values=_GELU | {'silu': 'tanh'}),
    _HIDDEN,
    Key('rope_theta', 'rotary_base', 100.0),
  ),
  check=_check_gate,
  fixed={
    'position_embedding': 'none',
    'rotary': 'dinov3',
    'layer_scale': is_set,
  },
  free=('registers', 'qkv_bias', 'key_bias', 'mlp'),
  pooling=('token', ''),
  config=_config(
    'dinov3_vit',
    'DINOv3ViTModel',
    '',
    hidden_act=lambda model: (
      'silu' if model.mlp == 'swiglu' else _PYTORCH_GELU[model.gelu]
    ),
    query_bias=lambda model: model.qkv_bias,
    value_bias=lambda model: model.qkv_bias,
    key_bias=lambda model: model.qkv_bias and model.key_bias,
    rope_theta=lambda model: model.rotary_base or 100.0,
    use_gated_mlp=lambda model: model.mlp == 'swiglu',
    num_register_tokens=lambda model: model.registers,
  ),
  processor='DINOv3ViTImageProcessor',
)

_TOWER_BLOCK = of_pytorch(
  {
    **norms('layer_norm1', 'layer_norm2'),
    **attention(*(f'self_attn.{n}_proj' for n in 'qkv'), 'self_attn.out_proj'),
    **mlp('mlp.fc1', 'mlp.fc2'),
  },
  within='encoder.layers.{i}.',
  ours=BLOCK,
)
_TOWER = (
  *_TOWER_BLOCK,
  Rule('embeddings.position_embedding.weight', POSITION, 'table'),
  *of_pytorch(
    {
      'embeddings.patch_embedding': 'embedding',
      'post_layernorm': 'Transformer/encoder_norm',
    }
  ),
)
_TEXT = (
  r'text_model\..*',
  r'(text_projection|logit_scale|logit_bias).*',
  r'embeddings\.position_ids',
)
# SigLIP, and SigLIP 2 for images of one size. It pools by attention, and
# transformers' classifier reads the mean of its tokens instead.
SIGLIP = Family(
  rules=(
    *_TOWER,
    Rule('head.probe', f'{MAP}probe'),
    *of_pytorch({'classifier': 'head'}),
    *map_head(
      *('head.', 'layernorm', 'attention.query', 'attention.key'),
      *('attention.value', 'attention.out_proj'),
    ),
  ),
  fused=(
    Fused(
      'head.attention.in_proj_{leaf}',
      tuple(f'head.attention.{n}.{{leaf}}' for n in ('query', 'key', 'value')),
    ),
  ),
  aliases=(WRAPPERS,),
  prefix='vision_model.',
  unused=_TEXT,
  unused_with_head=(r'head\..*',),
  keys=(*_keys(1e-6, act='gelu_pytorch_tanh'), _HIDDEN),
  pooling=('map', 'gap'),
  config=_config(
    'siglip_vision_model',
    'SiglipVisionModel',
    'SiglipForImageClassification',
    vision_use_head=lambda model: model.pooling == 'map',
  ),
  composite='siglip',
  processor='SiglipImageProcessor',
  resize='bicubic',
)
# The projection to the space of images and texts is the head.
CLIP = Family(
  rules=(
    *_TOWER,
    Rule('embeddings.class_embedding', CLS, 'token'),
    *of_pytorch(
      {
        'pre_layrnorm': 'Transformer/embedding_norm',
        'visual_projection': 'head',
      }
    ),
  ),
  aliases=(WRAPPERS,),
  prefix='vision_model.',
  # CLIPForImageClassification has one that reads tokens without their norm.
  unused=(*_TEXT, r'classifier\..*'),
  no_bias=('head',),
  keys=(*_keys(1e-5, act='quick_gelu', patch=32), _HIDDEN),
  fixed={'embedding_norm': True, 'patch_bias': False},
  config=_config(
    'clip_vision_model',
    'CLIPVisionModel',
    'CLIPVisionModelWithProjection',
    projection_dim=lambda model: model.num_classes,
  ),
  processor='CLIPImageProcessor',
  resize='bicubic',
)

# By `model_type`. Weights are written in the first layout that has their model.
FAMILIES = {
  'vit': VIT,
  'deit': DEIT,
  'vit_mae': MAE,
  'vit_msn': MSN,
  'ijepa': IJEPA,
  'dinov2': DINOV2,
  'dinov2_with_registers': DINOV2_WITH_REGISTERS,
  'dinov3_vit': DINOV3,
  'siglip_vision_model': SIGLIP,
  'clip_vision_model': CLIP,
}
# `model_type` of files of several towers -> that of the tower.
COMPOSITE = {'siglip': 'siglip_vision_model', 'clip': 'clip_vision_model'}
