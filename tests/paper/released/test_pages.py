"""Guards: files are found, and the pages have their numbers and pictures."""

import pandas as pd
import pytest
from etils import epath

from tests.interop import tiny
from tests.paper.released import made
from vit_jax.interop import catalog
from vit_jax.paper.page import texts
from vit_jax.paper.released import command, evaluating, files, sections
from vit_jax.paper.released.evaluating import Images

TENCH = 'n01440764'

# Files. -----------------------------------------------------------------------


def test_each_file_is_listed_once_with_its_uses():
  uses = files.uses()
  assert uses[f'{made.FINE_TUNED}ViT-L_16'] == [
    *('accuracies', 'figure6', 'figure14')
  ]
  assert uses['imagenet21k/ViT-L_32'] == ['figure7']
  found = [name for name in catalog.names() if name.startswith(made.FINE_TUNED)]
  assert sorted(files.FINE_TUNED) == found
  assert {*uses} <= {*catalog.names()}


@pytest.mark.parametrize(
  ('folder', 'classes', 'names'),
  [
    ('imagenet21k', 1000, ['imagenet21k/ViT-B_16']),
    (made.FINE_TUNED, 1000, [f'{made.FINE_TUNED}ViT-B_16']),
    # Without the sub-folder, only the head tells them apart.
    ('.', 21843, ['imagenet21k/ViT-B_16']),
    ('.', 1000, [f'{made.FINE_TUNED}ViT-B_16']),
    *(('.', 10, []), ('elsewhere', 1000, [])),
  ],
)
def test_files_are_found_in_sub_folders_or_without(
  folder, classes, names, tmp_path
):
  path = tmp_path / folder / 'ViT-B_16.npz'
  made.write_weights(path, tiny.vit(classes), (8, 8))
  found = {name: files.find(name, tmp_path) for name in files.uses()}
  assert {n: p for n, p in found.items() if p} == dict.fromkeys(names, path)


# Sections. --------------------------------------------------------------------


def test_ours_are_beside_the_printed_numbers(tmp_path, monkeypatch):
  known = {
    'ViT-L_16': {
      'validation': {'accuracy': 0.8505, 'count': 50_000},
      'real': {'accuracy': 0.885, 'count': 46_837},
    },
    'R50+ViT-B_16': {'real': {'accuracy': 0.88, 'count': 46_837}},
  }
  (tmp_path / made.FINE_TUNED).mkdir()
  for name in known:
    (tmp_path / made.FINE_TUNED / f'{name}.npz').touch()
  monkeypatch.setattr(
    evaluating, 'results', lambda name, path, *_: known[path.stem]
  )
  images = Images('classes:/photos', 'train', {})
  section = sections.accuracies(epath.Path(tmp_path), images, tmp_path)
  imagenet, real = section.blocks
  for table, name, column, ours, paper in (
    (imagenet, 'ViT-L_16', "Authors' README, dropout 0.1", '85.05', '85.05'),
    (imagenet, 'ViT-L_16', 'Table 5', '85.05', '85.15'),
    (real, 'ViT-L_16', 'Table 5', '88.50', '88.40'),
    # No number of this file is printed.
    (real, 'R50+ViT-B_16', 'Table 5', '88.00', ''),
    (imagenet, 'ViT-B_32', 'Table 5', 'missing', '81.28'),
  ):
    text = texts.cell_text(table, f'{name}.npz, 384 px', column)
    assert (text.ours, text.paper) == (ours, paper)
  # Each file counts once for each set.
  assert texts.status(section).counts['number'] == (3, 14)


@pytest.mark.gate
def test_pictures_are_drawn_once_from_random_weights(tmp_path):
  spec = made.write_photographs(tmp_path / 'photos', {'a': 2, 'b': 1})
  images = evaluating.find_images(spec, ())
  for name in ('imagenet21k/ViT-L_32', 'imagenet21k/ViT-L_16'):
    made.write_weights(tmp_path / f'{name}.npz', tiny.vit(), (8, 8))
  folder, times = tmp_path / 'figures', []
  for _ in range(2):
    section = sections.figure('figure7', epath.Path(tmp_path), images, folder)
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

  def evaluate(name, *_):
    call.evaluated.append(name)
    return call.why

  monkeypatch.setattr(evaluating, 'evaluate', evaluate)

  def call(data=spec, only_render=False, weights=weights):
    call.evaluated = []
    options = dict(only_list=False, only_render=only_render, keys=[])
    command.run(str(weights), tmp_path / 'all', data=data, **options)
    return call.evaluated

  call.why = ''
  return call


def test_the_pages_are_apart_from_those_of_runs(run, tmp_path, capsys):
  (tmp_path / 'all').mkdir()
  (tmp_path / 'all/index.html').write_text('of runs')
  assert run() == [f'{made.FINE_TUNED}{n}' for n in ('ViT-B_32', 'ViT-L_32')]
  assert run(only_render=True) == []
  assert (tmp_path / 'all/index.html').read_text() == 'of runs'
  text = (tmp_path / 'all/released/results.md').read_text()
  assert (tmp_path / 'all/released/index.html').exists()
  assert '2 of 11 files' in text
  row = '| ViT-B\\_32.npz, 384 px | missing (paper 81.28<sup>1</sup>) |'
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


def test_other_items_and_weights_without_need_are_refused():
  assert not command.is_asked(['table5'], '')
  for words, weights in ((['table5', 'released'], ''), (['table5'], '/w')):
    with pytest.raises(ValueError, match='released'):
      command.is_asked(words, weights)
