"""Guards: our blocks equal those of timm and transformers, with equal weights.

Outputs and all gradients, also of the frequencies of rotary positions.
"""

import functools

import jax
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from timm.layers import pos_embed_sincos  # noqa: E402
from timm.models import eva, vision_transformer  # noqa: E402
from transformers.models.dinov2 import modeling_dinov2  # noqa: E402

from tests.interop import tiny  # noqa: E402
from tests.models import naive  # noqa: E402
from vit_jax.interop.layouts import Family, Rule, of_pytorch  # noqa: E402
from vit_jax.models import encoder, model_options  # noqa: E402

pytestmark = pytest.mark.hf

RNG = np.random.default_rng(0)
WIDTH, HEADS, HIDDEN, GRID, PREFIX = 32, 2, 48, (2, 3), 5
HEAD = WIDTH // HEADS
_MHA = 'MultiHeadDotProductAttention_0'


def _block_rules(start, names, scales):
  """Returns the rules of a block; `start` ends the same names of ours."""
  ours = (
    *(f'{_MHA}/query', f'{_MHA}/key', f'{_MHA}/value', f'{_MHA}/out'),
    *('MlpBlock_0/Dense_0', 'MlpBlock_0/gate', 'MlpBlock_0/Dense_1'),
  )
  modules = dict(zip(names, (start + name for name in ours), strict=True))
  norms = [
    {f'norm{i + 1}': f'{start}{kind}Norm_{i}' for i in (0, 1)}
    for kind in ('Layer', 'RMS')
  ]
  inner = {
    f'attn.{a[0]}_norm': f'{start}{_MHA}/{a}_norm' for a in ('query', 'key')
  }
  return (
    *(r for part in (modules, *norms, inner) for r in of_pytorch(part)),
    *(Rule(scales.format(i + 1), f'{start}layer_scale_{i}') for i in (0, 1)),
  )


_ATTENTION = tuple(
  f'attn.{name}' for name in ('q_proj', 'k_proj', 'v_proj', 'proj')
)
# With and without a gate.
TIMM = {
  gated: Family(
    (
      *_block_rules(
        '',
        (
          *_ATTENTION,
          'mlp.fc1_x' if gated else 'mlp.fc1',
          'mlp.fc1_g',
          'mlp.fc2',
        ),
        'gamma_{}',
      ),
      Rule('rope.freqs', f'{_MHA}/rotary_frequencies'),
    )
  )
  for gated in (False, True)
}


def _load(module, state):
  """Copies our arrays into a module of PyTorch, whose names must be these."""
  state = {k: torch.tensor(np.asarray(v)) for k, v in state.items()}
  module.load_state_dict(state, strict=True)


def _assert_close(actual, expected):
  assert actual.keys() == expected.keys()
  for name, x in actual.items():
    y = expected[name]
    error, size = np.abs(np.asarray(x) - y).max(), np.abs(y).max()
    assert size > 1e-3, name
    assert error < 1e-5 * max(1, size), (name, error, size)


def _run(function, params, x, weights):
  """Returns our output, and the gradients of its weighted sum."""

  def loss(params, x):
    out = function(params, x)
    return (out * weights).sum(), out

  run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  (_, out), grads = run(params, x)
  return out, *grads


class _WithRope(torch.nn.Module):
  """A block of timm, and the rotary positions that it gets."""

  def __init__(self, block, rope=None):
    super().__init__()
    self.block, self.rope = block, rope

  def forward(self, x):
    embedded = self.rope.get_embed(list(GRID)) if self.rope else None
    # Those of mixed ones have a dimension of layers.
    return self.block(x, rope=embedded[0] if embedded.ndim == 4 else embedded)


def _rope(kind):
  if kind == 'axial':
    return pos_embed_sincos.RotaryEmbeddingCat(
      HEAD, in_pixels=False, temperature=100.0, grid_indexing='xy'
    )
  if kind == 'mixed':
    return pos_embed_sincos.RotaryEmbeddingMixed(
      WIDTH, depth=1, num_heads=HEADS, grid_indexing='xy'
    )
  return pos_embed_sincos.RotaryEmbeddingDinoV3(HEAD)


