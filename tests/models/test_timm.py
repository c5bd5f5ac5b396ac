"""Guards: our ResNets give the same outputs as timm's with equal parameters."""

import string

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from tests.models import naive  # noqa: E402
from vit_jax.models import resnet  # noqa: E402

pytestmark = pytest.mark.hf

LAYERS = {  # Our name -> timm's.
  'conv_root': 'stem.conv',
  'gn_root': 'stem.norm',
  'gn_final': 'norm',
  'head': 'head.fc',
  **{f'conv{i}': f'conv{i}' for i in (1, 2, 3)},
  **{f'gn{i}': f'norm{i}' for i in (1, 2, 3)},
  'conv_proj': 'downsample.conv',
  'gn_proj': 'downsample.norm',
}


def _load(module, params, like):
  """Copies our parameters into timm's module.

  Raises if the parameters of the two do not match one to one.
  """
  state = {}
  for path, value in flax.traverse_util.flatten_dict(params).items():
    *units, layer, kind = path
    name = LAYERS[layer]
    if units:
      block, unit = (
        int(text.lstrip(string.ascii_lowercase)) - 1 for text in units
      )
      name = f'stages.{block}.blocks.{unit}.{name}'
    if not like(name):
      name = name.removeprefix('stem.')  # The module is only a root.
    if layer == 'head' and kind == 'kernel':
      value = value[None, None]  # timm's head is a 1x1 convolution.
    if kind == 'kernel':
      value = value.transpose(3, 2, 0, 1)
    kind = {'kernel': 'weight', 'scale': 'weight'}.get(kind, kind)
    state[f'{name}.{kind}'] = torch.from_numpy(value.copy())
  module.load_state_dict(state, strict=True)
  return module.eval()


def _images(*shape):
  return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def _torch(images):
  return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def _set_epsilons(module, *, conv, norm):
  for part in module.modules():
    if 'StdConv' in type(part).__name__:
      part.eps = conv
    elif isinstance(part, torch.nn.GroupNorm):
      part.eps = norm


def test_bit():
  images = _images(2, 64, 97, 3)
  model = resnet.BiT(num_classes=10)
  params = naive.random_params(model, images, scale=0.1)
  logits, out = jax.jit(model.apply)({'params': params}, images)
  theirs = timm.create_model('resnetv2_50x1_bit', num_classes=10)
  # timm's epsilon for the variance of the weights is 1e-8 for BiT and 1e-6 by
  # default; BiT's own code uses 1e-10. Norms have 1e-5 in both.
  _set_epsilons(theirs, conv=1e-10, norm=1e-5)
  _load(theirs, params, like=lambda name: True)
  with torch.no_grad():
    encoded = theirs.forward_features(_torch(images))
    expected = theirs(_torch(images)).numpy()
  encoded = encoded.numpy().transpose(0, 2, 3, 1)
  assert np.abs(expected).max() > 0.1
  np.testing.assert_allclose(logits, expected, atol=1e-4)
  np.testing.assert_allclose(out['encoded'], encoded, atol=1e-4)


class Features(nn.Module):
  blocks: tuple[int, ...]

  @nn.compact
  def __call__(self, images):
    return resnet.backbone(images, blocks=self.blocks)


@pytest.mark.parametrize(
  'blocks, size',
  [((), (64, 97)), ((1, 2), (61, 50)), ((3, 4, 9), (64, 97))],
)
def test_hybrid_backbone(blocks, size):
  images = _images(2, *size, 3)
  params = naive.random_params(Features(blocks), images, scale=0.3)
  features = jax.jit(Features(blocks).apply)({'params': params}, images)
  conv = timm.layers.StdConv2dSame
  if blocks:
    theirs = timm.models.resnetv2.ResNetV2(
      layers=list(blocks),
      channels=(256, 512, 1024, 2048)[: len(blocks)],
      num_classes=0,
      global_pool='',
      preact=False,
      stem_type='same',
      conv_layer=conv,
    )
  else:
    theirs = timm.models.resnetv2.create_resnetv2_stem(
      3, stem_type='same', preact=False, conv_layer=conv
    )
  # timm adds an epsilon to the variance of the weights. The released code adds
  # 1e-5 to their standard deviation instead. At a deviation of 0.3, 1e-5 scales
  # all weights by 1 - 3e-5, and the norm after each convolution cancels that
  # scale.
  _set_epsilons(theirs, conv=1e-10, norm=1e-6)
  parts = dict(theirs.named_modules())
  _load(theirs, params, like=lambda name: name in parts)
  with torch.no_grad():
    expected = theirs(_torch(images)).numpy().transpose(0, 2, 3, 1)
  assert features.shape == expected.shape
  np.testing.assert_allclose(
    features, expected, atol=1e-4 * np.abs(expected).max()
  )
