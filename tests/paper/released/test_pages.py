"""Guards: files are found, and the pages have their numbers and pictures."""

import pandas as pd
import pytest
from etils import epath

from tests.interop import tiny
from tests.paper.released import made
from vit_jax.interop import catalog
from vit_jax.paper.items.tables import table5
from vit_jax.paper.released import eval_only, files, pages
from vit_jax.paper.released.files import PRINTED, TUNED, Place

TENCH = 'n01440764'

# Files. -----------------------------------------------------------------------


def test_each_file_is_listed_once_with_its_uses():
  uses = files.uses()
  assert uses[f'{made.FINE_TUNED}ViT-L_16'] == [
    *('accuracies', 'figure6', 'figure14')
  ]
  assert uses['imagenet21k/ViT-L_32'] == ['figure7']
  found = [name for name in catalog.names() if name.startswith(made.FINE_TUNED)]
  assert sorted(f'{TUNED}{row}' for row in PRINTED.rows) == found
  assert {*uses} <= {*catalog.names()}


def test_numbers_of_table_5_are_those_of_the_models():
  for row in PRINTED.rows[:4]:
    model = catalog.entry(f'{TUNED}{row}').model
    for column in files.SETS.values():
      place = f'ImageNet-21k: {column.removesuffix(", Table 5")}', model
      assert PRINTED[row, column] == table5.PAPER[place]


@pytest.mark.gate
def test_pictures_are_drawn_once_from_random_weights(tmp_path):
  spec = made.write_photographs(tmp_path / 'photos', {'a': 2, 'b': 1})
  place = Place(
    epath.Path(tmp_path), tmp_path, (), *pages.find_images(spec, ())
  )
  for name in ('imagenet21k/ViT-L_32', 'imagenet21k/ViT-L_16'):
    made.write_weights(tmp_path / f'{name}.npz', tiny.vit(), (8, 8))
  folder, times = tmp_path / 'figures', []
  for _ in range(2):
    section = pages.figure('figure7', place)
    assert not section.missing
    assert section.blocks[0].stem == 'figures/figure7'
    times.append((folder / 'figure7.png').stat().st_mtime_ns)
  assert times[0] == times[1]
  table = pd.read_csv(folder / 'figure7.csv')
  assert table.groupby(['panel', 'part']).size().to_dict() == {
    ('ViT-L/32', 'filters'): 16 * 4 * 4 * 3,
    ('ViT-L/32', 'position similarity'): 16,
    ('ViT-L/16', 'attention distance'): 4,
    ('ViT-L/16', 'uniform attention'): 1,
    ('ViT-L/16', 'uniform attention to the nearest half'): 1,
  }


# The command. -----------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the command on two files and a photograph; logs evaluations."""
  weights = tmp_path / 'weights'
  for name in ('ViT-B_32', 'ViT-L_32'):
    path = weights / made.FINE_TUNED / f'{name}.npz'
    made.write_weights(path, tiny.vit(1000), (8, 8))
  spec = made.write_photographs(tmp_path / 'photographs', {TENCH: 1})

  def evaluate(folder, name, *_):
    call.evaluated.append(name)
    return call.why

  monkeypatch.setattr(eval_only, 'evaluate', evaluate)

  def call(data=spec, only_render=False, weights=weights):
    call.evaluated = []
    options = dict(only_list=False, only_render=only_render, keys=[])
    pages.run(str(weights), tmp_path / 'all', data=data, **options)
    return call.evaluated

  call.why = ''
  return call


def test_the_pages_are_apart_from_those_of_runs(run, tmp_path, capsys):
  (tmp_path / 'all').mkdir()
  (tmp_path / 'all/index.html').write_text('of runs')
  assert run() == ['ViT-B_32,validation', 'ViT-L_32,validation']
  assert run(only_render=True) == []
  assert (tmp_path / 'all/index.html').read_text() == 'of runs'
  text = (tmp_path / 'all/released/results.md').read_text()
  assert (tmp_path / 'all/released/index.html').exists()
  assert '2 of 11 files' in text
  row = '| ViT-B\\_32.npz, 384 px | missing (paper 81.28) |'
  assert row in text
  for item in ('Figure 6', 'Figure 7', 'Figure 11', 'Figure 14'):
    assert f'## {item}. ' in text
  assert '0 of 5 sections are complete' in capsys.readouterr().out


def test_failures_end_with_an_error(run, tmp_path):
  run.why = 'it failed'
  with pytest.raises(ValueError, match=r'^it failed\nit failed$'):
    run()
  assert (tmp_path / 'all/released/results.md').exists()
  with pytest.raises(ValueError, match='there is no folder'):
    run(data='folder:/nowhere')
  with pytest.raises(ValueError, match='--weights=/nowhere: there is no such'):
    run(weights='/nowhere')
