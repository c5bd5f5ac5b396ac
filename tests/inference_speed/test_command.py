"""Guards: the command writes its measurements to a file and resumes from it."""

import json
import types

import pytest

from vit_jax.inference_speed import all_pairs, batch_sizes, devices, store

SETTINGS = store.Settings('device', 'mini', 'core', 1000, 'float32')
PAIRS = [('ViT-B/32', 16), ('ViT-B/32', 32), ('BiT-R50x1', 16)]


def _measure(path, pairs, asked, settings=SETTINGS, fails=None):
  def compile_batch(model, size, batch_size):
    asked.append((type(model).__name__, size))
    assert size != fails
    # The speed is at most 8 * size images a second; 1000 / size images fit.
    return devices.Program(
      size * batch_size, lambda: max(batch_size, 4) / (8 * size)
    )

  device = types.SimpleNamespace(
    name='device', platform='cpu', memory_bytes=1000, unit='core', cores=2
  )
  device.compile = compile_batch
  search = batch_sizes.Search(precision=0)
  return all_pairs.measure_all(path, pairs, device, settings, search)


def test_figures_are_those_of_a_core(tmp_path):
  path = tmp_path / 'new' / 'speed.json'
  _measure(path, PAIRS, [])
  measured = store.read(path)
  assert measured.speeds(16) == {'ViT-B/32': 64, 'BiT-R50x1': 64}
  assert measured.speeds(32) == {'ViT-B/32': 128}
  entry = measured.find('ViT-B/32', 16)
  assert (entry.batch_size, entry.largest_batch) == (2, 31)
  assert entry.rates[0] == [1, 32.0]
  none = store.Entry('ViT-H/14', 16, None, None, 0)
  measured = store.add(path, measured, none)
  assert 'ViT-H/14' not in measured.speeds(16)
  speeds, batches = all_pairs.tables(measured).split('\n\n')
  assert [line.split() for line in speeds.splitlines()[1:]] == [
    ['16', '32'],
    ['ViT-B/32', '64', '128'],
    ['BiT-R50x1', '64', '-'],
    ['ViT-H/14', '-', '-'],
  ]
  assert batches.splitlines()[-1].split() == ['ViT-H/14', '0', '-']


def test_pairs_in_the_file_are_not_measured_again(tmp_path):
  path, asked = tmp_path / 'speed.json', []
  with pytest.raises(AssertionError):
    _measure(path, PAIRS, asked, fails=32)
  before = json.loads(path.read_text())
  assert [entry['size'] for entry in before['entries']] == [16]
  asked.clear()
  measured = _measure(path, PAIRS, asked)
  assert {*asked} == {('ViT', 32), ('BiT', 16)}
  assert json.loads(path.read_text())['entries'][:1] == before['entries']
  assert [(e.model, e.size) for e in measured.entries] == PAIRS
  assert [p.name for p in tmp_path.iterdir()] == ['speed.json']


def test_what_cannot_be_measured_is_refused_before_anything_is(tmp_path):
  path, asked = tmp_path / 'speed.json', []
  with pytest.raises(ValueError, match=r"Unknown model 'ViT-X/1'.*ViT-B/16"):
    _measure(path, [*PAIRS, ('ViT-X/1', 16)], asked)
  assert not asked
  _measure(path, PAIRS[:1], [])
  other = store.Settings('device', 'mini', 'core', 1000, 'bfloat16')
  with pytest.raises(ValueError, match=r"dtype='float32'.*dtype='bfloat16'"):
    _measure(path, PAIRS, asked, other)
  assert not asked
  # The memory that a device offers may differ.
  more = store.Settings('device', 'mini', 'core', 1001, 'float32')
  assert len(_measure(path, PAIRS, [], more).entries) == 3


@pytest.mark.gate
def test_the_command_measures_on_this_machine(tmp_path, command):
  path = tmp_path / 'speed.json'
  result = command(
    *('vit_jax.inference_speed', f'--to={path}', '--mini', '--sizes=8'),
    'ViT-B/32',
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
    (('--to=x.json', '--sizes=8,12a'), '--sizes=8,12a'),
    (('--to=x.json', '--device=v33'), 'expected local'),
  ],
)
def test_wrong_flags_end_with_one_message(words, message, command):
  result = command('vit_jax.inference_speed', *words)
  assert result.returncode == 1
  assert message in result.stderr
  assert 'Traceback' not in result.stderr
