"""Guards: ObjectNet's numbers are of finished runs, each evaluated once."""

import pathlib

import pytest
from etils import epath

from tests.paper import made
from tests.paper.released import made as released
from vit_jax import data as sources
from vit_jax.paper.items.text import objectnet
from vit_jax.paper.numbers import IMAGENET
from vit_jax.paper.page import texts
from vit_jax.paper.released import eval_only
from vit_jax.paper.runs import Pretraining, Transfer

ITEM = objectnet.ITEM
HUGE = Transfer(Pretraining('ViT-H/14', epochs=14), IMAGENET, 518)
ROW = 'ViT-H/14, JFT-300M'


@pytest.fixture
def data(tmp_path):
  folder = tmp_path / 'objectnet-1.0'
  for name in ('images', 'mappings'):
    (folder / name).mkdir(parents=True)
  return str(folder)


@pytest.fixture
def results(tmp_path):
  """The results of two finished runs, with their files."""

  def metrics(node, seed):
    workdir = tmp_path / 'runs' / f'{node.name}/seed={seed}'
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / 'DONE').touch()
    return {'test/accuracy': 0.9}

  return made.results(
    [HUGE], metrics, workdir=lambda name: epath.Path(tmp_path / 'runs' / name)
  )


@pytest.fixture
def evaluations(monkeypatch):
  """Replaces the process by one that writes results; returns its flags."""

  def row(_, number):
    top1 = 0.5 + number / 10
    return {'objectnet/accuracy': top1, 'objectnet/top5_accuracy': top1 + 0.2}

  return released.evaluator(
    *(monkeypatch, row),
    lambda flags: 'No such class.' * ('broken' in flags['--config']),
  )


def _evaluate(results, data, tmp_path):
  ITEM.measure(results, tmp_path / 'measured', data)


def _render(results, tmp_path):
  section = ITEM.render(results, tmp_path / 'figures')
  return section, section.blocks[0].cells


def test_each_finished_run_is_evaluated_once(
  results, evaluations, data, tmp_path
):
  assert ITEM.nodes('paper', 3) == [HUGE]
  section, cells = _render(results, tmp_path)
  assert cells[ROW, 'top-1'].ours is None
  assert section.missing
  [(run, _), _] = results.reported(HUGE)
  run.overrides.update({'mesh.fsdp': 4, 'data.dataset': 'x', 'seed': 3})
  _evaluate(results, data, tmp_path)
  first, second = evaluations
  assert first['--config'] == (
    f'configs/robustness.py:ViT-H/14,objectnet,resolution=518,objectnet={data}'
  )
  named = sources.open_source(first['--config.data.dataset'])
  assert list(named.info.class_names) == eval_only.class_names()
  assert '--eval_only' in first
  # Only keys that make a run fit its devices are its own.
  assert first['--config.mesh.fsdp'] == '4'
  assert '--config.seed' not in first
  assert '--config.mesh.fsdp' not in second
  assert second['--config.init.checkpoint'] == str(
    tmp_path / 'runs' / f'{HUGE.name}/seed=1'
  )
  section, cells = _render(results, tmp_path)
  top1, top5 = (cells[ROW, column] for column in ('top-1', 'top-5'))
  assert top1.ours.values == pytest.approx((60, 70))
  assert top1.difference == pytest.approx(65 - 61.7)
  assert top5.ours.values == pytest.approx((80, 90))
  assert top5.paper.value == 82.1
  assert texts.status(section).word == 'complete'
  for again in (data, f'{data}/'):
    _evaluate(results, again, tmp_path)
  assert len(evaluations) == 2


def test_what_changed_is_evaluated_again(results, evaluations, data, tmp_path):
  _evaluate(results, data, tmp_path)
  done = tmp_path / 'runs' / f'{HUGE.name}/seed=1' / 'DONE'
  done.write_text('another end')
  assert _render(results, tmp_path)[1][ROW, 'top-1'].ours is None
  _evaluate(results, data, tmp_path)
  assert len(evaluations) == 3


def test_failures_are_told_after_all_evaluations(
  results, evaluations, tmp_path
):
  with pytest.raises(ValueError, match='No such class') as error:
    _evaluate(results, '/broken', tmp_path)
  assert len(str(error.value).splitlines()) == len(evaluations) == 2


def test_other_folders_are_refused(data):
  objectnet.check(data)
  (pathlib.Path(data) / 'mappings').rmdir()
  with pytest.raises(ValueError, match='there, but mappings are missing'):
    objectnet.check(data)
