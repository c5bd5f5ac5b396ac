"""Guards: ViTs with more tokens, heads or norms equal timm's.

Tokens of equal parameters, rates by layer, resized kernels. Outputs and
gradients are compared in tests/interop/test_families.py.
"""

import jax
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from timm.layers import resample_patch_embed  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402
from timm.optim import param_groups_layer_decay  # noqa: E402

from tests.interop import tiny  # noqa: E402
from vit_jax.interop import families  # noqa: E402
from vit_jax.models import layers, patches  # noqa: E402
from vit_jax.training import tuning  # noqa: E402

pytestmark = pytest.mark.hf

SIZE = (8, 12)
RNG = np.random.default_rng(0)

TIMM = families.OTHERS['timm']
# Our options, and timm's.
PAIRS = {
  'registers': (
    {'registers': 4, 'class_position': False},
    {'reg_tokens': 4, 'no_embed_class': True},
  ),
  'registers, mean': (
    {'registers': 4, 'pooling': 'gap', 'final_norm': 'pooled'},
    {'reg_tokens': 4, 'no_embed_class': True}
    | {'class_token': False, 'global_pool': 'avg'},
  ),
  'mae': (
    {'pooling': 'gap_patches', 'final_norm': 'pooled'},
    {'global_pool': 'avg'},
  ),
  'distilled': ({'distillation_token': True}, {}),
  'dinov2': (
    {'registers': 3, 'layer_scale': 1.0, 'class_position': False},
    {'reg_tokens': 3, 'no_embed_class': True, 'init_values': 1.0},
  ),
}


def _pair(name):
  """Returns our model and parameters, and timm's model with the same ones."""
  ours, options = PAIRS[name]
  model = tiny.vit(**{'gelu': 'exact'} | ours)
  params = jax.tree.map(lambda x: 0.4 * x, tiny.params(model, SIZE))
  kind = (
    VisionTransformerDistilled if name == 'distilled' else VisionTransformer
  )
  theirs = kind(
    **{'img_size': SIZE, 'patch_size': 4, 'num_classes': 5, 'embed_dim': 16},
    **{'depth': 2, 'num_heads': 2, 'mlp_ratio': 1.5},
    **options,
  )
  state = TIMM.write(tiny.flat(params))
  theirs.load_state_dict({k: torch.tensor(x) for k, x in state.items()})
  return model, params, theirs


@pytest.mark.parametrize('norm', [False, True])
@pytest.mark.parametrize('name', PAIRS)
def test_tokens_are_those_of_timms_intermediate_layers(name, norm):
  model, params, theirs = _pair(name)
  pixels = RNG.integers(0, 256, (3, *SIZE, 3), np.uint8)
  theirs_in = torch.tensor((pixels / 127.5 - 1).transpose(0, 3, 1, 2)).float()
  with torch.no_grad():
    expected = theirs.eval().get_intermediate_layers(
      theirs_in, 2, reshape=True, return_prefix_tokens=True, norm=norm
    )
  run = jax.jit(layers.tokens, static_argnums=(0, 3), static_argnames='norm')
  for found, both in zip(
    run(model, params, pixels, 2, norm=norm), expected, strict=True
  ):
    maps, prefix = both if model.prefix else (both, None)
    maps = np.moveaxis(maps.numpy(), 1, 3)
    np.testing.assert_allclose(found.patches, maps, atol=1e-5)
    if 'cls' in params:
      np.testing.assert_allclose(found.cls, prefix[:, 0], atol=1e-5)


@pytest.mark.parametrize('name', PAIRS)
def test_rates_by_layer_are_timms(name):
  _, params, theirs = _pair(name)
  expected = {}
  names = {id(x): key for key, x in theirs.named_parameters()}
  for group in param_groups_layer_decay(theirs, layer_decay=0.75):
    expected |= {names[id(x)]: group['lr_scale'] for x in group['params']}
  flat = tiny.flat(params)
  factors = tuning.layer_factors(0.75, {k: x.shape for k, x in flat.items()})
  filled = {k: np.full(x.shape, factors[k]) for k, x in flat.items()}
  for key, x in TIMM.write(filled).items():
    if key.startswith('norm.'):
      # Differs: timm puts the last norm into the last block, BEiT behind it.
      assert expected[key] == 0.75 * x.max()
    else:
      np.testing.assert_allclose(x, expected[key], err_msg=key)


@pytest.mark.parametrize('size', [(4, 6), (3, 5), (8, 9), (16, 7)])
def test_kernels_are_resized_as_by_timm(size):
  kernel = RNG.normal(size=(8, 6, 3, 5)).astype('f')
  expected = resample_patch_embed(
    torch.tensor(kernel.transpose(3, 2, 0, 1)),
    *(size, 'bilinear'),
    antialias=False,
  )
  found = np.asarray(patches.resize_kernel(kernel, size)).transpose(3, 2, 0, 1)
  scale = np.abs(expected.numpy()).max()
  np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)
