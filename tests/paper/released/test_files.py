"""Guards: the list of released files, and where they are found."""

import pytest

from tests.interop import tiny
from tests.paper.released import made
from vit_jax.interop import catalog
from vit_jax.paper.released import files

# The list in full, from PAPER.md, section 13, and the buckets' README.
ADDRESSES = {
  'gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz': ['accuracies'],
  'gs://vit_models/imagenet21k+imagenet2012/ViT-B_32.npz': ['accuracies'],
  'gs://vit_models/imagenet21k+imagenet2012/ViT-L_16.npz': [
    *('accuracies', 'figure6', 'figure14')
  ],
  'gs://vit_models/imagenet21k+imagenet2012/ViT-L_32.npz': ['accuracies'],
  'gs://vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz': ['accuracies'],
  'gs://vit_models/imagenet21k+imagenet2012/ViT-B_16-224.npz': ['accuracies'],
  'gs://vit_models/imagenet21k+imagenet2012/ViT-L_16-224.npz': ['accuracies'],
  'gs://vit_models/imagenet21k/ViT-L_32.npz': ['figure7'],
  'gs://vit_models/imagenet21k/ViT-L_16.npz': ['figure7'],
  'gs://vit_models/imagenet21k/ViT-B_16.npz': ['figure11'],
  'gs://vit_models/imagenet21k/R50+ViT-B_16.npz': ['figure11'],
}


def test_each_file_is_listed_once_with_its_uses():
  found = [(catalog.entry(n).address, uses) for n, uses in files.uses().items()]
  assert found == list(ADDRESSES.items())


def test_every_file_that_is_fine_tuned_on_imagenet_is_evaluated():
  assert sorted(files.FINE_TUNED) == [
    name for name in catalog.names() if name.startswith(made.FINE_TUNED)
  ]


@pytest.mark.parametrize(
  ('folder', 'classes', 'names'),
  [
    ('imagenet21k', 1000, ['imagenet21k/ViT-B_16']),
    (made.FINE_TUNED, 1000, [f'{made.FINE_TUNED}ViT-B_16']),
    # Without the sub-folder, only the head tells them apart.
    ('.', 21843, ['imagenet21k/ViT-B_16']),
    ('.', 1000, [f'{made.FINE_TUNED}ViT-B_16']),
    ('.', 10, []),
    ('elsewhere', 1000, []),
  ],
)
def test_files_are_found_in_sub_folders_or_without(
  folder, classes, names, tmp_path
):
  path = tmp_path / folder / 'ViT-B_16.npz'
  made.write_weights(path, tiny.vit(classes), (8, 8))
  found = {name: files.find(name, tmp_path) for name in files.uses()}
  assert {n: p for n, p in found.items() if p} == dict.fromkeys(names, path)
