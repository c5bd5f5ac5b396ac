"""Guards: the command writes its measurements to a file and resumes from it."""

import json

import pytest

from vit_jax import inference_speed
from vit_jax.inference_speed import all_pairs, batch_sizes, forward, store

SETTINGS = store.Settings('device', 'mini', 'core', 1000, 'float32')
PAIRS = [('ViT-B/32', 16), ('ViT-B/32', 32), ('BiT-R50x1', 16)]


def _device(asked, cores=1, times=None):
  def compile_batch(model, size, batch_size):
    if times and batch_size == 1:  # Other batches compile in no time.
      times.append(times[-1] + 30)
    asked.append((type(model).__name__, size, batch_size))
    # The speed is at most 4 * size images a second; 1000 / size images fit.
    return forward.Program(
      size * batch_size, lambda: max(batch_size, 4) / (4 * size)
    )

  return forward.Device(
    'device', 'cpu', 1000, compile_batch, unit='core', cores=cores
  )


def _measure(path, pairs, asked, said=None, settings=SETTINGS, cores=1):
  times = [0]
  return all_pairs.measure_all(
    path,
    pairs,
    _device(asked, cores, times),
    settings,
    batch_sizes.Search(precision=0),
    (said if said is not None else []).append,
    clock=lambda: times[-1],
  )


def test_all_pairs_are_measured_and_logged_with_the_time_left(tmp_path):
  said = []
  _measure(tmp_path / 'new' / 'speed.json', PAIRS, [], said)
  assert said == [
    '0 of 3 measured before; device, 0.00 GiB, float32.',
    '  16 px, batch 1: 0.00 GiB, compiled in 30 s',
    '[1/3] ViT-B/32 at 16 px: 64 images/s/core at batch 4, largest batch 62;'
    ' 1 min to go',
    '  32 px, batch 1: 0.00 GiB, compiled in 30 s',
    '[2/3] ViT-B/32 at 32 px: 128 images/s/core at batch 4, largest batch 31;'
    ' 30 s to go',
    '  16 px, batch 1: 0.00 GiB, compiled in 30 s',
    '[3/3] BiT-R50x1 at 16 px: 64 images/s/core at batch 4, largest batch 62;'
    ' 0 s to go',
  ]


def test_pairs_in_the_file_are_not_measured_again(tmp_path):
  path, asked, said = tmp_path / 'speed.json', [], []
  _measure(path, PAIRS[:2], asked)
  before = json.loads(path.read_text())
  asked.clear()
  measured = _measure(path, PAIRS, asked, said)
  assert {(name, size) for name, size, _ in asked} == {('BiT', 16)}
  assert said[0].startswith('2 of 3 measured before')
  after = json.loads(path.read_text())
  assert after['entries'][:2] == before['entries']
  assert [(e.model, e.size) for e in measured.entries] == PAIRS
  assert store.read(path).find('ViT-B/32', 32).largest_batch == 31
  assert [p.name for p in tmp_path.iterdir()] == ['speed.json']


def test_measured_pairs_stay_when_a_later_one_fails(tmp_path):
  path = tmp_path / 'speed.json'

  class Killed(Exception):
    pass

  def say(text):
    if text.startswith('[2/3]'):
      raise Killed

  with pytest.raises(Killed):
    all_pairs.measure_all(
      path, PAIRS, _device([]), SETTINGS, batch_sizes.Search(), say
    )
  assert [(e.model, e.size) for e in store.read(path).entries] == PAIRS[:2]


def test_an_unknown_model_is_refused_before_anything_is_measured(tmp_path):
  asked = []
  with pytest.raises(ValueError, match=r"Unknown model 'ViT-X/1'.*ViT-B/16"):
    _measure(tmp_path / 'speed.json', [*PAIRS, ('ViT-X/1', 16)], asked)
  assert not asked


def test_a_file_of_other_settings_is_left_alone(tmp_path):
  path = tmp_path / 'speed.json'
  _measure(path, PAIRS[:1], [])
  other = store.Settings('device', 'mini', 'core', 1000, 'bfloat16')
  with pytest.raises(ValueError, match="dtype='float32', but this command has"):
    _measure(path, PAIRS, [], settings=other)
  # The memory that a device offers may differ.
  more = store.Settings('device', 'mini', 'core', 1001, 'float32')
  assert len(_measure(path, PAIRS, [], settings=more).entries) == 3


def test_speeds_are_read_for_one_image_size(tmp_path):
  path = tmp_path / 'speed.json'
  assert inference_speed.speeds(path, 16) == {}
  measured = _measure(path, PAIRS, [])
  none = store.Entry('ViT-H/14', 16, None, None, 0)
  store.add(path, measured, none)
  assert inference_speed.speeds(path, 16) == {'ViT-B/32': 64, 'BiT-R50x1': 64}
  assert inference_speed.speeds(path, 32) == {'ViT-B/32': 128}


@pytest.mark.gate
def test_the_command_measures_on_this_machine(tmp_path, command):
  path = tmp_path / 'speed.json'
  result = command(
    *('vit_jax.inference_speed', f'--to={path}'),
    *('--mini', '--sizes=8', '--memory_gib=0.01', '--calls=3', 'ViT-B/32'),
  )
  assert result.returncode == 0, result.stderr
  [entry] = store.read(path).entries
  assert entry.images_per_second > 0
  assert entry.largest_batch > 8
  assert 'ViT-B/32 at 8 px' in result.stderr
  assert 'Largest batch that fits a device' in result.stdout


@pytest.mark.parametrize(
  'words, message',
  [
    ((), '--to is missing'),
    (('--to=x.json', '--sizes=12a'), "'12a' is no side"),
    (('--to=x.json', '--device=v33'), 'expected local'),
    (('--to=x.json', '--device=v3', '--calls=3'), '--calls has no effect with'),
    (('--to=x.json', '--correction=1'), '--correction has no effect with'),
  ],
)
def test_wrong_flags_end_with_one_message(words, message, command):
  result = command('vit_jax.inference_speed', *words)
  assert result.returncode == 1
  assert message in result.stderr
  assert 'Traceback' not in result.stderr


def test_measurements_of_another_process_stay(tmp_path):
  path = tmp_path / 'speed.json'
  nothing = store.Measured(SETTINGS)
  store.add(path, nothing, store.Entry('ViT-B/32', 16, 1.0, 8, 8))
  # This process read the file before the other one added its entry.
  added = store.add(path, nothing, store.Entry('ViT-B/32', 24, 2.0, 8, 8))
  assert [entry.size for entry in added.entries] == [16, 24]
  assert [entry.size for entry in store.read(path).entries] == [16, 24]
