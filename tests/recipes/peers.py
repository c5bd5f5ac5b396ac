"""Models of timm and transformers with our sizes and our parameters."""

import functools

import jax
import numpy as np
import torch
from timm import layers
from timm.models import deit, eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tests.interop import tiny
from tests.models import test_mae, test_theirs
from vit_jax import config as config_lib
from vit_jax.interop import families
from vit_jax.interop.layouts import Rule, of_pytorch

SIDE = 16  # Of an image.
DECODER = {'depth': 2, 'width': 16, 'heads': 2}
DEVIATION = 0.3  # Of all parameters at the start: each of them matters.
_RULES = (
  *(Rule(f'{n}_token', n) for n in ('cls', 'dist')),
  Rule('reg_token', 'registers'),
  Rule('pos_embed', families.POSITION),
  *of_pytorch(
    {
      'patch_embed.proj': 'embedding',
      'norm': 'Transformer/encoder_norm',
      'fc_norm.0': 'pre_logits',
      **{name: name for name in ('fc_norm', 'head', 'head_dist')},
    }
  ),
)


def _family(scale, *names):
  names = (*names, 'attn.proj', '', 'mlp.fc1', 'mlp.fc2')
  return test_theirs.family(
    *('blocks.{i}.', 'Transformer/encoderblock_{i}/', scale),
    (*names, 'attn.q_norm', 'attn.k_norm'),
    *_RULES,
  )


class Split(nn.Module):
  """Query, key and value from arrays of their own, as LAMB sees ours."""

  def __init__(self, width):
    super().__init__()
    self.q, self.k, self.v = (nn.Linear(width, width) for _ in 'qkv')

  def forward(self, x):
    return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)


class Flexi(VisionTransformer):
  """Takes the side of a patch, and resizes its kernel and positions to it."""

  def forward(self, x, side):
    kernel, bias = self.patch_embed.proj.parameters()
    kernel = layers.resample_patch_embed(
      kernel, [side, side], 'bilinear', antialias=False
    )
    table = layers.resample_abs_pos_embed(
      self.pos_embed, [SIDE // side] * 2, interpolation='bilinear'
    )
    x = nn.functional.conv2d(x, kernel, bias, side).flatten(2).mT
    x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
    return self.head(self.norm(self.blocks(x + table))[:, 0])


class Vit5(eva.Eva):
  """Eva with rotary registers, and a position of the class token alone."""

  def _pos_embed(self, x):
    first, patches = self.pos_embed.split([1, x.shape[1]], dim=1)
    prefix = first + self.cls_token, self.reg_token
    prefix = [token.expand(len(x), -1, -1) for token in prefix]
    rope = [
      layers.RotaryEmbeddingCat(
        self.embed_dim // 2,  # The width of a head.
        **dict(in_pixels=False, grid_indexing='xy', temperature=base),
      ).get_embed([side, side])
      for base, side in ((100.0, 2), (10_000.0, SIDE // 4))
    ]
    return torch.cat([*prefix, x + patches], dim=1), torch.cat(rope)


# Each of these functions takes our model, and the shapes of its parameters. It
# returns the peer and our parameters.


def vit(ours, shapes, kind=VisionTransformer, **options):
  """Returns timm's model; `options` are those of its VisionTransformer."""
  if ours.distillation_token:
    kind = deit.VisionTransformerDistilled
  model = kind(**_sizes(ours), **options)
  for block in model.blocks:
    block.attn.qkv = Split(ours.width)
  if ours.distillation_token:
    model.set_distilled_training(True)
  if ours.representation_size:
    model.fc_norm = nn.Sequential(nn.Linear(ours.width, ours.width), nn.Tanh())
  names = _family('ls{}.gamma', *(f'attn.qkv.{part}' for part in 'qkv'))
  return _loaded(model, names, shapes)


def vit5(ours, shapes):
  """Returns the model of ViT-5, of timm's blocks."""
  model = Vit5(
    **_sizes(ours),
    **dict(global_pool='token', num_reg_tokens=4, init_values=1e-4),
    **dict(qkv_bias=False, qkv_fused=False, qk_norm=True, attn_type='rope'),
    norm_layer=functools.partial(layers.RmsNorm, eps=1e-6),
  )
  for block in model.blocks:
    block.attn.num_prefix_tokens = 1  # Those that do not turn.
  names = _family('gamma_{}', *(f'attn.{part}_proj' for part in 'qkv'))
  return _loaded(model, names, shapes)


def mae(ours, shapes):
  """Returns the autoencoder of transformers."""
  del shapes
  sizes = {f'decoder_{name}': size for name, size in DECODER.items()}
  loss = config_lib.mae(mask=0.75, normalise=True, **sizes)
  model = test_mae.theirs_of(ours, SIDE, loss).train()
  for name, x in model.named_parameters():
    if 'pos' not in name:
      nn.init.normal_(x.data, std=DEVIATION)
  state = {name: x.clone() for name, x in model.state_dict().items()}
  return model, test_mae.ours_of(state, ours.heads, loss.decoder_heads)


def _sizes(ours):
  return dict(
    **{'img_size': SIDE, 'patch_size': 4, 'num_classes': ours.num_classes},
    **{'embed_dim': ours.width, 'depth': ours.depth, 'num_heads': ours.heads},
    mlp_ratio=ours.mlp_dim / ours.width,
  )


def _loaded(model, names, shapes):
  """Draws parameters; what we do not learn does not train."""
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.normal(0, DEVIATION, x.shape).astype('f'), shapes
  )
  state = names.write(tiny.flat(params))
  learned, own = set(state), dict(model.named_parameters())
  if 'pos_embed' in own:
    state.setdefault('pos_embed', _waves(model))
  assert state.keys() == own.keys()
  for name, array in state.items():
    module, _, leaf = name.rpartition('.')
    array = torch.tensor(np.asarray(array, np.float32))
    parameter = nn.Parameter(array, requires_grad=name in learned)
    setattr(model.get_submodule(module), leaf, parameter)
  return model, params


def _waves(model):
  """Returns the positions of MAE, or without a class token those of ViT-S."""
  n, prefix = model.embed_dim // 4, model.num_prefix_tokens
  rates = 10_000.0 ** -(np.arange(n) / (n if prefix else n - 1))
  y, x = np.indices([SIDE // 4] * 2).reshape(2, -1, 1)
  waves = [wave(z * rates) for z in (x, y) for wave in (np.sin, np.cos)]
  return np.pad(np.concatenate(waves, axis=1), ((prefix, 0), (0, 0)))[None]
