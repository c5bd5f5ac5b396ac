"""Guards: our blocks equal those of timm, with equal weights.

Outputs and all gradients, also of the frequencies of rotary positions.
"""

import functools

import jax
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from timm.layers import pos_embed_sincos  # noqa: E402
from timm.models import eva  # noqa: E402

from tests.interop import tiny  # noqa: E402
from tests.models import naive  # noqa: E402
from vit_jax.interop.layouts import Family, Rule, of_pytorch  # noqa: E402
from vit_jax.models import encoder, model_options  # noqa: E402

pytestmark = pytest.mark.hf

RNG = np.random.default_rng(0)
WIDTH, HEADS, HIDDEN, GRID, PREFIX = 32, 2, 48, (2, 3), 5


_MHA = 'MultiHeadDotProductAttention_0/'
TIMM = Family(
  (
    Rule('rope.freqs', f'{_MHA}rotary_frequencies'),
    *(Rule(f'gamma_{i + 1}', f'layer_scale_{i}') for i in (0, 1)),
    *of_pytorch(
      {
        'attn.q_proj': f'{_MHA}query',
        'attn.k_proj': f'{_MHA}key',
        'attn.v_proj': f'{_MHA}value',
        'attn.proj': f'{_MHA}out',
        'attn.q_norm': f'{_MHA}query_norm',
        'attn.k_norm': f'{_MHA}key_norm',
        'mlp.fc1_g': 'MlpBlock_0/gate',
        'mlp.fc1_x': 'MlpBlock_0/Dense_0',
        'mlp.fc2': 'MlpBlock_0/Dense_1',
      }
    ),
    *of_pytorch({'norm1': 'LayerNorm_0', 'norm2': 'LayerNorm_1'}),
    *of_pytorch({'norm1': 'RMSNorm_0', 'norm2': 'RMSNorm_1'}),
  )
)


def _rope(kind):
  width = WIDTH // HEADS
  if kind == 'axial':
    return pos_embed_sincos.RotaryEmbeddingCat(
      width, in_pixels=False, temperature=100.0, grid_indexing='xy'
    )
  if kind == 'dinov3':
    return pos_embed_sincos.RotaryEmbeddingDinoV3(width)
  mixed = pos_embed_sincos.RotaryEmbeddingMixed(WIDTH, 1, HEADS)
  mixed.freqs = torch.nn.Parameter(mixed.freqs[:, 0])  # Of the only layer.
  return mixed


@pytest.mark.parametrize(
  'options',
  [
    dict(rotary='axial', layer_scale=0.5),
    dict(rotary='mixed', norm='rms', qk_norm=True),
    dict(rotary='dinov3', qkv_bias=False, norm='rms', layer_scale=0.5),
  ],
  ids=str,
)
def test_blocks_are_timms(options):
  sizes = dict(depth=1, heads=HEADS, mlp_dim=HIDDEN, mlp='swiglu')
  options = model_options.Options(**sizes, **options)
  block, call = encoder.EncoderBlock(options), dict(grid=GRID, train=False)
  x = RNG.normal(size=(2, PREFIX + 6, WIDTH)).astype('f')
  rms = options.norm == 'rms'
  norm = timm.layers.RmsNorm if rms else torch.nn.LayerNorm
  theirs = eva.EvaBlock(
    *(WIDTH, HEADS),
    **dict(attn_type='rope', num_prefix_tokens=PREFIX, qkv_fused=False),
    **dict(swiglu_mlp=True, swiglu_align_to=8, mlp_ratio=HIDDEN / WIDTH),
    **dict(qkv_bias=options.qkv_bias, qk_norm=options.qk_norm),
    rotate_half=options.rotary == 'dinov3',
    init_values=options.layer_scale,
    norm_layer=functools.partial(norm, eps=1e-6),
  )
  theirs.rope = _rope(options.rotary)
  params = naive.random_params(block, x, **call)
  state = TIMM.write(tiny.flat(params)).items()
  theirs.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in state})
  expected = theirs(torch.tensor(x), rope=theirs.rope.get_embed(list(GRID)))
  weights = RNG.normal(size=expected.shape).astype('f')
  (expected * torch.tensor(weights)).sum().backward()

  def loss(params):
    out = block.apply({'params': params}, x, **call)
    return (out * weights).sum(), out

  (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  grads, own = TIMM.write(tiny.flat(grads)), dict(theirs.named_parameters())
  assert grads.keys() == own.keys()
  pairs = {name: (grads[name], own[name].grad.numpy()) for name in own}
  pairs['output'] = out, expected.detach().numpy()
  for name, (found, wanted) in pairs.items():
    size = np.abs(wanted).max()
    assert size > 1e-3, name
    assert np.abs(found - wanted).max() < 1e-5 * max(1, size), name
