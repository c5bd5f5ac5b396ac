"""Guards: a ledger joins plans and runs of the same step, and loses no line."""

import json
import threading

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax.plan import analysis
from vit_jax.training import train
from vit_jax.workdir import ledger

MESH = {'data': 1, 'fsdp': 1, 'tensor': 1}


def _key(**changes):
  config = analysis.resolve(tiny_config(**changes), 'cpu')
  return ledger.key(config_lib.flatten(config), MESH, 'v5e')


def _append(path, **more):
  values = dict(what='plan', config='p', predicted_ms=7.0, measured_ms=None)
  ledger.append(path, _key(), {'jax': '1', 'numpy': '2'}, **values | more)


def _launch(workdir, step=0, devices=1, speeds=(), done=8):
  """Makes a launch; it logs a speed each step, and an evaluation."""
  workdir.mkdir(exist_ok=True)
  mesh = MESH | {'data': devices}
  launch = {'time': f'{step}', 'step': step, 'mesh': mesh, 'devices': devices}
  rows = [
    {'step': at, 'images_per_sec': speed}
    for at, speed in enumerate(speeds, start=step + 1)
  ]
  rows.append({'step': step + len(speeds), 'test/accuracy': 0.5})
  for name, lines in ('environment', [launch]), ('metrics', rows):
    with open(workdir / f'{name}.jsonl', 'a') as file:
      file.writelines(json.dumps(line) + '\n' for line in lines)
  config = analysis.resolve(tiny_config(total_steps=8), 'cpu')
  config_lib.save(config, workdir)
  if step + len(speeds) == done:
    (workdir / 'DONE').write_text(f'{done}\n')


@pytest.mark.parametrize(
  'key, value, same',
  [
    ('seed', 3, True),
    ('total_steps', 9, True),
    ('mesh.data', -1, True),
    ('log.every', 7, True),
    ('mesh.shard', 'none', False),
    ('model.depth', 2, False),
    ('data.batch_size', 8, False),
    ('mixup_alpha', 0.1, False),
    ('guard.exit_after', 9.0, True),
    ('guard.replay_every', 2, False),
    ('optimizer.mu_dtype', 'bfloat16', False),
  ],
)
def test_what_makes_another_step(key, value, same):
  assert (_key(changes={key: value}) == _key()) == same


def test_a_mesh_of_other_sizes_makes_another_step():
  config = config_lib.flatten(analysis.resolve(tiny_config(), 'cpu'))
  wide, deep = (
    ledger.key(config, MESH | sizes, 'v5e')
    for sizes in ({'data': 8}, {'data': 4, 'tensor': 2})
  )
  assert wide['devices'] == deep['devices'] == 8
  assert wide['digest'] != deep['digest']


def test_a_real_run_finds_its_plan(tmp_path, programs):
  path, config = tmp_path / 'ledger', tiny_config(total_steps=5, log__every=1)
  for predicted in (7.0, 5.0):
    _append(path, predicted_ms=predicted)
  ledger.append(
    *(path, _key(data__batch_size=8), {}),
    **dict(what='plan', config='p', predicted_ms=9.0, measured_ms=None),
  )

  def run(name, platform):
    with ledger.recording(path, [tmp_path / name], platform, 'v5e'):
      train.train_and_evaluate(config, tmp_path / name)
    return [one for one in ledger.read(path) if one['what'] == 'run']

  assert run('on_a_cpu', 'cpu') == []
  [one] = run('run', 'tpu')
  assert (one['config'], one['predicted_ms']) == (str(tmp_path / 'run'), 5.0)
  assert one | _key() == one
  assert 'jax' in one['versions']
  assert ledger.ratios([one], 'v5e') == [one['measured_ms'] / 5.0]
  assert run('run', 'tpu') == [one]  # It was finished.


def test_the_time_is_that_of_the_last_launch_without_warm_up(tmp_path):
  path, workdir = tmp_path / 'ledger', tmp_path / 'run'
  with ledger.recording(path, [workdir, tmp_path / 'no'], 'gpu', 'L4'):
    _launch(workdir, 0, 2, [1.0, 999.0, 999.0])
    _launch(workdir, 3, 1, [1.0, 10.0, 20.0, 40.0, 8.0])
  [one] = ledger.read(path)
  # The median of 10, 20, 40 and 8 images a second, 16 images a step.
  assert one['measured_ms'] == pytest.approx(1e3 * 16 / 15)
  assert (one['device'], one['devices']) == ('L4', 1)
  assert one['predicted_ms'] is None
  with ledger.recording(path, [workdir], 'gpu', 'L4'):
    _launch(workdir, 8)  # It only evaluates.
  assert ledger.read(path) == [one]


def test_a_ledger_that_is_gone_fails_no_finished_run(tmp_path, caplog):
  path, workdir = tmp_path / 'ledger', tmp_path / 'run'
  path.touch()
  with ledger.recording(path, [workdir], 'tpu', 'v3'):
    path.unlink()
    path.mkdir()
    _launch(workdir, 0, 1, [4.0] * 8)
  assert '"measured_ms": 4000.0' in caplog.text
  with pytest.raises(ValueError, match='gone does not exist'):
    ledger.checked(tmp_path / 'gone/ledger')


def test_damaged_lines_are_left_out(tmp_path, caplog):
  path = tmp_path / 'ledger'
  _append(path)
  for damaged in (b'\xff', b'5', b'{"what": "run"}', b'{"config": "a"'):
    with path.open('ab') as file:
      file.write(damaged + b'\n')
  _append(path, config='q')
  assert [one['config'] for one in ledger.read(path)] == ['p', 'q']
  assert caplog.text.count('is left out') == 4


def test_commands_do_not_destroy_each_others_lines(tmp_path):
  path = tmp_path / 'ledger'

  def add():
    for _ in range(20):
      ledger.append(path, {}, {}, config='c', predicted_ms=1, measured_ms=2)

  threads = [threading.Thread(target=add) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(ledger.read(path)) == 160
