"""Guards: the files of a finished run, its metrics, and its later launches."""

import json
import math
import shutil
import sys

import jax
import numpy as np
import pytest
from scipy import special

from tests.tiny_run import (
  SIZES,
  Death,
  assert_same_state,
  eventful_config,
  rows_but_times,
  saved_state,
)
from vit_jax import certificate, checkpoint, data, models, results
from vit_jax import config as config_lib
from vit_jax.evaluators import predictions
from vit_jax.training import train
from vit_jax.workdir import environment, files, metrics


def test_files_of_a_finished_run(finished):
  workdir, _ = finished
  (events,) = workdir.glob('events.out.tfevents.*')
  assert {p.name for p in workdir.iterdir()} - {events.name} == {
    'DONE',
    'certificate.json',
    'checkpoints',
    'config.json',
    'metrics.jsonl',
    'owner.json',
    'class_names.txt',
    'data.json',
    'environment.jsonl',
    'final',
    'parameters.txt',
    'predictions',
    'profile',
    'requirements.txt',
    'train.log',
  }
  assert (workdir / 'DONE').read_text() == '12\n'
  assert {p.name for p in (workdir / 'checkpoints').iterdir()} == {'8', '12'}
  config = json.loads((workdir / 'config.json').read_text())
  assert config['total_steps'] == 12
  assert config['num_classes'] == 2
  assert config['data']['num_examples'] == 288
  [launch] = environment.read(workdir)
  assert (launch['step'], launch['devices']) == (0, 1)
  assert config['model']['dtype'] == 'float32'
  assert 'head/kernel' in (workdir / 'parameters.txt').read_text()
  assert (workdir / 'class_names.txt').read_text() == '0\n1\n'
  log = (workdir / 'train.log').read_text()
  assert 'digits:01 train: 288 images, 2 classes' in log
  assert 'step  9/12  loss ' in log
  assert 'count 72' in log
  (trace,) = (workdir / 'profile').rglob('*.xplane.pb')
  assert b'train_step' in trace.read_bytes()
  assert 0 < log.index('Profiler trace written') < log.index('step  6/12')


def test_metrics_of_a_finished_run(finished):
  workdir, returned = finished
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  kinds = [(r['step'], 'test' if 'test/loss' in r else 'train') for r in rows]
  # Every 3 steps and at every checkpoint; an evaluation every 6 steps.
  assert kinds == [
    (3, 'train'),
    (4, 'train'),
    (6, 'train'),
    (6, 'test'),
    (8, 'train'),
    (9, 'train'),
    (12, 'train'),
    (12, 'test'),
  ]
  # `goodput` has tests of its own.
  keys = [
    {key for key in row if not key.startswith('goodput/')} for row in rows
  ]
  assert keys[0] == {
    *('step', 'unix_time'),
    'train/loss',
    'train/accuracy',
    'train/learning_rate',
    'train/grad_norm',
    'train/update_norm',
    'train/param_norm',
    'train/unreadable',
    'train/skipped',
    'images_per_sec',
    'input_wait',
    'eta_sec',
  }
  assert keys[3] == {
    *('step', 'unix_time', 'test/accuracy', 'test/loss', 'test/ece'),
    *('test/count', 'test/seconds'),
  }
  assert 'goodput/steps_share' in rows[3]
  assert all(math.isfinite(v) for row in rows for v in row.values())
  assert returned == rows[-2] | rows[-1]
  # The schedule counts from 0: at the 12th and last update it is at step 11.
  rate = 1e-2 * 0.5 * (1 + math.cos(math.pi * 9 / 10))
  assert returned['train/learning_rate'] == pytest.approx(rate, rel=1e-4)


def _naive_evaluation(params):
  """Returns accuracy and mean loss on the test split, all images at once."""
  view = data.View(data.open_source('digits:01'), 'test')
  images = np.stack([view[i].image for i in range(len(view))])
  labels = np.array([view[i].label for i in range(len(view))])
  model = models.build('ViT-Ti/4', num_classes=2, **SIZES)
  logits, _ = jax.jit(model.apply)(
    {'params': params}, np.float32(images / 127.5 - 1)
  )
  losses = -special.log_softmax(np.asarray(logits), axis=-1)
  return (
    np.mean(logits.argmax(-1) == labels),
    losses[np.arange(len(labels)), labels].mean(),
  )


def test_evaluates_every_example_once_with_averaged_weights(finished):
  workdir = finished[0]
  result = results.final_metrics(workdir)
  assert result['test/count'] == 72  # 4 batches of 16, and one of 8.
  averaged, _ = checkpoint.read_params(workdir)
  accuracy, loss = _naive_evaluation(averaged)
  assert result['test/accuracy'] == pytest.approx(accuracy)
  assert result['test/loss'] == pytest.approx(loss, rel=1e-5)
  state = {
    name: value
    for name, value in saved_state(workdir).items()
    if name.startswith("['params']")
  }
  latest = jax.tree.unflatten(jax.tree.structure(averaged), state.values())
  assert abs(_naive_evaluation(latest)[1] - loss) > 1e-3


# Saved predictions -----------------------------------------------------------


