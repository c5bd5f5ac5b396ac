"""Guards: wandb gets what metrics.jsonl has, and never ends a run."""

import json
import socket
import sys
import time
from unittest import mock

import pytest

from vit_jax import results
from vit_jax.runtime import errors, installed
from vit_jax.workdir import metrics, trackers

CONFIG = {'seed': 0, 'data.batch_size': 4}


@pytest.fixture
def wandb(monkeypatch):
  """Stands for wandb."""
  fake = mock.MagicMock()
  fake.init.return_value.id = 'new'
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  return fake


def _writer(workdir, start_step=0):
  return metrics.MetricWriter(
    workdir,
    start_step=start_step,
    tensorboard=False,
    tracked=CONFIG,
  )


def test_a_resumed_run_continues_its_run_there(wandb, tmp_path):
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
  run = wandb.init.return_value
  rows = [1, 2, 2]
  assert run.log.mock_calls == [mock.call({'step': x, 'a': x}) for x in rows]
  codes = [call.kwargs['exit_code'] for call in run.finish.mock_calls]
  assert codes == [75, 0]
  # A run that starts over is another run.
  results.set_aside(tmp_path)
  _writer(tmp_path).close()
  begun = [call.kwargs for call in wandb.init.call_args_list]
  assert [(x['id'], x['resume']) for x in begun] == [
    *((None, None), ('new', 'allow'), (None, None))
  ]
  assert all(x['config'] == CONFIG for x in begun)


@pytest.mark.parametrize(
  'fails', ['login', 'init', 'define_metric', 'log', 'finish']
)
def test_a_failure_warns_once(wandb, monkeypatch, tmp_path, caplog, fails):
  monkeypatch.delenv('WANDB_MODE', raising=False)
  of = wandb if fails in ('login', 'init') else wandb.init.return_value
  getattr(of, fails).side_effect = ConnectionError('it is down')
  writer = _writer(tmp_path)
  for step in range(3):
    writer.write(step, {'a': 1})
  writer.close()
  assert len(metrics.read(tmp_path)) == 3
  assert caplog.text.count('wandb gets no more metrics of this run') == 1


@pytest.mark.usefixtures('wandb')
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
