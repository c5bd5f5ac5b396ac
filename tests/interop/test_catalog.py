"""Guards the catalogue: each released file's name, address, place and model."""

import shlex

import pytest

from tests.interop import tiny
from vit_jax import interop
from vit_jax.interop import arrays, catalog, released

BUCKET = 'https://storage.googleapis.com/vit_models/'


@pytest.fixture(autouse=True)
def _weights(monkeypatch, tmp_path):
  monkeypatch.setenv(catalog.VARIABLE, str(tmp_path))


def test_files_of_the_vit_bucket():
  entry = catalog.entry('imagenet21k/ViT-B_16')
  assert entry.url == BUCKET + 'imagenet21k/ViT-B_16.npz'
  model = entry.build()
  assert (model.width, model.patch_size) == (768, (16, 16))
  # Only the file shows whether there is a hidden layer.
  assert (model.representation_size, model.num_classes) == (None, 21843)
  assert entry.build(768).representation_size == 768
  assert catalog.entry('imagenet21k/ViT-H_14').build().depth == 32
  entry = catalog.entry('imagenet21k+imagenet2012/R50+ViT-B_16')
  assert entry.url == (BUCKET + 'imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz')
  model = entry.build()
  assert model.resnet_blocks == (3, 4, 9)
  assert (model.representation_size, model.num_classes) == (None, 1000)
  assert entry.image_size == 384
  entry = catalog.entry('imagenet21k+imagenet2012/ViT-L_16-224')
  assert (entry.model, entry.image_size) == ('ViT-L/16', 224)


def test_recommended_files_of_augreg():
  assert catalog.entry('augreg/B_16').path == (
    'augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz'
  )
  assert catalog.entry('augreg/R50_L_32').path == (
    'augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1.npz'
  )
  entry = catalog.entry('augreg+imagenet2012/R26_S_32')
  assert entry.path == (
    'augreg/R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0'
    '--imagenet2012-steps_20k-lr_0.01-res_384.npz'
  )
  assert (entry.model, entry.num_classes) == ('R26+S/32', 1000)
  entry = catalog.entry('augreg+imagenet2012/B_8')
  assert entry.path.endswith('lr_0.01-res_224.npz')
  assert entry.image_size == 224
  assert catalog.entry('augreg/R_Ti_16').build().resnet_blocks == ()


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
    f'{BUCKET}sam/ViT-B_32.npz',
  ]
  assert shlex.split(lines[3]) == [
    *('gcloud', 'storage', 'cp', 'gs://vit_models/sam/ViT-B_32.npz', place)
  ]


def test_without_a_variable_the_cache_is_searched(monkeypatch):
  monkeypatch.delenv(catalog.VARIABLE)
  monkeypatch.setenv('HOME', '/home/someone')
  assert catalog.path_of('bit/BiT-M-R50x1').as_posix() == (
    '/home/someone/.cache/vit_jax/bit/BiT-M-R50x1.npz'
  )


def test_unknown_names_list_similar_ones():
  with pytest.raises(
    ValueError, match="no released weights 'augreg/B_61'"
  ) as e:
    interop.read('augreg/B_61')
  assert 'augreg/B_16' in str(e.value)
  assert 'All names: python -c "from vit_jax' in str(e.value)
  with pytest.raises(ValueError, match=r'path does not exist\. Released') as e:
    interop.read('b_16')
  assert 'names are augreg+imagenet2012/B_16, augreg/B_16' in str(e.value)
  with pytest.raises(ValueError, match='No checkpoint at'):
    interop.read('nowhere/B_16')


def test_a_downloaded_file_is_read_by_name(tmp_path):
  # The file holds a small model; `read` still returns the name's model.
  params = tiny.params(tiny.vit(), (28, 28))
  file = released.to_released(tiny.flat(params))
  arrays.write_npz(tmp_path / 'sam' / 'ViT-B_32.npz', file)
  loaded, _ = interop.load('sam/ViT-B_32', tiny.vit(), 28)
  tiny.assert_equal(loaded, params)
  weights = interop.read('sam/ViT-B_32')
  assert weights.origin == f'{tmp_path}/sam/ViT-B_32.npz'
  assert weights.model == catalog.entry('sam/ViT-B_32').build()
  assert (weights.image_size, weights.grid) == ((224, 224), (7, 7))
