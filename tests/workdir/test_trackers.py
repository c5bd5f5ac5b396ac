"""Guards: trackers get what metrics.jsonl has, and never end a run."""

import json
import sys

import pytest

from vit_jax import results
from vit_jax.runtime import errors
from vit_jax.workdir import metrics, trackers

# A tracker's package that writes down what it is told.
FAKE = """
import json, os

class Settings:
  def __init__(self, **_):
    pass

def login(prompt):
  return True

class Run:
  def __init__(self, id):
    self.id = id

  def tell(self, *words):
    with open(os.environ['TOLD'], 'a') as file:
      file.write(json.dumps(words) + '\\n')

  def define_metric(self, name, step_metric):
    pass

  def log(self, values):
    if os.environ.get('FAILS') == 'log':
      raise OSError('it is down')
    self.tell('log', values)

  def finish(self, exit_code):
    self.tell('finish', exit_code)

def init(id, resume, config, **_):
  if os.environ.get('FAILS') == 'init':
    raise OSError('no network')
  run = Run(id or 'new')
  run.tell('init', id, resume, config)
  return run
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
  """Installs the fake as `wandb`; returns what it has been told."""
  package = tmp_path / 'packages/wandb'
  package.mkdir(parents=True)
  (package / '__init__.py').write_text(FAKE)
  monkeypatch.syspath_prepend(package.parent)
  monkeypatch.delitem(sys.modules, 'wandb', raising=False)
  monkeypatch.setenv('TOLD', str(tmp_path / 'told'))
  yield lambda: [
    json.loads(line) for line in (tmp_path / 'told').read_text().splitlines()
  ]
  sys.modules.pop('wandb', None)


def _writer(workdir, start_step=0, text='wandb'):
  return metrics.MetricWriter(
    workdir,
    start_step=start_step,
    tensorboard=False,
    tracked=(text, json.dumps({'seed': 0, 'data': {'batch_size': 4}})),
  )


def test_a_resumed_run_continues_its_run_there(told, tmp_path):
  writer = _writer(tmp_path)
  for step in (1, 2):
    writer.write(step, {'a': step})
  try:
    raise errors.PreemptedError
  except errors.PreemptedError:
    writer.close()
  writer = _writer(tmp_path, start_step=1)
  writer.write(2, {'a': 2})
  writer.close()
  config = {'seed': 0, 'data.batch_size': 4}
  assert told() == [
    ['init', None, None, config],
    ['log', {'step': 1, 'a': 1}],
    ['log', {'step': 2, 'a': 2}],
    ['finish', 75],
    ['init', 'new', 'allow', config],
    ['log', {'step': 2, 'a': 2}],
    ['finish', 0],
  ]
  # A run that starts over is another run.
  results.set_aside(tmp_path)
  _writer(tmp_path).close()
  assert told()[-2] == ['init', None, None, config]


@pytest.mark.parametrize('fails', ['init', 'log'])
def test_a_tracker_that_fails_warns_once(
  told, tmp_path, monkeypatch, caplog, fails
):
  monkeypatch.setenv('FAILS', fails)
  writer = _writer(tmp_path)
  for step in range(3):
    writer.write(step, {'a': 1})
  writer.close()
  assert len(metrics.read(tmp_path)) == 3
  assert caplog.text.count('wandb gets no more metrics of this run') == 1


@pytest.mark.usefixtures('told')
def test_a_file_of_ids_that_cannot_be_read_warns(tmp_path, caplog):
  (tmp_path / trackers.FILE).mkdir()
  _writer(tmp_path).close()
  assert 'wandb gets no more metrics of this run' in caplog.text


def test_what_is_missing_is_told_before_the_run(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match=r"'tensorbord'; name some of .*wandb"):
    trackers.parse('tensorbord')
  # wandb's own folder in the working directory is no package.
  (tmp_path / 'wandb').mkdir()
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  monkeypatch.delitem(sys.modules, 'wandb', raising=False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[wandb\]"'):
    trackers.check('wandb')


@pytest.mark.trackers
def test_mlflow_in_files(tmp_path, monkeypatch):
  mlflow = pytest.importorskip('mlflow')
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'file://{tmp_path}/store')
  monkeypatch.setenv('MLFLOW_EXPERIMENT_NAME', 'birds')
  for start in (0, 1):
    writer = _writer(tmp_path, start, 'mlflow')
    writer.write(start + 1, {'train/loss': 0.5, 'test/5shot/accuracy': 0.25})
    writer.close()
  run = json.loads((tmp_path / 'trackers.json').read_text())['mlflow']
  client = mlflow.MlflowClient()
  (experiment,) = [e for e in client.search_experiments() if e.name == 'birds']
  (found,) = client.search_runs([experiment.experiment_id])
  assert (found.info.run_id, found.info.status) == (run, 'FINISHED')
  assert found.data.params == {'seed': '0', 'data.batch_size': '4'}
  history = client.get_metric_history(run, 'train/loss')
  assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 0.5)]
  assert found.data.metrics['test/5shot/accuracy'] == 0.25