@pytest.mark.parametrize(
  'options',
  [
    dict(rotary='axial', layer_scale=0.5),
    dict(rotary='mixed', norm='rms', qk_norm=True, mlp='swiglu'),
    dict(rotary='dinov3', qkv_bias=False, mlp='swiglu', layer_scale=0.5),
  ],
  ids=str,
)
def test_blocks_with_rotary_positions_are_timms(options):
  options = {'qkv_bias': True, 'mlp': 'gelu', 'norm': 'layer'} | options
  ours = encoder.EncoderBlock(
    model_options.Options(
      *(1, HEADS, HIDDEN), gelu='exact', norm_epsilon=1e-6, **options
    )
  )
  call = dict(grid=GRID, train=False)
  x, weights = RNG.normal(size=(2, 2, PREFIX + 6, WIDTH)).astype('f')
  params = naive.random_params(ours, x, **call)
  gated = options['mlp'] == 'swiglu'
  norm = timm.layers.RmsNorm if options['norm'] == 'rms' else torch.nn.LayerNorm
  kind = options['rotary']
  block = eva.EvaBlock(
    *(WIDTH, HEADS),
    qkv_bias=options['qkv_bias'],
    qkv_fused=False,
    mlp_ratio=HIDDEN / WIDTH,
    swiglu_mlp=gated,
    swiglu_align_to=8 * gated,
    num_prefix_tokens=PREFIX,
    attn_type='rope',
    rotate_half=kind == 'dinov3',
    qk_norm=options.get('qk_norm', False),
    init_values=options.get('layer_scale'),
    norm_layer=functools.partial(norm, eps=1e-6),
  )
  theirs = _WithRope(block, _rope(kind))
  names = {
    theirs: f'block.{theirs}' if theirs != 'rope.freqs' else theirs
    for theirs in TIMM[gated].write(tiny.flat(params))
  }

  def converted(params):
    arrays = TIMM[gated].write(tiny.flat(params))
    if 'rope.freqs' in arrays:
      arrays['rope.freqs'] = arrays['rope.freqs'][:, None]  # Layers.
    return {names[name]: np.asarray(a) for name, a in arrays.items()}

  _load(theirs, converted(params))
  given = torch.tensor(x, requires_grad=True)
  expected = theirs(given)
  (expected * torch.tensor(weights)).sum().backward()
  out, grads, x_grad = _run(
    lambda params, x: ours.apply({'params': params}, x, **call),
    *(params, x, weights),
  )
  _assert_close(
    {'': out, 'x': x_grad} | converted(grads),
    {'': expected.detach().numpy(), 'x': given.grad.numpy()}
    | {name: p.grad.numpy() for name, p in theirs.named_parameters()},
  )


def test_layer_scale_is_that_of_timms_vit():
  options = model_options.Options(
    1, HEADS, HIDDEN, layer_scale=0.5, gelu='exact'
  )
  ours, call = encoder.EncoderBlock(options), dict(grid=GRID, train=False)
  x = RNG.normal(size=(2, 7, WIDTH)).astype('f')
  params = naive.random_params(ours, x, **call)
  block = vision_transformer.Block(
    *(WIDTH, HEADS), mlp_ratio=HIDDEN / WIDTH, qkv_bias=True, init_values=0.5
  )
  assert block.ls1.gamma.detach().numpy() == pytest.approx(0.5)
  arrays = TIMM[False].write(tiny.flat(params))
  for leaf in ('weight', 'bias'):  # One layer gives all three.
    parts = [arrays.pop(f'attn.{n}_proj.{leaf}') for n in 'qkv']
    arrays[f'attn.qkv.{leaf}'] = np.concatenate(parts)
  for i in ('1', '2'):
    arrays[f'ls{i}.gamma'] = arrays.pop(f'gamma_{i}')
  _load(block, arrays)
  out = jax.jit(functools.partial(ours.apply, **call))({'params': params}, x)
  expected = block(torch.tensor(x)).detach().numpy()
  np.testing.assert_allclose(out, expected, atol=1e-5)


