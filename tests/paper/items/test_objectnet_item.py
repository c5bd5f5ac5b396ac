"""Guards: ObjectNet's numbers are of finished runs, each evaluated once."""

import json
import pathlib
import subprocess

import pytest
from etils import epath

from tests.paper import made
from vit_jax import data as sources
from vit_jax.paper import eval_only, items
from vit_jax.paper.items import objectnet_item
from vit_jax.paper.numbers import values
from vit_jax.paper.page import page_parts
from vit_jax.paper.runs import Pretraining, Transfer

ITEM = items.ITEMS['objectnet']
HUGE = Transfer(Pretraining('ViT-H/14', values.JFT, 14), values.IMAGENET, 518)
ROW = 'ViT-H/14, JFT-300M'


@pytest.fixture
def data(tmp_path):
  folder = tmp_path / 'objectnet-1.0'
  for name in ('images', 'mappings'):
    (folder / name).mkdir(parents=True)
  return str(folder)


@pytest.fixture
def results(tmp_path):
  """Returns results of runs, with the files of those that are finished."""

  def make(*nodes, unfinished=()):
    def metrics(node, seed):
      if (node, seed) in unfinished:
        return None
      workdir = tmp_path / 'runs' / f'{node.name}/seed={seed}'
      workdir.mkdir(parents=True, exist_ok=True)
      (workdir / 'DONE').touch()
      return {'test/accuracy': 0.9}

    return made.results(
      nodes, metrics, workdir=lambda name: epath.Path(tmp_path / 'runs' / name)
    )

  return make


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
    workdir = pathlib.Path(flags['--workdir'])
    workdir.mkdir()
    (workdir / 'config.json').write_text('{"total_steps": 0}')
    (workdir / 'DONE').write_text('0\n')
    accuracy = 0.5 + len(calls) / 10
    row = {
      'step': 0,
      'objectnet/accuracy': accuracy,
      'objectnet/top5_accuracy': accuracy + 0.2,
    }
    (workdir / 'metrics.jsonl').write_text(json.dumps(row) + '\n')
    return subprocess.CompletedProcess(words, 0)

  monkeypatch.setattr(eval_only.subprocess, 'run', run)
  return calls


def _evaluate(results, data, tmp_path):
  ITEM.evaluate(results, data, tmp_path / 'measured')


def _table(results, tmp_path):
  section = ITEM.render(results, tmp_path / 'figures')
  [table] = section.blocks
  return section, table


def test_the_item_needs_the_runs_of_table_2_at_518_px():
  assert ITEM.nodes == (HUGE,)
  assert HUGE in items.ITEMS['table2'].nodes
  assert ITEM.shown_at('paper') == (HUGE,)
  assert ITEM.shown_at('mini') == ITEM.shown_at('midi') == ()
  assert not ITEM.claims('paper')
  assert ITEM in items.find(['all'])


def test_each_finished_run_is_evaluated_once(
  results, evaluations, data, tmp_path
):
  found = results(HUGE)
  _evaluate(found, data, tmp_path)
  first, second = evaluations
  assert first['--config'] == (
    f'configs/robustness.py:ViT-H/14,objectnet,resolution=518,objectnet={data}'
  )
  named = sources.open_source(first['--config.data.dataset'])
  assert list(named.info.class_names) == eval_only.class_names()
  assert '--eval_only' in first
  for seed, flags in enumerate((first, second)):
    assert flags['--config.init.checkpoint'] == str(
      tmp_path / 'runs' / f'{HUGE.name}/seed={seed}'
    )
  section, table = _table(found, tmp_path)
  assert table.rows == [ROW]
  top1, top5 = (table.cells[ROW, column] for column in ('top-1', 'top-5'))
  assert top1.ours.values == pytest.approx((60, 70))
  assert top1.difference == pytest.approx(65 - 61.7)
  assert top5.ours.values == pytest.approx((80, 90))
  assert top5.paper.value == 82.1
  assert not section.missing
  assert section.notes[-1] == f'Measured on {data}.'
  assert page_parts.status(section).word == 'complete'
  _evaluate(found, data, tmp_path)
  assert len(evaluations) == 2
  # Another copy of the data, and a run that was made anew.
  _evaluate(found, f'{data}/', tmp_path)
  assert len(evaluations) == 2
  done = tmp_path / 'runs' / f'{HUGE.name}/seed=1' / 'DONE'
  done.write_text('another end')
  assert _table(found, tmp_path)[1].cells[ROW, 'top-1'].ours is None
  _evaluate(found, data, tmp_path)
  assert len(evaluations) == 3
  other = f'{data}/../other'
  _evaluate(found, other, tmp_path)
  assert len(evaluations) == 5


def test_keys_that_make_a_run_fit_are_given(
  results, evaluations, data, tmp_path
):
  found = results(HUGE)
  [(run, _), _] = found.reported(HUGE)
  run.overrides.update(
    {'mesh.fsdp': 4, 'data.batch_size': 64, 'data.dataset': 'x', 'seed': 3}
  )
  _evaluate(found, data, tmp_path)
  first, second = evaluations
  assert first['--config.mesh.fsdp'] == '4'
  assert first['--config.data.batch_size'] == '64'
  assert '--config.seed' not in first
  assert first['--config.data.dataset'] != 'x'
  assert '--config.mesh.fsdp' not in second


def test_failures_are_told_after_all_evaluations(
  results, evaluations, tmp_path
):
  with pytest.raises(ValueError, match='No such class') as error:
    _evaluate(results(HUGE), '/broken', tmp_path)
  assert str(error.value).count('was not evaluated (exit code 1)') == 2
  assert len(evaluations) == 2


def test_other_folders_are_refused(data, tmp_path):
  objectnet_item.check(data)
  (pathlib.Path(data) / 'mappings').rmdir()
  with pytest.raises(ValueError, match='there, but mappings are missing'):
    objectnet_item.check(data)
