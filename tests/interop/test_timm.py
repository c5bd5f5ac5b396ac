"""Guards: timm, which loads released files, loads ours with equal logits."""

import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from tests.interop import tiny  # noqa: E402
from vit_jax import interop, models  # noqa: E402

pytestmark = pytest.mark.hf


def _scaled(params, factor):
  """Scales parameters to about a trained model's; norms' scales are near 1."""
  if not isinstance(params, dict):
    return params * factor
  scaled = {}
  for name, part in params.items():
    if name == 'scale':
      scaled[name] = part * factor + 1
    elif name.startswith('conv'):
      scaled[name] = part  # Standardized: epsilon matters less if it is large.
    else:
      scaled[name] = _scaled(part, factor)
  return scaled


def _compare(model, theirs, size, path, factor):
  params = _scaled(tiny.params(model, size), factor)
  interop.save_npz(path, params, model, image_size=size)
  theirs.load_pretrained(str(path))
  images = np.random.default_rng(1).uniform(-1, 1, (2, *size, 3))
  images = images.astype(np.float32)
  expected, _ = model.apply({'params': params}, images)
  with torch.no_grad():
    logits = theirs.eval()(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()
  assert np.std(expected) > 0.1
  np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_vit(tmp_path):
  model = tiny.vit(gelu='exact')
  theirs = timm.models.vision_transformer.VisionTransformer(
    img_size=8,
    patch_size=4,
    embed_dim=16,
    depth=2,
    num_heads=2,
    mlp_ratio=1.5,
    num_classes=5,
  )
  _compare(model, theirs, (8, 8), tmp_path / 'a.npz', 0.3)


def test_hybrid(tmp_path):
  model = models.build(
    'R26+S/32',
    num_classes=5,
    width=96,
    mlp_dim=384,
    depth=2,
    gelu='exact',
  )
  theirs = timm.create_model(
    'vit_small_r26_s32_224',
    img_size=64,
    embed_dim=96,
    depth=2,
    num_classes=5,
  )
  for part in theirs.modules():
    # timm adds its epsilon to the variance; see tests/models/test_timm.py.
    if 'StdConv' in type(part).__name__:
      part.eps = 1e-10
    elif isinstance(part, torch.nn.GroupNorm):
      part.eps = 1e-6
  _compare(model, theirs, (64, 64), tmp_path / 'a.npz', 0.1)


def test_bit(tmp_path):
  model = models.build('BiT-R50x1', num_classes=5, blocks=(2, 1, 1, 1))
  theirs = timm.models.resnetv2.ResNetV2(
    layers=[2, 1, 1, 1],
    num_classes=5,
    stem_type='fixed',
    conv_layer=timm.layers.StdConv2d,
  )
  for part in theirs.modules():
    if 'StdConv' in type(part).__name__:
      part.eps = 1e-10
  _compare(model, theirs, (64, 64), tmp_path / 'a.npz', 0.1)
