"""Guards what files say of images, as operations, means and deviations."""

import json

import pytest

from vit_jax.interop import processors

SIZE = (224, 224)
BICUBIC, LINEAR = "method='pillow_bicubic'", "method='pillow_bilinear'"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = (
  (0.48145466, 0.4578275, 0.40821073),
  (0.26862954, 0.26130258, 0.27577711),
)


def _read(content, **options):
  return processors.from_transformers(
    content, processor='ViTImageProcessor', image_size=SIZE, **options
  )


def _write(prepared, **options):
  content = processors.to_transformers(
    prepared,
    processor='SiglipImageProcessor',
    image_size=prepared.size or SIZE,
    **options,
  )
  return json.loads(json.dumps(content))


def _theirs(content):
  return {k: v for k, v in content.items() if not k.startswith('vit_jax')}


def _of(kind, **content):
  return dict(image_processor_type=f'{kind}ImageProcessor', **content)


def _check_written(prepared):
  """What is written says the same to us and to others."""
  written = _write(prepared)
  assert _read(written) == _read(_theirs(written)) == prepared
  return written


@pytest.mark.parametrize(
  'content, operations, size',
  [
    (dict(), f'resize({LINEAR})', None),
    (
      dict(feature_extractor_type='ViTFeatureExtractor', size=9),
      *(f'resize({LINEAR})', (9, 9)),
    ),
    (
      dict(size=[224, 9], resample=0),
      *("resize(method='pillow_nearest')", (224, 9)),
    ),
    (
      _of('DeiT', do_rescale=None),
      f'resize(256, {BICUBIC})|central_crop',
      None,
    ),
    (
      _of('DeiT', crop_size=dict(height=8, width=6), do_pad=False, _name='x'),
      *(f'resize(256, {BICUBIC})|central_crop', (8, 6)),
    ),
    (
      _of('Bit', size=dict(shortest_edge=256)),
      *(f'resize_small(256, {BICUBIC})|central_crop', None),
    ),
    (
      _of('CLIP', size=224, crop_size=9),
      *(f'resize_small(224, {BICUBIC})|central_crop', (9, 9)),
    ),
    (_of('Siglip', do_convert_rgb=True), f'resize({BICUBIC})', None),
    (
      _of('Siglip', size=9, do_center_crop=True, crop_size=8),
      *(f'resize_small(9, {BICUBIC})|central_crop', (8, 8)),
    ),
    (
      dict(
        image_processor_type='DINOv3ViTImageProcessorFast',
        crop_size=None,
        default_to_square=True,
      ),
      *(f'resize({LINEAR})', None),
    ),
  ],
)
def test_fields_and_defaults_of_transformers(content, operations, size):
  prepared = _read(content)
  assert (prepared.preprocessing, prepared.size) == (operations, size)
  # Pillow decodes accurately.
  assert prepared.decoding == {'jpeg_dct': 'accurate'}
  assert _read(dict(image_processor=content, tokenizer={})) == prepared
  # The processor that is written crops as it does by default.
  kind = _check_written(prepared)['image_processor_type']
  crops = {'resize': ('Siglip', 'DeiT'), 'resize_small': ('Siglip', 'Bit')}
  name = crops[operations.split('(')[0]]['central_crop' in operations]
  assert kind == f'{name}ImageProcessor'


@pytest.mark.parametrize(
  'content, mean, std',
  [
    (dict(), None, None),
    (dict(image_mean=[0.5] * 3, image_std=[0.5]), None, None),
    (dict(image_mean=[0.1], image_std=2), (0.1,) * 3, (2,) * 3),
    (dict(image_mean=0, image_std=None), (0,) * 3, (0.5,) * 3),
    (dict(do_normalize=False, image_mean=0.3), (0,) * 3, (1,) * 3),
    (_of('Bit'), *CLIP),
    (_of('CLIP'), *CLIP),
    (_of('DINOv3ViT'), *IMAGENET),
  ],
)
def test_means_and_deviations_of_transformers(content, mean, std):
  prepared = _read(content)
  assert (prepared.image_mean, prepared.image_std) == (mean, std)
  _check_written(prepared)


