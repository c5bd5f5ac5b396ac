"""Guards: the page has printed numbers beside ours, and what is missing."""

import numpy as np
import pandas as pd
import pytest
from etils import epath

from tests.interop import tiny
from tests.paper.released import made
from vit_jax.inspection import subject
from vit_jax.paper import pictures
from vit_jax.paper.page import page_parts
from vit_jax.paper.pictures import weights_drawing
from vit_jax.paper.released import evaluating, files, sections
from vit_jax.paper.released.evaluating import Images

PHOTOS = Images('classes:/photos', 'train', '', {}, True)
NOTHING = Images(
  'tfds:imagenet2012',
  'validation',
  '',
  {'validation': 'No v.', 'real': 'No r.'},
  False,
)


def _printed(name, which):
  found = sections.printed(f'{made.FINE_TUNED}{name}', which)
  return {column: value.value for column, value in found.items()}


def test_each_file_is_beside_its_printed_numbers():
  readme = "Authors' README, "
  assert _printed('ViT-L_16', 'validation') == {
    'Table 5': 85.15,
    'Table 2': 85.30,
    f'{readme}dropout 0.0': 84.47,
    f'{readme}dropout 0.1': 85.05,
  }
  assert _printed('ViT-L_16', 'real') == {'Table 5': 88.40, 'Table 2': 88.62}
  assert _printed('ViT-B_32', 'validation') == {
    'Table 5': 81.28,
    f'{readme}dropout 0.0': 81.66,
    f'{readme}dropout 0.1': 81.31,
  }
  assert _printed('R50+ViT-B_16', 'validation') == {
    f'{readme}dropout 0.0': 83.72,
    f'{readme}dropout 0.1': 85.08,
  }
  assert _printed('R50+ViT-B_16', 'real') == {}
  assert _printed('ViT-B_16-224', 'validation') == {
    'Table 5': 83.97,
    f'{readme}224 px': 81.2,
  }
  assert _printed('ViT-B_16-224', 'real') == {'Table 5': 88.35}


def test_each_printed_number_says_what_differs():
  for name, column, note in (
    ('ViT-B_16', 'Table 5', 'another fine-tuning at 384 px, without averaged'),
    ('ViT-B_16-224', 'Table 5', 'tested at 384 px, the file at 224 px'),
    ('ViT-L_16', 'Table 2', 'at 512 px with averaged weights; the file is for'),
    ('ViT-L_16', "Authors' README, dropout 0.1", 'which dropout the file had'),
  ):
    name = f'{made.FINE_TUNED}{name}'
    assert note in sections.printed(name, 'validation')[column].note


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


def test_accuracies_on_a_part_have_no_differences(tmp_path, monkeypatch):
  known = {'ViT-L_16': {'validation': {'accuracy': 0.5, 'count': 120}}}
  found = _accuracies(tmp_path, monkeypatch, known)
  text = page_parts.cell_text(
    found.blocks[0], 'ViT-L_16.npz, 384 px', 'Table 5'
  )
  assert (text.ours, text.difference) == ('50.00', '')
  assert 'ImageNet: accuracy on 120 images, which are not all.' in found.notes


def test_missing_data_and_files_are_told(tmp_path, monkeypatch):
  found = _accuracies(tmp_path, monkeypatch, {'ViT-B_32': {}}, NOTHING)
  assert found.missing[:2] == [
    'Missing: ImageNet, so there are no accuracies on it. No v.',
    'Missing: ImageNet ReaL, so there are no accuracies on it. No r.',
  ]
  assert len(found.missing) == 2 + 6
  assert found.missing[2] == (
    'Missing: the file gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz.'
    ' To fetch it: curl -fL --create-dirs -o'
    ' /w/imagenet21k+imagenet2012/ViT-B_16.npz'
    ' https://storage.googleapis.com/vit_models/'
    'imagenet21k%2Bimagenet2012/ViT-B_16.npz'
  )
  # Results from before the data were gone are shown.
  known = {'ViT-B_32': {'real': {'accuracy': 0.8, 'count': 46_837}}}
  found = _accuracies(tmp_path, monkeypatch, known, NOTHING)
  assert [m for m in found.missing if 'No' in m] == [
    'Missing: ImageNet, so there are no accuracies on it. No v.'
  ]


@pytest.mark.parametrize('item', files.FIGURES)
def test_a_figure_asks_for_its_files_and_images(item, tmp_path, monkeypatch):
  asked = {}

  def draw(name, wanted, folder, notes):
    asked[name] = wanted
    return pictures.Drawn(
      tuple(p['title'] for p in wanted), tuple(notes), folder
    )

  monkeypatch.setattr(sections.pictures, 'draw_wanted', draw)
  path = epath.Path(tmp_path / 'x.npz')
  path.write_bytes(b'weights')
  found = dict.fromkeys(files.uses(), path)
  weights = epath.Path('/w')
  section = sections.figure(item, found, weights, PHOTOS, tmp_path / 'figures')
  images = {
    'figure6': [6],
    'figure7': [0, 0, 128],
    'figure11': [128, 128],
    'figure14': [128],
  }[item]
  assert [panel['images'] for panel in asked[item]] == images
  source = {'dataset': 'classes:/photos', 'split': 'train', 'data_dir': ''}
  for panel in asked[item]:
    assert panel.get('images_from') == (source if panel['images'] else None)
    assert panel['workdir'] == str(path)
  caption = section.blocks[0].caption
  for _, name in files.FIGURES[item]:
    assert f'{name}.npz (' in caption
  assert ' no weights that saw JFT-300M are public.' in caption

  # Without images, only the weights themselves are drawn.
  section = sections.figure(item, found, weights, NOTHING, tmp_path / 'figures')
  assert [p['images'] for p in asked[item]] == [n for n in images if not n]
  assert section.missing[0].endswith('No v.')
  section = sections.figure(item, {}, weights, PHOTOS, tmp_path / 'figures')
  assert asked[item] == []
  assert all(
    why.startswith('Missing: the file gs://') for why in section.missing
  )


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
