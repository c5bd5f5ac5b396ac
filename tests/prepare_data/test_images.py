"""Guards what is stored of an image."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.prepare_data import odd_files
from vit_jax.data.ops import decoding
from vit_jax.prepare_data import images
from vit_jax.prepare_data.images import Size


@pytest.mark.parametrize('name', odd_files.FILES)
def test_odd_files(name):
  content, outcome, text = odd_files.FILES[name]
  if outcome == odd_files.SET_ASIDE:
    with pytest.raises(images.SetAsideError, match=text):
      images.store(content, name, Size())
    return
  stored = images.store(content, name, Size())
  assert stored.converted == (outcome == odd_files.CONVERTED)
  assert (stored.image == content) != stored.converted
  assert text in ' '.join(stored.notes)
  assert bool(stored.notes) == bool(text)
  assert images.identify(stored.image) in ('JPEG', 'PNG')


@pytest.mark.parametrize(
  'name',
  [n for n, (_, what, _) in odd_files.FILES.items() if what == 'converted'],
)
def test_a_conversion_shows_the_same_picture(name):
  content = odd_files.FILES[name][0]
  made = decoding.decode(images.store(content, name, Size()).image, 3)
  mode = 'L' if 'grey' in name else 'RGB'
  scene = odd_files.scene(mode, made.shape[1::-1]).convert('RGB')
  difference = np.abs(made.astype(int) - np.asarray(scene)).mean()
  # GIFs have few colours, and lossy formats lose some of the edge twice.
  assert difference < (12 if 'gif' in name else 8)


@pytest.mark.parametrize('name', ['plain.bmp', 'plain.ppm', 'lossless.webp'])
def test_lossless_formats_stay_lossless(name):
  made = images.store(odd_files.FILES[name][0], name, Size()).image
  assert (decoding.decode(made, 3) == np.asarray(odd_files.scene())).all()


def test_arrays_become_pngs():
  pixels = np.random.default_rng(0).integers(
    256, size=(5, 7, 3), dtype=np.uint8
  )
  stored = images.store(pixels, 'train/0', Size())
  assert stored.converted
  assert (decoding.decode(stored.image, 3) == pixels).all()
  grey = images.store(pixels[:, :, :1], 'train/0', Size()).image
  assert (decoding.decode(grey, 1) == pixels[:, :, :1]).all()


@pytest.mark.parametrize(
  'size, expected',
  [
    (Size(shorter_side=60), (60, 80)),
    (Size(area=60 * 80), (60, 80)),
    (Size(shorter_side=200), (150, 200)),  # Never enlarged.
    (Size(area=200 * 200), (150, 200)),
    (Size(), (150, 200)),
  ],
)
def test_sizes(size, expected):
  content = odd_files.encoded(odd_files.scene(size=(200, 150)), 'JPEG')
  stored = images.store(content, 'a.jpg', size)
  assert decoding.decode(stored.image, 3).shape == (*expected, 3)
  assert stored.converted == (expected != (150, 200))
  assert ('resized' in stored.notes) == stored.converted


def test_shrinking_turns_upright_since_the_exif_data_is_lost():
  content = odd_files.FILES['rotated.jpg'][0]  # 40 wide; to turn clockwise.
  stored = images.store(content, 'a.jpg', Size(shorter_side=15))
  made = decoding.decode(stored.image, 3)
  assert made.shape == (20, 15, 3)
  expected = odd_files.scene().rotate(-90, expand=True).resize((15, 20))
  assert np.abs(made.astype(int) - np.asarray(expected)).mean() < 12
  assert 'turned upright by its EXIF orientation' in stored.notes


def test_what_no_encoder_takes_is_set_aside():
  buffer = io.BytesIO()
  Image.new('L', (1_000_001, 1)).save(buffer, format='TIFF')
  with pytest.raises(images.SetAsideError, match='1 x 1000001 pixels'):
    images.store(buffer.getvalue(), 'a.tif', Size())


@pytest.mark.parametrize(
  'wrong, words',
  [
    (dict(shorter_side=9, area=9), 'cannot both'),
    (dict(shorter_side=-1), 'positive'),
    (dict(quality=0), '1 to 100'),
    (dict(quality=101), '1 to 100'),
  ],
)
def test_wrong_sizes(wrong, words):
  with pytest.raises(ValueError, match=words):
    Size(**wrong)


def test_cmyk_is_what_pillow_shows():
  rng = np.random.default_rng(0)
  pixels = rng.integers(256, size=(8, 8, 3), dtype=np.uint8)
  image = Image.fromarray(pixels).resize((64, 64)).convert('CMYK')
  content = odd_files.encoded(image, 'JPEG', quality=100)
  made = images.store(content, 'a.jpg', Size(quality=100)).image
  difference = decoding.decode(made, 3).astype(int) - image.convert('RGB')
  assert np.abs(difference).mean() < 6
