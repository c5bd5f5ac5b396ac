"""Guards: a run's files, its bitwise resumption, divergence and evaluation."""

import contextlib
import json
import math
import shutil
import time

import jax
import numpy as np
import pytest
from absl import logging
from scipy import special

from tests.tiny_run import (
  Death,
  assert_same_state,
  die_at,
  eventful_config,
  rows_but_times,
  saved_state,
  tiny_config,
)
from vit_jax import checkpoint, data, models, results
from vit_jax import config as config_lib
from vit_jax.runtime import compilation, preemption
from vit_jax.runtime.errors import NonFiniteError, PreemptedError
from vit_jax.training import train
from vit_jax.workdir import environment, files, metrics, ownership

GOODPUT = (
  'goodput/steps_seconds',
  'goodput/input_seconds',
  'goodput/evaluation_seconds',
  'goodput/checkpoint_seconds',
  'goodput/compilation_seconds',
  'goodput/restart_seconds',
  'goodput/steps_share',
  'goodput/restarts',
  'goodput/devices',
  'unix_time',
)


def _die(*_):
  raise Death


@pytest.fixture(scope='module', autouse=True)
def _log_everything():
  before = logging.get_verbosity()
  logging.set_verbosity(logging.INFO)
  yield
  logging.set_verbosity(before)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """An uninterrupted run on one device: its work directory and its result."""
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  config = eventful_config()
  config.log.tensorboard = True
  config.profile = dict(start_step=4, steps=2)
  return workdir, train.train_and_evaluate(config, workdir)


# A finished run --------------------------------------------------------------