def _check_predictions(workdir):
  """Asserts that the predictions are those of the last step."""
  table, facts = predictions.read(predictions.path(workdir, 'test'))
  found = results.final_metrics(workdir)
  assert (found['step'], facts['step']) == (12, 12)
  assert facts['class_names'] == ['0', '1']
  assert len(table) == found['test/count'] == 72
  assert table['correct'].mean() == found['test/accuracy']
  assert table['name'][71] == 'test/71'
  source = data.open_source('digits:01')
  labels = [source.read('test', i).label for i in range(72)]
  assert table['label'].tolist() == labels
  # Nothing temporary is left.
  folder = workdir / predictions.FOLDER
  assert [path.name for path in folder.iterdir()] == ['test.parquet']


def test_a_run_keeps_the_newest_predictions(finished):
  _check_predictions(finished[0])


def test_a_finished_run_makes_up_for_predictions(copy):
  """Its config is older than the key."""
  shutil.rmtree(copy / predictions.FOLDER)
  path = copy / 'config.json'
  saved = json.loads(path.read_text())
  del saved['evals']['test']['save_predictions']
  path.write_text(json.dumps(saved))
  rows = metrics.read(copy)
  config = eventful_config()
  train.train_and_evaluate(config, copy)
  assert metrics.read(copy) == rows
  config.evals.test.save_predictions = True
  train.train_and_evaluate(config, copy)
  _check_predictions(copy)
  rows = metrics.read(copy)
  train.train_and_evaluate(config, copy)
  assert metrics.read(copy) == rows


def test_without_pyarrow_nothing_begins(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  config = eventful_config()
  config.evals.test.save_predictions = True
  message = r'test: save_predictions needs pyarrow.* pip install .*parquet'
  with pytest.raises(ValueError, match=message):
    train.train_and_evaluate(config, tmp_path / 'run')


# Later launches --------------------------------------------------------------


def _times(workdir):
  """Returns when each file was changed, without the lock and the log."""
  return {
    path: path.stat().st_mtime_ns
    for path in workdir.rglob('*')
    if path.is_file() and path.name not in ('owner.json', 'train.log')
  }


def test_a_finished_run_is_left_alone(finished, copy):
  before = _times(copy)
  config = eventful_config()
  config.log.every = 1  # May differ: it does not change the computation.
  assert train.train_and_evaluate(config, copy) == finished[1]
  assert _times(copy) == before


def test_a_changed_evaluation_that_is_interrupted(finished, copy, monkeypatch):
  config = eventful_config()
  config.evals.test.split = 'test[:50%]'
  config.evals.all = config_lib.evaluation('test')

  def die(*_):
    raise Death

  with monkeypatch.context() as patch:
    patch.setattr(metrics.MetricWriter, 'write', die)
    with pytest.raises(Death):
      train.train_and_evaluate(config, copy)
  # They say that a run is finished, and what it was then.
  assert not any((copy / name).exists() for name in ('DONE', certificate.FILE))
  # The result in the work directory is that of the whole split.
  result = train.train_and_evaluate(config, copy)
  assert (result['test/count'], result['all/count']) == (36, 72)
  saved = config_lib.load(copy)['evals']['test']
  assert saved['split'] == 'test[:50%]'
  assert (copy / 'DONE').read_text() == '12\n'
  assert [row['step'] for row in metrics.read(copy)][-3:] == [12, 12, 12]
  assert_same_state(copy, finished[0])


def test_a_run_that_died_as_it_finished_is_finished(finished, copy):
  (copy / 'DONE').write_text('')  # Opened, not yet written.
  shutil.rmtree(copy / 'final')
  assert train.train_and_evaluate(eventful_config(), copy) == finished[1]
  before, after = (
    checkpoint.read_params(workdir / 'final')[0]
    for workdir in (finished[0], copy)
  )
  jax.tree.map(np.testing.assert_array_equal, before, after)
  assert rows_but_times(copy) == rows_but_times(finished[0])
  assert (copy / 'DONE').read_text() == '12\n'


def test_checkpoints_that_are_gone_are_missed(copy, monkeypatch):
  shutil.rmtree(copy / 'checkpoints')
  (copy / 'DONE').unlink()
  with pytest.raises(ValueError, match=r'goes to step 12: .*--restart'):
    train.train_and_evaluate(eventful_config(), copy)
  numbers = (copy / 'metrics.jsonl').read_text()
  set_aside = results.set_aside

  def set_aside_and_die(workdir):
    set_aside(workdir)
    raise Death

  monkeypatch.setattr(results, 'set_aside', set_aside_and_die)
  with pytest.raises(Death):
    train.train_and_evaluate(eventful_config(), copy, restart=True)
  assert (copy / 'metrics_1.jsonl').read_text() == numbers
  assert not metrics.read(copy)


def test_other_data_are_refused(copy):
  path = copy / files.DATA
  saved = json.loads(path.read_text())
  saved['training data']['examples'] = 7
  path.write_text(json.dumps(saved))
  config = eventful_config()
  config.evals.half = config_lib.evaluation('test[:50%]')
  with pytest.raises(
    ValueError, match='training data: examples: 288 now, 7 then'
  ):
    train.train_and_evaluate(config, copy)
  train.train_and_evaluate(config, copy, allow_config_change=True)
  saved = json.loads(path.read_text())
  assert saved['training data']['examples'] == 288
