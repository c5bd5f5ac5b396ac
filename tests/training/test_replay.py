"""Guards: a replay is equal to its run, and finds what is not."""

import importlib.util
import json
import shutil

import jax
import numpy as np
import pytest

from tests import tiny_run
from vit_jax import certificate, checkpoint
from vit_jax import config as config_lib
from vit_jax.runtime import json_text, preemption
from vit_jax.runtime.errors import CorruptionError, PreemptedError
from vit_jax.training import replay, train, twice
from vit_jax.workdir import environment


def _contents(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file()
  }


@pytest.mark.parametrize('first', [None, 0])
def test_a_run_is_equal_and_not_changed(copy, first):
  before = _contents(copy)
  text = replay.replay(copy, first=first, certificate=copy / certificate.FILE)
  # With the evaluations of the last step.
  assert f'steps {9 if first is None else 1} to 12' in text
  assert 'states at the steps' in text
  assert _contents(copy) == before


def test_steps_of_several_launches_are_equal(tmp_path, monkeypatch):
  config = tiny_run.eventful_config()
  with monkeypatch.context() as patch:
    tiny_run.die_at(patch, 9)
    with pytest.raises(tiny_run.Death):
      train.train_and_evaluate(config, tmp_path)
  assert 'steps 1 to 6 ' in replay.replay(tmp_path, first=0, steps=7)
  train.train_and_evaluate(config, tmp_path)
  assert len(environment.read(tmp_path)) == 2
  assert 'steps 1 to 12 ' in replay.replay(tmp_path, first=0)


def test_names_the_first_step_and_array_of_a_wrong_run(tmp_path, monkeypatch):
  right, at = twice.Twice.step, 4

  def wrong(self, number, *arguments):
    state, values = right(self, number, *arguments)
    if number == at:  # The lowest bit of a number that trains.
      head = dict(state.params['head'])
      bits = np.asarray(head['bias']).view(np.uint32).copy()
      bits[1] ^= 1
      head['bias'] = jax.device_put(
        bits.view(np.float32), head['bias'].sharding
      )
      state = state.replace(params=dict(state.params, head=head))
    return state, values

  config = tiny_run.eventful_config()
  with monkeypatch.context() as patch:
    patch.setattr(twice.Twice, 'step', wrong)
    train.train_and_evaluate(config, tmp_path)
  # The run kept the checkpoints of the steps 8 and 12, and is right after 4.
  replay.replay(tmp_path)
  with pytest.raises(CorruptionError, match=r'step 4 is the first.*no checkpo'):
    replay.replay(tmp_path, first=0)

  config.checkpoint.keep = 3
  # The row of step 3 does not tell whether that step has ended right.
  for at, arrays in ((4, r'1 of \d+ arrays: params/head/bias\.'), (3, '')):
    with monkeypatch.context() as patch:
      patch.setattr(twice.Twice, 'step', wrong)
      train.train_and_evaluate(config, tmp_path / f'kept_{at}')
    with pytest.raises(
      CorruptionError, match=f'step 4 .*steps 1 to 4 .*state: {arrays}'
    ):
      replay.replay(tmp_path / f'kept_{at}', first=0)


def _change(path, old, new):
  text = path.read_text()
  assert old in text
  path.write_text(text.replace(old, new))


def test_one_changed_digit_of_the_metrics(copy):
  row = json.loads((copy / 'metrics.jsonl').read_text().splitlines()[-2])
  value = f'"train/loss": {row["train/loss"]}'
  _change(copy / 'metrics.jsonl', value, value[:-1] + str(9 - int(value[-1])))
  with pytest.raises(CorruptionError, match=r'step 12 .*1 metric.*train/loss'):
    replay.replay(copy)
  with pytest.raises(CorruptionError, match=r'train/loss.*metrics.jsonl'):
    replay.replay(copy, certificate=copy / certificate.FILE)


def test_one_changed_weight(copy):
  params, _ = checkpoint.read_params(copy / 'final')
  params['head']['bias'] = np.nextafter(params['head']['bias'], np.float32(9))
  # As a whole checkpoint, whose own record is right.
  checkpoint.save_params(copy, checkpoint.FINAL, 12, params)
  with pytest.raises(CorruptionError, match='weights: params/head/bias: '):
    replay.replay(copy, certificate=copy / certificate.FILE)
  shutil.rmtree(copy / checkpoint.FINAL)
  with pytest.raises(CorruptionError, match='weights: params/'):
    replay.replay(copy, certificate=copy / certificate.FILE)


def test_one_changed_bit_of_a_file_of_the_last_state(copy):
  folder = copy / 'checkpoints/12/default'
  [path] = folder.glob('d/*')
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(CorruptionError, match='12 is damaged'):
    replay.replay(copy, certificate=copy / certificate.FILE)


def test_a_row_that_the_run_did_not_write(copy, caplog):
  with (copy / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 12, "great/accuracy": 0.999}\n')
  with pytest.raises(CorruptionError, match=r'great/accuracy.*metrics.jsonl'):
    replay.replay(copy, certificate=copy / certificate.FILE)
  replay.replay(copy)
  assert 'great/accuracy' in caplog.text
  with (copy / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 12, "train/bliss": 1.0}\n')
  with pytest.raises(CorruptionError, match='train/bliss was '):
    replay.replay(copy)


