"""Guards: the page has printed numbers beside ours, and what is missing."""

import numpy as np
import pandas as pd
import pytest
from etils import epath

from tests.interop import tiny
from tests.paper.released import made
from vit_jax import loaded as subject
from vit_jax.paper.page import page_parts
from vit_jax.paper.pictures import weights_drawing
from vit_jax.paper.released import evaluating, sections
from vit_jax.paper.released.evaluating import Images

PHOTOS = Images('classes:/photos', 'train', '', {}, True)


def _accuracies(tmp_path, monkeypatch, known, images=PHOTOS):
  found = {f'{made.FINE_TUNED}{name}': epath.Path(name) for name in known}
  monkeypatch.setattr(
    evaluating, 'results', lambda name, path, *_: known[path.name]
  )
  return sections.accuracies(found, epath.Path('/w'), images, (), tmp_path)


def test_ours_are_beside_the_printed_numbers(tmp_path, monkeypatch):
  found = _accuracies(
    tmp_path,
    monkeypatch,
    {
      'ViT-L_16': {
        'validation': {'accuracy': 0.8505, 'count': 50_000},
        'real': {'accuracy': 0.885, 'count': 46_837},
      },
      'R50+ViT-B_16': {'real': {'accuracy': 0.88, 'count': 46_837}},
    },
  )
  imagenet, real = found.blocks
  row = 'ViT-L_16.npz, 384 px'
  text = page_parts.cell_text(imagenet, row, 'Table 2')
  assert (text.ours, text.paper) == ('85.05', '85.30±0.02')
  assert text.difference == '−0.25'  # noqa: RUF001
  text = page_parts.cell_text(real, row, 'Table 5')
  assert (text.ours, text.paper, text.difference) == ('88.50', '88.40', '+0.10')
  # No number of this file is printed.
  text = page_parts.cell_text(real, 'R50+ViT-B_16.npz, 384 px', 'Table 5')
  assert (text.ours, text.paper) == ('88.00', '')
  text = page_parts.cell_text(imagenet, 'ViT-B_32.npz, 384 px', 'Table 5')
  assert (text.ours, text.paper) == ('missing', '81.28')
  # Each file counts once for each set.
  assert page_parts.status(found).details == '3 of 14 numbers'
  assert 'ImageNet: accuracy on 50,000 images.' in found.notes


@pytest.mark.gate
def test_pictures_are_drawn_once_from_random_weights(tmp_path):
  spec = made.write_photographs(tmp_path / 'photos', {'a': 2, 'b': 1})
  images = evaluating.find_images(spec, ())
  found = {}
  for name in ('imagenet21k/ViT-L_32', 'imagenet21k/ViT-L_16'):
    found[name] = epath.Path(tmp_path / f'{name}.npz')
    made.write_weights(found[name], tiny.vit(), (8, 8))
  folder, times = tmp_path / 'figures', []
  for _ in range(2):
    section = sections.figure(
      'figure7', found, epath.Path(tmp_path), images, folder
    )
    assert section.missing == ()
    assert section.blocks[0].stem == 'figures/figure7'
    times.append((folder / 'figure7.png').stat().st_mtime_ns)
  assert times[0] == times[1]
  table = pd.read_csv(folder / 'figure7.csv')
  parts = table.groupby(['panel', 'part']).size()
  assert parts.to_dict() == {
    ('ViT-L/32', 'filters'): 16 * 4 * 4 * 3,
    ('ViT-L/32', 'position similarity'): 16,
    ('ViT-L/16', 'attention distance'): 4,
    ('ViT-L/16', 'uniform attention'): 1,
    ('ViT-L/16', 'uniform attention to the nearest half'): 1,
  }


def test_rollouts_of_a_file_are_of_the_images_of_a_data_set(tmp_path):
  made.write_photographs(tmp_path / 'photos', {'a': 3, 'b': 3})
  path = tmp_path / 'ViT-L_16.npz'
  made.write_weights(path, tiny.vit(), (8, 8))
  source = {'dataset': f'classes:{tmp_path}/photos', 'split': 'train'}
  (images, maps), table = weights_drawing.rollout(
    str(path), 3, {**source, 'data_dir': ''}
  )
  assert images.shape == (3, 224, 224, 3)
  assert maps.shape == (3, 2, 2)
  assert table['place_in_split'].unique().tolist() == [1, 3, 5]
  preprocess, rng = subject.load(str(path)).preprocess, np.random.default_rng(0)
  for image, place in zip(images, ('a/1', 'b/0', 'b/2'), strict=True):
    content = (tmp_path / f'photos/{place}.png').read_bytes()
    np.testing.assert_array_equal(image[::28, ::28], preprocess(content, rng))