@pytest.mark.parametrize(
  'content, message',
  [
    (_of('Siglip2'), "'Siglip2.*ViT.*DeiT"),
    (dict(size=dict(shortest_edge=9, longest_edge=9)), 'the size .*longest'),
    (dict(size='8'), 'expected a side'),
    (dict(do_center_crop=True), 'the size None'),
    (_of('CLIP', crop_size=dict(shortest_edge=8)), 'the size .*shortest'),
    (dict(do_resize=False, resample=6), 'do_resize=False.*; resample=6'),
    (dict(auto_map={'AutoImageProcessor': 'x.Y'}), 'auto_map='),
    (dict(do_rescale=False), 'the range of the images'),
    (dict(rescale_factor=1 / 127.5), 'the range of the images'),
    (dict(image_mean=[0.4, 0.5]), r'mean \[0\.4, 0\.5\] .* for 3 channels'),
    (dict(image_std=[0.4, 0, 1]), r'deviation \[0\.4, 0, 1\]'),
  ],
)
def test_images_of_transformers_that_are_refused(content, message):
  with pytest.raises(ValueError, match=message):
    _read(content)


@pytest.mark.parametrize(
  'config, operations',
  [
    (dict(crop_pct=None), f'eval_crop(0.875, {BICUBIC})'),
    (
      dict(crop_pct=0.95, interpolation='bilinear'),
      f'eval_crop(0.95, {LINEAR})',
    ),
    (
      dict(crop_mode='squash', crop_pct=1.0),
      f'eval_crop(1.0, {BICUBIC}, squash=True)',
    ),
  ],
)
@pytest.mark.parametrize(
  'values, found',
  [({}, IMAGENET), (dict(mean=[0.5] * 3, std=[0.5] * 3), (None, None))],
)
def test_images_of_timm(config, operations, values, found):
  prepared = processors.from_timm(config | values, image_size=SIZE)
  decoding = {'jpeg_dct': 'accurate'}
  assert prepared == processors.Prepared(operations, decoding, '', *found)
  entries = processors.to_timm(prepared, image_size=SIZE)
  assert entries['input_size'] == [3, *SIZE]
  assert processors.from_timm(entries, image_size=SIZE) == prepared


@pytest.mark.parametrize(
  'config, size, message',
  [
    (dict(crop_mode='border'), SIZE, "'border', expected 'squash', or"),
    (dict(crop_mode='center'), (224, 160), "'center', expected 'squash', or"),
    (dict(interpolation='random'), SIZE, r'unknown method .*random'),
    (dict(crop_pct=1.1), SIZE, r'ratio must lie in \(0, 1\]'),
    (dict(std=[0.5, 0.5]), SIZE, 'for 3 channels'),
  ],
)
def test_images_of_timm_that_are_refused(config, size, message):
  with pytest.raises(ValueError, match=message):
    processors.from_timm(config, image_size=size)


def test_nothing_said_is_nothing_known():
  nothing = processors.Prepared()
  assert _read(None) == processors.from_timm({}, image_size=SIZE) == nothing
  assert _read(dict(vit_jax_preprocessing='')) == nothing


BOX = "resize(256, method='pillow_box')|central_crop"
SMALL = f'resize_small(256, {BICUBIC})|central_crop'


@pytest.mark.parametrize(
  'operations, theirs, in_timm',
  [
    ('pad(2)|random_crop', f'resize({LINEAR})', ('bilinear', 1, 'squash')),
    (
      "resize_small(256, method='area')|central_crop",
      f'resize_small(256, {LINEAR})|central_crop',
      ('bilinear', 0.875, 'center'),
    ),
    ('eval_crop(0.875)', SMALL, ('bicubic', 0.875, 'center')),
    (
      'eval_crop(0.7, squash=True)',
      f'resize(320, {BICUBIC})|central_crop',
      ('bicubic', 0.7, 'squash'),
    ),
    (BOX, BOX, ('box', 0.875, 'squash')),
  ],
)
def test_others_do_what_is_nearest_to_our_ways(operations, theirs, in_timm):
  described = (operations, {'upright': False}, 'sigmoid')
  prepared = processors.Prepared(*described, (0.2,), (3.0,))
  written = _write(prepared, channels=1)
  assert _read(written, channels=1) == prepared
  assert _read(_theirs(written), channels=1).preprocessing == theirs
  entries = processors.to_timm(prepared, image_size=SIZE, channels=1)
  keys = ('interpolation', 'crop_pct', 'crop_mode')
  assert tuple(entries[key] for key in keys) == in_timm