def test_files_of_a_finished_run(finished):
  workdir, _ = finished
  (events,) = workdir.glob('events.out.tfevents.*')
  assert {p.name for p in workdir.iterdir()} - {events.name} == {
    'DONE',
    'checkpoints',
    'config.json',
    'metrics.jsonl',
    'owner.json',
    'class_names.txt',
    'data.json',
    'environment.jsonl',
    'final',
    'parameters.txt',
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
  assert rows[0].keys() == {
    'step',
    'train/loss',
    'train/accuracy',
    'train/learning_rate',
    'train/grad_norm',
    'train/update_norm',
    'train/param_norm',
    'train/unreadable',
    'train/skipped',
    *GOODPUT,
    'images_per_sec',
    'input_wait',
    'eta_sec',
  }
  assert rows[3].keys() == {
    'step',
    'test/accuracy',
    'test/loss',
    'test/ece',
    'test/count',
    'test/seconds',
    *GOODPUT,
  }
  assert all(math.isfinite(v) for row in rows for v in row.values())
  assert returned == rows[-2] | rows[-1]
  # The schedule counts from 0: at the 12th and last update it is at step 11.
  rate = 1e-2 * 0.5 * (1 + math.cos(math.pi * 9 / 10))
  assert returned['train/learning_rate'] == pytest.approx(rate, rel=1e-4)


def test_profile_is_a_trace_of_the_step(finished):
  workdir, _ = finished
  (trace,) = (workdir / 'profile').rglob('*.xplane.pb')
  assert b'train_step' in trace.read_bytes()
  log = (workdir / 'train.log').read_text()
  assert 0 < log.index('Profiler trace written') < log.index('step  6/12')


def _copy(workdir, tmp_path):
  """Copies a run without its profile, which is large."""
  return shutil.copytree(
    workdir, tmp_path / 'copy', ignore=shutil.ignore_patterns('profile')
  )


def test_finished_run_is_left_alone(finished, tmp_path):
  workdir, returned = finished
  copy = _copy(workdir, tmp_path)
  before = _times(copy)
  config = eventful_config()
  config.log.every = 1  # May differ: it does not change the computation.
  assert train.train_and_evaluate(config, copy) == returned
  assert _times(copy) == before


def _times(workdir):
  """Returns when each file was changed, without the lock and the log."""
  return {
    path: path.stat().st_mtime_ns
    for path in workdir.rglob('*')
    if path.is_file() and path.name not in ('owner.json', 'train.log')
  }


def test_finished_run_is_evaluated_anew_if_asked(finished, tmp_path):
  copy = _copy(finished[0], tmp_path)
  config = eventful_config()
  config.evals.half = config_lib.evaluation('test[:50%]')
  result = train.train_and_evaluate(config, copy)
  assert result['half/count'] == 36
  assert result['test/count'] == 72
  assert (copy / 'DONE').read_text() == '12\n'
  assert [row['step'] for row in metrics.read(copy)][-3:] == [12, 12, 12]
  assert_same_state(copy, finished[0])


def test_death_before_a_changed_evaluation(finished, tmp_path, monkeypatch):
  copy = _copy(finished[0], tmp_path)
  config = eventful_config()
  config.evals.test.split = 'test[:50%]'
  with monkeypatch.context() as patch:
    patch.setattr(metrics.MetricWriter, 'write', _die)
    with pytest.raises(Death):
      train.train_and_evaluate(config, copy)
  result = train.train_and_evaluate(config, copy)
  assert result['test/count'] == 36
  saved = config_lib.load(copy)['evals']['test']
  assert saved['split'] == 'test[:50%]'


def test_death_between_the_last_checkpoint_and_done(finished, tmp_path):
  workdir, returned = finished
  copy = _copy(workdir, tmp_path)
  (copy / 'DONE').write_text('')  # Opened, not yet written.
  assert train.train_and_evaluate(eventful_config(), copy) == returned
  assert (copy / 'DONE').read_text() == '12\n'
  assert_same_state(copy, workdir)
  assert metrics.read(copy) == metrics.read(workdir)


def test_damaged_final_weights_are_made_again(finished, tmp_path):
  workdir = _copy(finished[0], tmp_path)
  before = checkpoint.read_params(workdir / 'final')[0]
  files = (f for f in (workdir / 'final').rglob('d/*') if f.is_file())
  largest = max(files, key=lambda file: file.stat().st_size)
  largest.write_bytes(b'abc')
  assert not checkpoint.is_intact(workdir / 'final')
  train.train_and_evaluate(eventful_config(), workdir)
  after = checkpoint.read_params(workdir / 'final')[0]
  jax.tree.map(np.testing.assert_array_equal, before, after)
  assert rows_but_times(workdir) == rows_but_times(finished[0])
  assert (workdir / 'DONE').read_text() == '12\n'


def test_checkpoints_that_are_gone_are_missed(finished, tmp_path, monkeypatch):
  workdir = _copy(finished[0], tmp_path)
  shutil.rmtree(workdir / 'checkpoints')
  (workdir / 'DONE').unlink()
  with pytest.raises(ValueError, match=r'goes to step 12: .*--restart'):
    train.train_and_evaluate(eventful_config(), workdir)
  numbers = (workdir / 'metrics.jsonl').read_text()
  die_at(monkeypatch, 3)
  with pytest.raises(Death):
    train.train_and_evaluate(eventful_config(), workdir, restart=True)
  assert (workdir / 'metrics_1.jsonl').read_text() == numbers
  assert metrics.read(workdir)[-1]['step'] == 3


def test_other_data_are_refused(finished, tmp_path):
  workdir = _copy(finished[0], tmp_path)
  path = workdir / files.DATA
  saved = json.loads(path.read_text())
  saved['training data']['examples'] = 7
  path.write_text(json.dumps(saved))
  config = eventful_config()
  config.evals.half = config_lib.evaluation('test[:50%]')
  with pytest.raises(
    ValueError, match='training data: examples: 288 now, 7 then'
  ):
    train.train_and_evaluate(config, workdir)
  train.train_and_evaluate(config, workdir, allow_config_change=True)
  saved = json.loads(path.read_text())
  assert saved['training data']['examples'] == 288


@pytest.mark.parametrize('minutes', [0, 100])
def test_checkpoints_by_the_clock_that_are_gone_are_missed(tmp_path, minutes):
  config = eventful_config()
  config.checkpoint.every, config.checkpoint.every_minutes = 100, 10.0
  config_lib.save(config, tmp_path)
  rows = [{'step': i, 'unix_time': 60.0 * minutes * i} for i in (1, 2)]
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (tmp_path / 'metrics.jsonl').write_text(lines)
  if not minutes:
    return results.check_not_lost(tmp_path)
  with pytest.raises(ValueError, match='goes to step 2: what was in checkp'):
    results.check_not_lost(tmp_path)


# Interruptions ---------------------------------------------------------------


def _run_to_death(config, workdir, step):
  with pytest.MonkeyPatch.context() as patch:
    die_at(patch, step)
    with pytest.raises(Death):
      train.train_and_evaluate(config, workdir)
  assert metrics.read(workdir)[-1]['step'] == step
  assert not (workdir / 'DONE').exists()


def _assert_same_run(workdir, expected):
  """Asserts that a run equals an uninterrupted one in all but times."""
  assert (workdir / 'DONE').read_text() == '12\n'
  assert_same_state(workdir, expected)
  # Rows that were logged after a checkpoint appear once, not twice.
  assert rows_but_times(workdir) == rows_but_times(expected)


def test_interrupted_run_ends_as_an_uninterrupted_one(finished, tmp_path):
  config = eventful_config()
  # At the death after step 4, no checkpoint is written yet. Later, step 9 is
  # repeated.
  for death in (4, 9):
    _run_to_death(config, tmp_path, death)
  train.train_and_evaluate(config, tmp_path)
  _assert_same_run(tmp_path, finished[0])
  log = (tmp_path / 'train.log').read_text()
  assert f'Resuming {tmp_path} from step 8.' in log


@pytest.mark.gate
def test_run_goes_on_on_another_number_of_devices(finished, tmp_path):
  _run_to_death(eventful_config(8), tmp_path, 9)
  train.train_and_evaluate(eventful_config(1), tmp_path)
  for row, other in zip(
    rows_but_times(tmp_path), rows_but_times(finished[0]), strict=True
  ):
    assert row == pytest.approx(other, rel=1e-3)


def test_who_had_the_directory_until_now_may_have_begun_another_run(
  tmp_path, monkeypatch
):
  @contextlib.contextmanager
  def held(workdir):
    other = eventful_config()
    other.seed = 7
    config_lib.save(other, workdir)
    yield lambda: None

  monkeypatch.setattr(ownership, 'held', held)
  with pytest.raises(ValueError, match='seed: '):
    train.train_and_evaluate(eventful_config(), tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_a_signal_waits_for_what_is_worth_keeping(
  finished, tmp_path, monkeypatch
):
  """The run is trained; an evaluation and the final weights are missing."""
  copy = _copy(finished[0], tmp_path)
  more = eventful_config()
  more.evals.half = config_lib.evaluation('test[:50%]')
  notices, seen = [], []
  begin = preemption.Notice.begin

  def begin_and_note(self):
    begin(self)
    notices.append(self)
    seen.append(self.nothing_to_save)

  def requested(self):
    seen.append(self.nothing_to_save)
    return False

  def save_params(*_, **__):
    seen.append(notices[-1].nothing_to_save)
    raise Death

  monkeypatch.setattr(preemption.Notice, 'begin', begin_and_note)
  monkeypatch.setattr(preemption.Notice, 'requested', requested)
  monkeypatch.setattr(checkpoint, 'save_params', save_params)
  # The second launch only saves the weights.
  for config, batches in ((more, 3), (eventful_config(), 0)):
    seen.clear()
    with pytest.raises(Death):
      train.train_and_evaluate(config, copy)
    assert seen == [True] + batches * [False] + [False]


@pytest.mark.gate
def test_preemption_inside_an_evaluation(finished, tmp_path, monkeypatch):
  calls = []

  def requested(self):
    self.reason = 'SIGTERM'
    calls.append(None)
    return len(calls) == 8  # After the second batch of the first evaluation.

  with monkeypatch.context() as patch:
    patch.setattr(preemption.Notice, 'requested', requested)
    with pytest.raises(PreemptedError, match='stopped after step 6,'):
      train.train_and_evaluate(eventful_config(), tmp_path)
  assert checkpoint.latest_step(tmp_path) == 6
  assert [row['step'] for row in metrics.read(tmp_path)] == [3, 4, 6]
  train.train_and_evaluate(eventful_config(), tmp_path)
  _assert_same_run(tmp_path, finished[0])


@pytest.mark.gate
def test_a_best_value_counts_only_with_its_weights(tmp_path, monkeypatch):
  config = eventful_config()
  config.checkpoint.best = 'test/loss'
  original = checkpoint.save_params

  def save_params(workdir, kind, *args, **kwargs):
    if kind == checkpoint.BEST:
      raise Death
    return original(workdir, kind, *args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint, 'save_params', save_params)
    with pytest.raises(Death):
      train.train_and_evaluate(config, tmp_path)
  config.checkpoint.keep = 1
  train.train_and_evaluate(config, tmp_path)
  losses = {
    row['step']: row['test/loss']
    for row in metrics.read(tmp_path)
    if 'test/loss' in row
  }
  best = str(min(losses, key=losses.get))
  assert [p.name for p in (tmp_path / 'best').iterdir()] == [best]
  assert best in {p.name for p in (tmp_path / 'checkpoints').iterdir()}


# Divergence ------------------------------------------------------------------


def _diverging_config():
  config = eventful_config()
  # The seventh update has a learning rate of 1e33.
  config.schedule = config_lib.schedule(
    'staircase', peak=1e-3, warmup_steps=0, boundaries=(0.5,), factor=1e36
  )
  config.optimizer = config_lib.sgd()
  return config


def test_divergence_stops_with_the_last_good_checkpoint(tmp_path):
  with pytest.raises(NonFiniteError, match='at step 7 ') as error:
    train.train_and_evaluate(_diverging_config(), tmp_path)
  assert '(found in steps 7 to 8)' in str(error.value)
  assert f'what is in {tmp_path}/checkpoints is of before' in str(error.value)
  assert not (tmp_path / 'DONE').exists()
  assert [p.name for p in (tmp_path / 'checkpoints').iterdir()] == ['4']
  for name, value in saved_state(tmp_path).items():
    assert np.isfinite(value).all(), name
  assert [row['step'] for row in metrics.read(tmp_path)] == [3, 4, 6, 6]


@pytest.mark.gate
def test_so_many_steps_in_a_row_may_be_skipped(tmp_path):
  config = _diverging_config()
  config.guard.nonfinite, config.guard.max_skipped = 'skip', 3
  with pytest.raises(NonFiniteError, match='at step 10, number 4 in a row'):
    train.train_and_evaluate(config, tmp_path)


# Evaluation ------------------------------------------------------------------


def _naive_evaluation(params):
  """Returns accuracy and mean loss on the test split, all images at once."""
  view = data.View(data.open_source('digits:01'), 'test')
  images = np.stack([view[i].image for i in range(len(view))])
  labels = np.array([view[i].label for i in range(len(view))])
  model = models.build(
    'ViT-Ti/4', num_classes=2, width=16, depth=1, heads=2, mlp_dim=32
  )
  logits, _ = model.apply({'params': params}, np.float32(images / 127.5 - 1))
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


@pytest.mark.gate
def test_waiting_for_the_step_is_compilation(tmp_path, monkeypatch):
  start = compilation.in_background

  def slow(compile_):
    return start(lambda: (time.sleep(1), compile_())[1])

  monkeypatch.setattr(compilation, 'in_background', slow)
  train.train_and_evaluate(tiny_config(), tmp_path)
  (*_, last) = metrics.read(tmp_path)
  assert last['goodput/compilation_seconds'] > 1