@pytest.mark.parametrize('part', ['config', 'launches', 'data', 'files'])
def test_a_certificate_of_another_run(copy, part):
  path = copy / certificate.FILE
  content = certificate.read(path) | {part: {'seed': 3}}
  checksum = json_text.checksum(content)
  path.write_text(json.dumps(content | {'checksum': checksum}))
  with pytest.raises(CorruptionError, match=f'{part}: '):
    replay.replay(copy, certificate=path)


def test_a_run_of_epochs_that_went_on_with_another_config(tmp_path):
  config = tiny_run.tiny_config(log__every=1, checkpoint__every=18)
  config.total_steps, config.epochs = None, 1.0
  train.train_and_evaluate(config, tmp_path)
  assert 'steps 1 to 18 ' in replay.replay(tmp_path)
  config.epochs, config.schedule.peak = 2.0, 1e-4
  train.train_and_evaluate(config, tmp_path, allow_config_change=True)
  with pytest.raises(ValueError, match=r'at step 18:\n  config'):
    replay.replay(tmp_path, first=0)
  with pytest.raises(ValueError, match='another config'):
    replay.replay(tmp_path, first=0, steps=9)
  assert 'steps 19 to 36 ' in replay.replay(tmp_path)


def test_a_changed_certificate(copy):
  path = copy / certificate.FILE
  accuracy = certificate.read(path)['metrics']['test/accuracy']
  _change(path, f'"test/accuracy": {accuracy}', '"test/accuracy": 0.99')
  with pytest.raises(ValueError, match='not what was written'):
    replay.replay(copy, certificate=path)
  with pytest.raises(ValueError, match='no certificate'):
    replay.replay(copy, certificate=copy / 'config.json/none')


@pytest.mark.parametrize(
  'key, value',
  [('device_kind', 'TPU v3'), ('devices', 4096), ('processes', 2)],
)
def test_other_devices_are_refused(copy, key, value):
  path = copy / environment.FILE
  [launch] = environment.read(copy)
  path.write_text(json.dumps(launch | {key: value}) + '\n')
  with pytest.raises(ValueError, match=f'{key}: .* here, .* in the run'):
    replay.replay(copy)


def test_a_gpu_must_be_deterministic(copy, monkeypatch):
  def refuse(platform):
    raise ValueError(f'{platform} is not repeatable')

  monkeypatch.setattr(twice, 'check_repeatable', refuse)
  with pytest.raises(ValueError, match='cpu is not repeatable'):
    replay.replay(copy)


def test_names_the_step_at_which_the_devices_changed(copy):
  path = copy / environment.FILE
  [launch] = environment.read(copy)
  other = launch | {'mesh': launch['mesh'] | {'data': 4}, 'devices': 4}
  # The third launch found the checkpoint of the second one damaged.
  lines = [launch, launch | {'step': 8}, other | {'step': 4}]
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  with pytest.raises(ValueError, match=r'step 4:\s+devices: 4'):
    replay.replay(copy, first=0)
  assert 'steps 1 to 4 ' in replay.replay(copy, first=0, steps=4)


def test_can_be_stopped_in_an_evaluation(copy, monkeypatch):
  requested = iter([False] * 4 + [True])
  monkeypatch.setattr(
    preemption.Notice, 'requested', lambda self: next(requested)
  )
  with pytest.raises(PreemptedError, match='step 12'):
    replay.replay(copy)


def test_needs_nothing_that_only_writing_needs(copy):
  if importlib.util.find_spec('wandb'):
    pytest.skip('It is installed.')
  config = config_lib.load(copy)
  config['log']['trackers'] = 'wandb'
  (copy / config_lib.FILE).write_text(json.dumps(config))
  assert 'steps 9 to 12 ' in replay.replay(copy)


def test_a_state_that_was_saved_without_a_row_of_its_own(tmp_path):
  config = tiny_run.eventful_config()
  config.checkpoint.update(every=100, best='test/accuracy')
  train.train_and_evaluate(config, tmp_path)
  assert 'at the steps [6, 12]' in replay.replay(tmp_path, first=0)
  # One of the checkpoints is damaged; the others serve.
  (tmp_path / 'checkpoints/6/fingerprints/metadata').write_text('')
  assert 'at the steps [12]' in replay.replay(tmp_path, first=0)


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(first=4), r'\[0, 8\]'),
    (dict(first=12), r'\[0, 8\]'),
    (dict(first=0, steps=2), 'step 3'),
    (dict(dataset='digits:012'), 'data'),
  ],
)
def test_what_cannot_be_repeated_is_refused(copy, options, message):
  with pytest.raises(ValueError, match=message):
    replay.replay(copy, **options)


def test_the_command(copy, command):
  done = command('vit_jax.replay', copy, '--steps=1')
  assert done.returncode == 0, done.stderr
  assert 'steps 9 to 9 ' in done.stdout
  _change(copy / 'metrics.jsonl', '"test/count": 72', '"test/count": 71')
  done = command('vit_jax.replay', f'--certificate={copy}/certificate.json')
  assert done.returncode == 78, done.stderr
