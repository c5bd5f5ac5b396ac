"""Guards: photographs are prepared as transformers and timm prepare them."""

import functools
import io
import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('torch')
pytest.importorskip('torchvision')
transformers = pytest.importorskip('transformers')
timm_data = pytest.importorskip('timm.data')

from vit_jax.data import ops  # noqa: E402
from vit_jax.interop import processors  # noqa: E402

pytestmark = pytest.mark.hf


@functools.cache
def _photographs():
  """Returns JPEGs of smooth noise, some smaller than what models see."""
  rng, files = np.random.default_rng(0), []
  for height, width in rng.integers(120, 640, (20, 2)):
    coarse = rng.integers(0, 256, (height // 24, width // 24, 3), np.uint8)
    files.append(io.BytesIO())
    Image.fromarray(coarse).resize((width, height)).save(files[-1], 'JPEG')
  return [file.getvalue() for file in files]


def _difference(prepared, theirs, size=(224, 224)):
  """Returns by how many grey levels their images differ from ours, at most."""
  mean = np.float64(prepared.image_mean or 0.5)
  std = np.float64(prepared.image_std or 0.5)
  prepare = ops.parse(
    prepared.preprocessing, image_size=size, channels=3, **prepared.decoding
  )
  differences = []
  for photograph in _photographs():
    pixels = theirs(Image.open(io.BytesIO(photograph)))
    expected = 255 * (np.asarray(pixels).transpose(1, 2, 0) * std + mean)
    differences.append(np.abs(expected - prepare(photograph, None)).max())
  return max(differences)


@pytest.mark.parametrize('backend', ['Pil', ''])
@pytest.mark.parametrize(
  'kind, options',
  [
    ('ViT', {}),
    ('DeiT', dict(size=251, crop_size=dict(height=224, width=224))),
    ('Bit', dict(size={'shortest_edge': 256}, image_mean=[0.4, 0.5, 0.6])),
    ('CLIP', dict(size=231)),
    ('Siglip', dict(resample=1)),
    ('DINOv3ViT', {}),
  ],
)
def test_transformers(tmp_path, kind, options, backend):
  # Version 4 has other names: without ending, and with Fast.
  new = hasattr(transformers, 'ViTImageProcessorPil')
  ending = backend if new else {'Pil': '', '': 'Fast'}[backend]
  name = f'{kind}ImageProcessor{ending}'
  if not hasattr(transformers, name):
    pytest.skip(f'transformers has no {name}')
  processor = getattr(transformers, name)(**options)
  processor.save_pretrained(tmp_path)
  content = json.loads((tmp_path / 'preprocessor_config.json').read_text())
  prepared = processors.from_transformers(
    content, processor='ViTImageProcessor', image_size=(224, 224)
  )

  def theirs(image):
    return processor(image, return_tensors='pt')['pixel_values'][0]

  # torchvision rounds between the two axes in its own way, and DINOv3's
  # processor only at the end.
  bilinear = 'bilinear' in prepared.preprocessing
  allowed = 0 if backend == 'Pil' else 1 if bilinear else 2
  assert _difference(prepared, theirs) < allowed + 1e-4


@pytest.mark.parametrize(
  'config',
  [
    dict(mean=[0.5] * 3, std=[0.5] * 3),
    dict(crop_pct=0.9, interpolation='bicubic', mean=(0.4, 0.5, 0.6)),
    dict(crop_pct=1.0, interpolation='bilinear', crop_mode='center'),
    dict(crop_pct=0.95, crop_mode='squash', interpolation='lanczos'),
    dict(crop_pct=1.0, crop_mode='squash', input_size=(3, 224, 160)),
    dict(crop_pct=0.9, crop_mode='squash', input_size=(3, 192, 224)),
  ],
)
def test_timm(config):
  resolved = timm_data.resolve_data_config(pretrained_cfg=config)
  size = resolved['input_size'][1:]
  prepared = processors.from_timm(config, image_size=size)
  theirs = timm_data.create_transform(**resolved)
  assert _difference(prepared, theirs, size) < 1e-4
