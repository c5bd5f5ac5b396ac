"""Guards: the command lists, evaluates, draws and writes pages of its own."""

import os
import pathlib

import pytest

from tests.interop import tiny
from tests.paper.released import made
from vit_jax.paper.released import command, evaluating

ROOT = pathlib.Path(__file__).parents[3]
TENCH = 'n01440764'


def test_other_items_and_weights_without_need_are_refused():
  assert not command.is_asked(['table5'], '')
  with pytest.raises(ValueError, match='give it without table5, all, which'):
    command.is_asked(['table5', 'released', 'all'], '')
  with pytest.raises(ValueError, match='--weights=/w is for the word released'):
    command.is_asked(['table5'], '/w')


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the command on two files and a photograph; logs evaluations."""
  weights = tmp_path / 'weights'
  for name in ('ViT-B_32', 'ViT-L_32'):
    path = weights / made.FINE_TUNED / f'{name}.npz'
    made.write_weights(path, tiny.vit(1000), (8, 8))
  spec = made.write_photographs(tmp_path / 'photographs', {TENCH: 1})
  monkeypatch.setattr(
    evaluating, 'evaluate', lambda name, *_: call.evaluated.append(name) or ''
  )

  def call(data=spec, **options):
    call.evaluated = []
    options = dict(only_list=False, only_render=False, keys=[]) | options
    command.run(str(weights), tmp_path / 'all', data=data, **options)
    return call.evaluated

  return call


def test_the_pages_are_apart_from_those_of_runs(run, tmp_path, capsys):
  (tmp_path / 'all').mkdir()
  (tmp_path / 'all/index.html').write_text('of runs')
  assert run() == [f'{made.FINE_TUNED}{n}' for n in ('ViT-B_32', 'ViT-L_32')]
  assert (tmp_path / 'all/index.html').read_text() == 'of runs'
  text = (tmp_path / 'all/released/results.md').read_text()
  assert (tmp_path / 'all/released/index.html').exists()
  assert '- weights: 2 of 11 files, /' in text
  assert (
    '| ViT-B\\_32.npz, 384 px | missing (paper 81.28<sup>1</sup>) |' in text
  )
  for item in ('Figure 6', 'Figure 7', 'Figure 11', 'Figure 14'):
    assert f'## {item}. ' in text
  out = capsys.readouterr().out
  assert out.endswith('released/index.html: 0 of 5 sections are complete.\n')


def test_rendering_evaluates_nothing(run, tmp_path):
  assert run(only_render=True) == []
  assert (tmp_path / 'all/released/results.md').exists()


def test_a_failed_evaluation_ends_with_an_error_after_the_pages(
  run, tmp_path, monkeypatch
):
  monkeypatch.setattr(
    evaluating, 'evaluate', lambda name, *_: f'{os.path.basename(name)} failed'
  )
  with pytest.raises(ValueError, match=r'^ViT-B_32 failed\nViT-L_32 failed$'):
    run()
  assert (tmp_path / 'all/released/results.md').exists()


def test_data_and_weights_that_are_not_there_are_errors(run, tmp_path):
  with pytest.raises(ValueError, match='there is no folder'):
    run(data='folder:/nowhere')
  with pytest.raises(ValueError, match='--weights=/nowhere: there is no such'):
    command.run(
      *('/nowhere', tmp_path),
      **dict(data='', keys=[], only_list=False, only_render=False),
    )