def test_swiglu_is_dinov2s():
  config = transformers.Dinov2Config(hidden_size=WIDTH, mlp_ratio=4)
  theirs = modeling_dinov2.Dinov2SwiGLUFFN(config)
  options = model_options.Options(1, HEADS, mlp_dim=88, mlp='swiglu')
  ours = encoder.MlpBlock(options)
  x = RNG.normal(size=(2, 7, WIDTH)).astype('f')
  params = naive.random_params(ours, x, train=False)
  names = {'gate_proj': 'gate', 'up_proj': 'Dense_0', 'down_proj': 'Dense_1'}
  _load(theirs, Family(tuple(of_pytorch(names))).write(tiny.flat(params)))
  out = ours.apply({'params': params}, x, train=False)
  expected = theirs(torch.tensor(x)).detach().numpy()
  np.testing.assert_allclose(out, expected, atol=1e-5)


DINOV3 = Family(
  (
    Rule('embeddings.cls_token', 'cls'),
    *of_pytorch(
      {
        'embeddings.patch_embeddings': 'embedding',
        'norm': 'Transformer/encoder_norm',
      }
    ),
    *(
      Rule(f'model.layer.{{i}}.{rule.theirs}', *rule[1:])
      for rule in _block_rules(
        'Transformer/encoderblock_{i}/',
        (
          *(f'attention.{name}_proj' for name in 'qkvo'),
          *('mlp.up_proj', 'mlp.gate_proj', 'mlp.down_proj'),
        ),
        'layer_scale{}.lambda1',
      )
    ),
  )
)


@pytest.mark.parametrize('size', [(8, 12), (12, 12)])
@pytest.mark.parametrize('mlp', ['gelu', 'swiglu'])
def test_dinov3_is_that_of_transformers(size, mlp):
  model = tiny.vit(
    **dict(width=WIDTH, heads=HEADS, mlp_dim=HIDDEN, layer_scale=1.0, mlp=mlp),
    **dict(rotary='dinov3', position_embedding='none'),
    **dict(norm_epsilon=1e-5, gelu='exact'),
  )
  params = naive.random_params(model, np.zeros((1, *size, 3), 'f'))
  del params['head']
  theirs = transformers.DINOv3ViTModel(
    transformers.DINOv3ViTConfig(
      **dict(hidden_size=WIDTH, num_attention_heads=HEADS, patch_size=4),
      **dict(intermediate_size=HIDDEN, num_hidden_layers=2, image_size=8),
      **dict(use_gated_mlp=mlp == 'swiglu', key_bias=True),
      hidden_act='silu' if mlp == 'swiglu' else 'gelu',
    )
  ).eval()
  assert (theirs.config.rope_theta, theirs.config.layer_norm_eps) == (100, 1e-5)
  # Those of other tokens, which we lack here.
  others = {
    f'embeddings.{name}': theirs.get_parameter(f'embeddings.{name}').detach()
    for name in ('mask_token', 'register_tokens')
  }
  _load(theirs, DINOV3.write(tiny.flat(params)) | others)
  images = RNG.uniform(-1, 1, (2, *size, 3)).astype('f')
  tokens = 1 + size[0] * size[1] // 16
  weights = RNG.normal(size=(2, tokens, WIDTH)).astype('f')
  head = {'kernel': np.zeros((WIDTH, 5), 'f'), 'bias': np.zeros(5, 'f')}
  out, grads, _ = _run(
    lambda params, images: model.apply(
      {'params': params | {'head': head}}, images
    )[1]['encoded'],
    *(params, images, weights),
  )
  pixels = torch.tensor(images.transpose(0, 3, 1, 2))
  expected = theirs(pixels).last_hidden_state
  (expected * torch.tensor(weights)).sum().backward()
  _assert_close(
    {'': out} | DINOV3.write(tiny.flat(grads)),
    {'': expected.detach().numpy()}
    | {
      name: p.grad.numpy()
      for name, p in theirs.named_parameters()
      if name not in others
    },
  )
