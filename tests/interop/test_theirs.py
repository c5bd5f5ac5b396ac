"""Guards: transformers, timm and our models give equal logits for weights."""

import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
timm = pytest.importorskip('timm')

from tests.interop import tiny  # noqa: E402
from vit_jax import interop, models  # noqa: E402

pytestmark = pytest.mark.hf


def _images(size, channels=3):
  images = np.random.default_rng(0).uniform(-1, 1, (3, *size, channels))
  return images.astype(np.float32)


def _torch(images):
  return torch.tensor(images.transpose(0, 3, 1, 2))


def _small(model, size):
  """Returns random parameters of about a trained model's scale, large head."""
  params = tiny.params(model, size)
  return {k: _scaled(v, 12 if k == 'head' else 0.4) for k, v in params.items()}


def _scaled(tree, factor):
  if isinstance(tree, dict):
    return {k: _scaled(v, factor) for k, v in tree.items()}
  return (tree * factor).astype(np.float32)


@pytest.mark.parametrize(
  'options, size',
  [
    (dict(), (8, 8)),
    (dict(gelu='exact', norm_epsilon=0.1), (8, 8)),
    (dict(depth=3, heads=4, mlp_dim=40), (8, 16)),
    (dict(patch_size=(4, 2)), (8, 8)),
  ],
)
def test_transformers_reads_our_folder_with_equal_logits(
  tmp_path, options, size
):
  model = tiny.vit(**options)
  params = _small(model, size)
  names = ['ant', 'bee', 'cat', 'dog', 'eel']
  interop.save_huggingface(tmp_path, params, model, size, class_names=names)
  theirs, info = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path, output_loading_info=True
  )
  for problem in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
    assert not info[problem]
  assert [theirs.config.id2label[i] for i in range(5)] == names
  images = _images(size)
  expected, _ = model.apply({'params': params}, images)
  with torch.no_grad():
    logits = theirs.eval()(_torch(images)).logits.numpy()
  assert np.std(expected) > 0.5
  np.testing.assert_allclose(logits, expected, atol=1e-4)
  # The tolerance is small enough to show another GELU or epsilon.
  for default in ({'gelu': 'tanh'}, {'norm_epsilon': 1e-6}):
    if options.keys() & default:
      different, _ = tiny.vit(**(options | default)).apply(
        {'params': params}, images
      )
      assert abs(different - expected).max() > 1e-3


def _like_trained(params, factor):
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
      scaled[name] = _like_trained(part, factor)
  return scaled


def _compare(model, theirs, size, path, factor):
  params = _like_trained(tiny.params(model, size), factor)
  interop.save_npz(path, params, model, image_size=size)
  theirs.load_pretrained(str(path))
  images = np.random.default_rng(1).uniform(-1, 1, (2, *size, 3))
  images = images.astype(np.float32)
  expected, _ = model.apply({'params': params}, images)
  with torch.no_grad():
    logits = theirs.eval()(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()
  assert np.std(expected) > 0.1
  np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_timm_reads_our_vit(tmp_path):
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


def test_timm_reads_our_hybrid(tmp_path):
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


def test_timm_reads_our_bit(tmp_path):
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
