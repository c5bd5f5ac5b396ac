"""Guards what is stored of an image."""

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
    with pytest.raises(decoding.CorruptImageError, match=text):
      images.store(content, name, Size())
    return
  stored, notes = images.store(content, name, Size())
  assert (stored == content) == (outcome == odd_files.KEPT)
  assert text in ' '.join(notes)
  assert bool(notes) == bool(text)
  assert decoding.header(stored).format in ('JPEG', 'PNG')


@pytest.mark.parametrize(
  'name',
  [n for n, (_, what, _) in odd_files.FILES.items() if what == 'converted'],
)
def test_a_conversion_shows_the_same_picture(name):
  content = odd_files.FILES[name][0]
  made = decoding.decode(images.store(content, name, Size())[0], 3)
  mode = 'L' if 'grey' in name else 'RGB'
  scene = odd_files.scene(mode, made.shape[1::-1]).convert('RGB')
  difference = np.abs(made.astype(int) - np.asarray(scene)).mean()
  # GIFs have few colours, and lossy formats lose some of the edge twice.
  assert difference < (12 if 'gif' in name else 8)


@pytest.mark.parametrize('name', ['plain.bmp', 'plain.ppm', 'lossless.webp'])
def test_lossless_formats_stay_lossless(name):
  made, _ = images.store(odd_files.FILES[name][0], name, Size())
  assert (decoding.decode(made, 3) == np.asarray(odd_files.scene())).all()


@pytest.mark.parametrize('channels', [1, 3])
def test_arrays_become_pngs(channels):
  rng = np.random.default_rng(0)
  pixels = rng.integers(256, size=(5, 7, channels), dtype=np.uint8)
  stored, _ = images.store(pixels, 'train/0', Size())
  assert (decoding.decode(stored, channels) == pixels).all()


@pytest.mark.parametrize(
  'size, expected',
  [
    (Size(shorter_side=60), (60, 80)),
    (Size(area=60 * 80), (60, 80)),
    (Size(shorter_side=200), (150, 200)),  # Never enlarged.
    (Size(area=200 * 200), (150, 200)),
  ],
)
def test_sizes(size, expected):
  stored, _ = images.store(odd_files.JPEG, 'a.jpg', size)
  assert decoding.decode(stored, 3).shape == (*expected, 3)
  assert (stored != odd_files.JPEG) == (expected != (150, 200))


def test_shrinking_turns_upright_since_the_exif_data_is_lost():
  content = odd_files.FILES['rotated.jpg'][0]  # 40 wide; to turn clockwise.
  stored, _ = images.store(content, 'a.jpg', Size(shorter_side=15))
  made = decoding.decode(stored, 3)
  assert made.shape == (20, 15, 3)
  expected = odd_files.scene().rotate(-90, expand=True).resize((15, 20))
  assert np.abs(made.astype(int) - np.asarray(expected)).mean() < 12


def test_what_no_encoder_takes_is_set_aside():
  content = odd_files.encoded(Image.new('L', (1_000_001, 1)), 'TIFF')
  with pytest.raises(decoding.CorruptImageError, match='1 x 1000001 pixels'):
    images.store(content, 'a.tif', Size())


def test_cmyk_is_what_pillow_shows():
  rng = np.random.default_rng(0)
  pixels = rng.integers(256, size=(8, 8, 3), dtype=np.uint8)
  image = Image.fromarray(pixels).resize((64, 64)).convert('CMYK')
  content = odd_files.encoded(image, 'JPEG', quality=100)
  made, _ = images.store(content, 'a.jpg', Size(quality=100))
  difference = decoding.decode(made, 3).astype(int) - image.convert('RGB')
  assert np.abs(difference).mean() < 6
