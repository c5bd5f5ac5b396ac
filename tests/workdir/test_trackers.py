"""Guards: wandb gets what metrics.jsonl has, and never ends a run."""

import json
import socket
import sys
import time

import pytest

from vit_jax import results
from vit_jax.runtime import errors, installed
from vit_jax.workdir import metrics, trackers

# Stands for wandb, and writes down what it is told.
FAKE = """
import json, os

class Error(Exception):
  pass

def may_fail(where):
  if os.environ.get('FAILS') == where:
    raise Error('it is down')

class Settings:
  def __init__(self, **_):
    pass

def login(prompt, verify):
  may_fail('login')
  return True

class Run:
  def __init__(self, id):
    self.id = id

  def tell(self, *words):
    with open(os.environ['TOLD'], 'a') as file:
      file.write(json.dumps(words) + '\\n')

  def define_metric(self, name, step_metric):
    may_fail('define_metric')

  def log(self, values):
    may_fail('log')
    self.tell('log', values)

  def finish(self, exit_code):
    may_fail('finish')
    self.tell('finish', exit_code)

def init(id, resume, config, **_):
  may_fail('init')
  run = Run(id or 'new')
  run.tell('init', id, resume, config)
  return run
"""
CONFIG = {'seed': 0, 'data.batch_size': 4}


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


def _writer(workdir, start_step=0):
  return metrics.MetricWriter(
    workdir,
    start_step=start_step,
    tensorboard=False,
    tracked=CONFIG,
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
  assert told() == [
    ['init', None, None, CONFIG],
    ['log', {'step': 1, 'a': 1}],
    ['log', {'step': 2, 'a': 2}],
    ['finish', 75],
    ['init', 'new', 'allow', CONFIG],
    ['log', {'step': 2, 'a': 2}],
    ['finish', 0],
  ]
  # A run that starts over is another run.
  results.set_aside(tmp_path)
  _writer(tmp_path).close()
  assert told()[-2] == ['init', None, None, CONFIG]


@pytest.mark.usefixtures('told')
@pytest.mark.parametrize(
  'fails', ['login', 'init', 'define_metric', 'log', 'finish']
)
def test_a_failure_warns_once(tmp_path, monkeypatch, caplog, fails):
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


def test_a_missing_package_is_told_before_the_run(tmp_path, monkeypatch):
  # wandb's own folder in the working directory is no package.
  (tmp_path / 'wandb').mkdir()
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  monkeypatch.delitem(sys.modules, 'wandb', raising=False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[wandb\]"'):
    installed.require('wandb', extra='wandb')


@pytest.mark.trackers
def test_wandb_in_files(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  ids = []
  for start in (0, 1):
    writer = _writer(tmp_path, start)
    writer.write(start + 1, {'train/loss': 0.5, 'test/5shot/accuracy': 0.25})
    writer.close()
    ids.append(json.loads((tmp_path / trackers.FILE).read_text())['wandb'])
  assert ids[0] == ids[1]
  assert len([*tmp_path.glob(f'wandb/offline-run-*/run-{ids[0]}.wandb')]) == 2


@pytest.mark.trackers
def test_a_server_that_does_not_answer_ends_no_run(
  tmp_path, monkeypatch, caplog
):
  wandb = pytest.importorskip('wandb')
  wandb.teardown()  # A new process of wandb's, for the new address.
  monkeypatch.setattr(trackers, '_PATIENCE', 1.0)
  monkeypatch.setenv('WANDB_API_KEY', 'a' * 40)
  monkeypatch.delenv('WANDB_MODE', raising=False)
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'http://127.0.0.1:{server.getsockname()[1]}'
    monkeypatch.setenv('WANDB_BASE_URL', address)
    start = time.monotonic()
    writer = _writer(tmp_path)
    writer.write(1, {'a': 1})
    writer.close()
    wandb.teardown()
  assert time.monotonic() - start < 60
  assert len(metrics.read(tmp_path)) == 1
  assert caplog.text.count('wandb gets no more metrics of this run') == 1
