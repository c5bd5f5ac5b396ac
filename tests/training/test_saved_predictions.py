"""Guards: a run saves predictions if asked, also once it is finished."""

import shutil
import sys

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import data, results
from vit_jax.evaluators import predictions
from vit_jax.training import evaluate, train
from vit_jax.workdir import metrics


def _config(save, checkpoint=''):
  config = tiny_config(
    {
      'data.dataset': 'digits:0123',
      'data.train_split': 'train[:64]',
      'total_steps': 4,
      'init.checkpoint': checkpoint,
    }
  )
  config.evals.test = config_lib.evaluation('test', every=2)
  config.evals.test.save_predictions = save
  return config


@pytest.fixture(scope='module')
def without(tmp_path_factory):
  """A finished run that saved none, with a config older than the key."""
  workdir = tmp_path_factory.mktemp('without')
  train.train_and_evaluate(_config(False), workdir)
  assert not (workdir / predictions.FOLDER).exists()
  path = workdir / 'config.json'
  text = path.read_text()
  line = '      "save_predictions": false,\n'
  assert line in text
  path.write_text(text.replace(line, ''))
  return workdir


def _check(workdir, step, dataset='digits:0123'):
  table, facts = predictions.read(predictions.path(workdir, 'test'))
  found = results.final_metrics(workdir)
  assert (found['step'], facts['step']) == (step, step)
  assert facts['class_names'] == ['0', '1', '2', '3']
  assert len(table) == found['test/count'] == 144
  assert table['correct'].mean() == found['test/accuracy']
  assert table['name'][143] == 'test/143'
  source = data.open_source(dataset)
  assert table['label'].tolist() == [
    source.read('test', i).label for i in range(144)
  ]
  # Nothing temporary is left.
  folder = workdir / predictions.FOLDER
  assert [path.name for path in folder.iterdir()] == ['test.parquet']


def test_a_run_keeps_the_newest_and_gives_the_same_metrics(without, tmp_path):
  steps = []
  write = predictions.write

  def write_and_note(path, columns, view, facts):
    write(path, columns, view, facts)
    steps.append(facts['step'])

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(predictions, 'write', write_and_note)
    found = train.train_and_evaluate(_config(True), tmp_path)
  assert steps == [2, 4]
  _check(tmp_path, 4)
  expected = results.final_metrics(without)
  for name in ('accuracy', 'loss', 'ece', 'count'):
    assert found[f'test/{name}'] == expected[f'test/{name}']


def test_a_finished_run_makes_up_for_them(without, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(without, workdir)
  rows = metrics.read(workdir)
  # A config that is older than the key does not ask for another evaluation.
  train.train_and_evaluate(_config(False), workdir)
  assert metrics.read(workdir) == rows
  train.train_and_evaluate(_config(True), workdir)
  _check(workdir, 4)
  rows = metrics.read(workdir)
  for save in (True, False):
    train.train_and_evaluate(_config(save), workdir)
    assert metrics.read(workdir) == rows


def test_eval_only_saves_them(without, tmp_path):
  evaluate.evaluate_only(_config(True, str(without)), tmp_path)
  _check(tmp_path, 0)


def test_without_pyarrow_nothing_begins(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  message = r'test: save_predictions needs pyarrow.* pip install .*parquet'
  with pytest.raises(ValueError, match=message):
    train.train_and_evaluate(_config(True), tmp_path / 'run')
