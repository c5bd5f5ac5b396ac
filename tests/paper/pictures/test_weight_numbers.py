"""Guards: numbers from weights are measured once, and outlive the weights."""

import json
import subprocess

import pytest
from etils import epath

from vit_jax.paper.pictures import weight_numbers
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.sweep import Study
from vit_jax.sweep.spec import Run

ONE, OTHER = Pretraining('ViT-B/16'), Pretraining('ViT-B/32')


@pytest.fixture
def results(tmp_path):
  """Results in which only the first run is finished."""
  (tmp_path / 'one').mkdir()
  (tmp_path / 'one' / 'DONE').write_text('9\n')
  studies = [
    Study(ONE.name, finals=[Run('one', 'config.py')]),
    Study(OTHER.name, finals=[Run('other', 'config.py')]),
  ]
  return Results(
    studies, {'one': {}}, workdir=lambda name: epath.Path(tmp_path / name)
  )


@pytest.fixture
def asked(monkeypatch):
  """Collects the requests; answers each kind with its length."""
  requests = []

  def run(command, *, input, **options):
    del options
    request = json.loads(input)
    requests.append({name: of['kinds'] for name, of in request.items()})
    measured = {
      name: {
        'numbers': {kind: len(kind) for kind in of['kinds'] if kind != 'bad'},
        'failures': ['bad: no.'] if 'bad' in of['kinds'] else [],
      }
      for name, of in request.items()
    }
    text = f'a warning\n{json.dumps(measured)}\n'
    return subprocess.CompletedProcess(command, 0, text)

  monkeypatch.setattr(weight_numbers.subprocess, 'run', run)
  return requests


def test_finished_runs_are_measured_once(results, asked, tmp_path):
  wanted = {ONE: {'far', 'near_'}, OTHER: {'far'}}
  found, failures = weight_numbers.measure(wanted, results, tmp_path)
  assert found == {ONE.name: {'far': 3, 'near_': 5}}
  assert failures == []
  assert weight_numbers.measure(wanted, results, tmp_path)[0] == found
  assert asked == [{ONE.name: ['far', 'near_']}]
  # Only what is new is measured.
  wanted[ONE].add('lines')
  assert weight_numbers.measure(wanted, results, tmp_path)[0][ONE.name] == {
    **found[ONE.name],
    'lines': 5,
  }
  assert asked[1:] == [{ONE.name: ['lines']}]


def test_failures_are_named_and_tried_again(results, asked, tmp_path):
  for _ in range(2):
    found, failures = weight_numbers.measure(
      {ONE: {'bad', 'far'}}, results, tmp_path
    )
    assert found == {ONE.name: {'far': 3}}
    assert failures == [f'{ONE.name}: bad: no.']
  assert asked == [{ONE.name: ['bad', 'far']}, {ONE.name: ['bad']}]


def test_a_process_that_dies_is_reported(results, monkeypatch, tmp_path):
  monkeypatch.setattr(
    weight_numbers.subprocess,
    'run',
    lambda *_, **__: subprocess.CompletedProcess((), -9, 'killed\n'),
  )
  found, [failure] = weight_numbers.measure({ONE: {'far'}}, results, tmp_path)
  assert found == {ONE.name: {}}
  assert 'could not be read (exit code -9): killed' in failure


def test_a_damaged_file_is_measured_again(results, asked, tmp_path):
  path = tmp_path / weight_numbers.FILE
  path.parent.mkdir()
  path.write_text('{"a": ')
  found, _ = weight_numbers.measure({ONE: {'far'}}, results, tmp_path)
  assert found == {ONE.name: {'far': 3}}
  assert json.loads(path.read_text())[ONE.name]['numbers'] == {'far': 3}
