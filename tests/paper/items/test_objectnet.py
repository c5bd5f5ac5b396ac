"""Guards: ObjectNet's numbers are of finished runs, each evaluated once."""

import pathlib
import subprocess

import pytest
from etils import epath

from tests import run_files
from tests.paper import made
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
  calls = []

  def run(words, *, stdout, **_):
    flags = dict(word.partition('=')[::2] for word in words)
    calls.append(flags)
    if 'broken' in flags['--config']:
      stdout.write(b'error: No such class.\n')
      return subprocess.CompletedProcess(words, 1)
    top1 = 0.5 + len(calls) / 10
    row = {'objectnet/accuracy': top1, 'objectnet/top5_accuracy': top1 + 0.2}
    workdir = pathlib.Path(flags['--workdir'])
    config = {'total_steps': 0}
    run_files.leave(workdir, {'step': 0} | row, config=config, done=0)
    return subprocess.CompletedProcess(words, 0)

  monkeypatch.setattr(eval_only.subprocess, 'run', run)
  return calls


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
