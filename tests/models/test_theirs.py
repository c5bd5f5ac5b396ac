"""Guards: our blocks equal those of timm, with equal weights.

Outputs and all gradients, also of the frequencies of rotary positions.
"""

import functools
import itertools

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


def family(theirs, ours, scale, names, *others):
  """Returns the names of a block, after prefixes, and of other arrays."""
  mha = f'{ours}MultiHeadDotProductAttention_0'
  mlp = f'{ours}MlpBlock_0'
  parts = (
    *(f'{mha}/query', f'{mha}/key', f'{mha}/value', f'{mha}/out'),
    *(f'{mlp}/gate', f'{mlp}/Dense_0', f'{mlp}/Dense_1'),
    *(f'{mha}/query_norm', f'{mha}/key_norm'),
  )
  modules = [
    (theirs + name, part) for name, part in zip(names, parts, strict=False)
  ]
  for i in (0, 1):
    name = f'{theirs}norm{i + 1}'
    modules += [(name, f'{ours}{kind}Norm_{i}') for kind in ('Layer', 'RMS')]
    others += (Rule(theirs + scale.format(i + 1), f'{ours}layer_scale_{i}'),)
  rules = (of_pytorch(dict([module])) for module in modules)
  return Family((*others, *itertools.chain(*rules)))


TIMM = family(
  *('', '', 'gamma_{}'),
  (
    *(f'attn.{name}' for name in ('q_proj', 'k_proj', 'v_proj', 'proj')),
    *('mlp.fc1_g', 'mlp.fc1_x', 'mlp.fc2', 'attn.q_norm', 'attn.k_norm'),
  ),
  Rule('rope.freqs', 'MultiHeadDotProductAttention_0/rotary_frequencies'),
)


def _compare(family, ours, params, x, module, theirs, unused=()):
  """Asserts equal outputs, and gradients of a weighted sum of them.

  Args:
    family: the names of the parameters.
    ours: maps parameters and x to the output.
    params: our parameters.
    x: our input.
    module: PyTorch's module, which gets our parameters.
    theirs: returns the module's output.
    unused: names of its parameters that we lack.
  """

  def loss(params):
    out = ours(params, x)
    return (out * weights).sum(), out

  state = family.write(tiny.flat(params)).items()
  state = {name: torch.tensor(np.asarray(array)) for name, array in state}
  own = dict(module.named_parameters())
  module.load_state_dict(state | {k: own.pop(k) for k in unused}, strict=True)
  expected = theirs()
  weights = RNG.normal(size=expected.shape).astype('f')
  (expected * torch.tensor(weights)).sum().backward()
  (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  pairs = {'output': (out, expected.detach().numpy())}
  grads = family.write(tiny.flat(grads))
  assert own.keys() == grads.keys()
  pairs |= {name: (grads[name], own[name].grad.numpy()) for name in own}
  for name, (found, wanted) in pairs.items():
    size = np.abs(wanted).max()
    assert size > 1e-3, name
    assert np.abs(found - wanted).max() < 1e-5 * max(1, size), name


def _rope(kind, width=WIDTH // HEADS):
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
  _compare(
    TIMM,
    lambda params, x: block.apply({'params': params}, x, **call),
    naive.random_params(block, x, **call),
    x,
    theirs,
    lambda: theirs(torch.tensor(x), rope=theirs.rope.get_embed(list(GRID))),
  )
