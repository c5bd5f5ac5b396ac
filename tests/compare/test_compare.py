"""Guards: frames, table and plots show what the work directories hold."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from tests import run_files
from vit_jax import compare
from vit_jax.compare import plots, table


def _run(folder, *, peak, seed, rows, done=True):
  config = {
    'seed': seed,
    'image_size': [8, 8],
    'schedule': {'peak': peak},
    'evals': {'test': {'every': seed}},
  }
  done = 20 if done else None
  run_files.leave(folder, *rows, config=config, done=done)


def _row(step, hours, devices, **metrics):
  return {
    'step': step,
    'goodput/steps_seconds': 3600 * hours - 60,
    'goodput/input_seconds': 60,
    'goodput/devices': devices,
    **{key.replace('__', '/'): value for key, value in metrics.items()},
  }


@pytest.fixture
def folder(tmp_path):
  rows = [
    _row(10, 1.0, 4, train__loss=3.0),
    # One step has two rows. Later the run has half of the devices.
    _row(10, 1.5, 4, test__accuracy=0.25),
    _row(20, 2.5, 2, train__loss=2.0),
    _row(20, 2.5, 2, test__accuracy=0.5),
  ]
  _run(tmp_path / 'runs/a/first', peak=0.1, seed=0, rows=rows)
  rows = [{'step': 10, 'train/loss': 4.0}]
  _run(tmp_path / 'runs/a/second', peak=1.0, seed=1, rows=rows, done=False)
  return tmp_path / 'runs'


def test_frames_have_a_row_for_each_run_or_step(folder):
  runs, nan = compare.load_runs(folder), math.nan
  for column, expected in {
    'run': ['a/first', 'a/second'],
    'finished': [True, False],
    'step': [20, 10],
    'config.schedule.peak': [0.1, 1.0],
    'config.image_size': [(8, 8), (8, 8)],
    'train/loss': [2.0, 4.0],
    'test/accuracy': [0.5, nan],
    'hours': [2.5, nan],
    'device_hours': [1.5 * 4 + 1.0 * 2, nan],
  }.items():
    np.testing.assert_equal(runs[column].tolist(), expected)
  curves = compare.load_curves(folder)
  for column, expected in {
    'run': ['a/first', 'a/first', 'a/second'],
    'step': [10, 20, 10],
    'test/accuracy': [0.25, 0.5, nan],
    'hours': [1.5, 2.5, nan],
    'device_hours': [6.0, 8.0, nan],
  }.items():
    np.testing.assert_equal(curves[column].tolist(), expected)


def test_names_of_runs(folder):
  assert list(compare.find(folder / 'a')) == ['first', 'second']
  assert list(compare.find(folder / 'a/first')) == ['first']
  assert list(compare.find(folder / 'a/first', folder)) == [
    *('first', 'runs/a/first', 'runs/a/second'),
  ]
  # Folders of the same name lose no run.
  _run(folder / 'b/a/first', peak=0.1, seed=0, rows=[])
  assert list(compare.find(folder / 'a', folder / 'b/a')) == [
    *('a/first', 'a/second', str(folder / 'b/a/first')),
  ]
  (folder / 'empty').mkdir()
  for place in ('empty', 'nowhere'):
    with pytest.raises(ValueError, match=place):
      compare.find(folder / place)


def test_the_table_shows_how_the_runs_differ(folder):
  runs = compare.load_runs(folder)
  shown = table.render(runs, table.choose(runs, []), 80)
  assert [line.split() for line in shown.splitlines()] == [
    ['step', 'test/accuracy', 'seed', 'schedule.peak'],
    ['a/first', '20', '0.5000', '0', '0.1'],
    ['a/second', '10/?', '-', '1', '1'],
  ]
  # What has no room is below.
  narrow = table.render(runs, ['test/accuracy', 'train/loss'], 40).splitlines()
  assert max(map(len, narrow)) <= 40
  assert sum(line.startswith('a/first') for line in narrow) > 1
  assert 'schedule.peak' in ' '.join(narrow)
  assert table.choose(runs, ['train/loss']) == ['train/loss']
  with pytest.raises(ValueError, match=r"'test/acc'\]; choose .*'hours'"):
    table.choose(runs, ['test/acc'])


@pytest.mark.parametrize('x', ['step', 'device_hours', 'schedule.peak'])
def test_plots(folder, tmp_path, x):
  pytest.importorskip('matplotlib')
  path = tmp_path / 'plot.png'
  runs, curves = compare.load_runs(folder), compare.load_curves(folder)
  plots.plot(runs, curves, 'train/loss', x, path)
  assert path.read_bytes().startswith(b'\x89PNG')
  for words in (('train/loss', 'schedule.pek'), ('test/acc', x)):
    with pytest.raises(ValueError, match='choose from'):
      plots.plot(runs, curves, *words, path)


def test_names_are_shown_without_formulas_and_control_characters(
  tmp_path,
):
  pytest.importorskip('matplotlib')
  name, metric = 'r$\\x$\x1b[31m\n', 'a$\\x$/accuracy'
  for run in (name, 'b'):
    rows = [{'step': 1, metric: 1.0}]
    _run(tmp_path / 'runs' / run, peak=1, seed=0, rows=rows)
    config = json.dumps({'name$\\x$': f'$\\x$ of {run}'})
    (tmp_path / 'runs' / run / 'config.json').write_text(config)
  runs = compare.load_runs(tmp_path / 'runs')
  assert runs['run'].tolist() == ['b', r'r$\x$\x1b[31m\n']
  curves = compare.load_curves(tmp_path / 'runs')
  for x in ('step', 'name$\\x$'):
    # As a formula the name would raise an error: there is no command \\x.
    plots.plot(runs, curves, metric, x, tmp_path / 'plot.svg')
    # XML allows no escape character.
    ElementTree.parse(tmp_path / 'plot.svg')
  assert '\x1b' not in table.render(runs.assign(run=name), [metric], 80)


def test_the_command(folder, tmp_path, command):
  done = command('vit_jax.compare', folder, f'--csv={tmp_path}/runs.csv')
  assert ['a/first', '20', '0.5000', '0', '0.1'] in [
    line.split() for line in done.stdout.splitlines()
  ]
  header = (tmp_path / 'runs.csv').read_text().splitlines()[0]
  assert header.startswith('run,finished,config.seed,')
