"""Guards the catalogue: each released file's name, address, place and model."""

import shlex

import pytest

from tests.interop import tiny
from vit_jax import interop, models
from vit_jax.interop import arrays, catalog, families

BUCKET = 'https://storage.googleapis.com/'


@pytest.fixture(autouse=True)
def _weights(monkeypatch, tmp_path):
  monkeypatch.setenv(catalog.VARIABLE, str(tmp_path))


@pytest.mark.parametrize(
  'name, url, model, classes, size',
  [
    (
      'imagenet21k/ViT-B_16',
      'vit_models/imagenet21k/ViT-B_16.npz',
      'ViT-B/16',
      21843,
      224,
    ),
    (
      'imagenet21k+imagenet2012/R50+ViT-B_16',
      'vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz',
      'R50+ViT-B/16',
      1000,
      384,
    ),
    (
      'augreg/B_16',
      'vit_models/augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0'
      '-sd_0.0.npz',
      'ViT-B/16',
      21843,
      224,
    ),
    (
      'augreg+imagenet2012/B_8',
      'vit_models/augreg/B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0'
      '-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224.npz',
      'ViT-B/8',
      1000,
      224,
    ),
    (
      'bit/BiT-M-R50x1-ILSVRC2012',
      'bit_models/BiT-M-R50x1-ILSVRC2012.npz',
      'BiT-R50x1',
      1000,
      480,
    ),
  ],
)
def test_released_files(name, url, model, classes, size):
  entry = catalog.entry(name)
  assert entry.url == BUCKET + url
  assert (entry.model, entry.num_classes) == (model, classes)
  assert entry.image_size == size
  assert len(entry.class_names()) == (1000 if classes == 1000 else 0)


def test_every_name_has_its_own_file_and_a_model():
  entries = [catalog.entry(name) for name in catalog.names()]
  assert len({entry.address for entry in entries}) == len(entries) == 54
  for entry in entries:
    models.build(entry.model, num_classes=1)


@pytest.mark.parametrize('folder', ['a', "it's here"])
def test_a_missing_file_is_an_error_with_the_download_command(
  tmp_path, monkeypatch, folder
):
  monkeypatch.setenv(catalog.VARIABLE, f'{tmp_path}/{folder}')
  with pytest.raises(ValueError, match='are not on this machine') as error:
    interop.load('sam/ViT-B_32', tiny.vit(), 8)
  place = f'{tmp_path}/{folder}/sam/ViT-B_32.npz'
  lines = str(error.value).splitlines()
  assert shlex.split(lines[1]) == [
    *('curl', '-fL', '--create-dirs', '-o', place),
    f'{BUCKET}vit_models/sam/ViT-B_32.npz',
  ]


def test_without_a_variable_the_cache_is_searched(monkeypatch):
  monkeypatch.delenv(catalog.VARIABLE)
  monkeypatch.setenv('HOME', '/home/someone')
  assert catalog.path_of('bit/BiT-M-R50x1').as_posix() == (
    '/home/someone/.cache/vit_jax/bit/BiT-M-R50x1.npz'
  )


def test_unknown_names_list_similar_ones():
  with pytest.raises(ValueError, match='augreg/B_61') as error:
    catalog.entry('augreg/B_61')
  assert 'augreg/B_16' in str(error.value)
  for name in ('augreg/B_61', 'b_16'):
    with pytest.raises(ValueError, match=r'path does not exist.*augreg/B_16'):
      interop.read(name)


def test_a_downloaded_file_is_read_by_name(tmp_path):
  # The file holds a small model; `read` still returns the name's model.
  params = tiny.params(tiny.vit(), (28, 28))
  file = families.to_released(tiny.flat(params))
  arrays.write_npz(tmp_path / 'sam' / 'ViT-B_32.npz', file)
  loaded, _ = interop.load('sam/ViT-B_32', tiny.vit(), 28)
  tiny.assert_equal(loaded, params)
  weights = interop.read('sam/ViT-B_32')
  assert weights.origin == f'{tmp_path}/sam/ViT-B_32.npz'
  assert weights.model == models.build('ViT-B/32', num_classes=1000)
  assert (weights.image_size, weights.grid) == ((224, 224), (7, 7))
