"""Guards: a run gives the same numbers on one process and on several."""

import json

import numpy as np
import pytest

from tests.models import naive
from tests.processes import worker
from tests.processes.launch import launch
from vit_jax import checkpoint, interop, models
from vit_jax.evaluators import predictions
from vit_jax.interop import fitting
from vit_jax.workdir import metrics

# Meshes of four devices.
MIXED = dict(data=1, fsdp=2, tensor=2, gather='micro_batch')
MESHES = {
  'data': dict(data=4),
  'fsdp': dict(data=1, fsdp=4),
  'optimizer': dict(data=1, fsdp=4, shard='optimizer'),
  'tensor': dict(data=1, tensor=4),
  'mixed': MIXED,
  'manual, accumulation': dict(data=2, fsdp=2, partition='manual'),
  'distilled, accumulation': MIXED,
  'tensor, continued': dict(data=1, tensor=4),
}
# Metric -> the evaluation that it is of, and its values in a run.
METRICS = {
  **{f'train/{key}': ('', 20) for key in ('loss', 'accuracy')},
  **{f'test/{key}': ('test', 2) for key in ('loss', 'accuracy')},
  **{f'few/{n}shot/accuracy': ('few', 2) for n in (1, 5)},
  'near/5nn/accuracy': ('near', 1),
  'probe/accuracy': ('probe', 1),
}


def _train(folder, processes, devices, meshes):
  runs = {
    name: dict(
      workdir=str(folder / name),
      config=dict(
        mesh=MESHES[name], changes=_changes(folder, name), evals=evals
      ),
    )
    for name, evals in meshes.items()
  }
  launch(
    *(processes, devices),
    task='train',
    out=str(folder / 'seen'),
    runs=runs,
    timeout=900,
  )


def _changes(folder, name):
  changes = {}
  if 'distilled' in name:
    changes['distill.teacher'] = str(folder.parent / 'teacher.npz')
  if 'accumulation' in name:
    changes['accumulation_steps'] = 2
  if 'manual' in name:
    changes['model.dropout_rate'] = 0.0  # Dropout masks depend on the mesh.
  if 'continued' in name:  # Each process reads its part of the weights.
    before = folder.parent / 'one' / 'distilled, accumulation'
    changes |= {'init.checkpoint': str(before), 'init.new_head': True}
  return changes


def assert_same_numbers(workdir, expected, tolerance, evals=worker.EVALS):
  """Compares every loss, accuracy and evaluation by relative tolerance."""
  rows, others = metrics.read(workdir), metrics.read(expected)
  assert [r['step'] for r in rows] == [r['step'] for r in others]
  for key, (of, count) in METRICS.items():
    one, other = (
      {i: row[key] for i, row in enumerate(all_) if key in row}
      for all_ in (rows, others)
    )
    assert len(other) == (count if of in ('', *evals) else 0), key
    assert one == pytest.approx(other, rel=tolerance), key


def assert_same_params(workdir, expected, tolerance):
  """Compares each array relative to its largest entry.

  All arrays together must be ten times closer. A single array may differ more:
  an array that starts at zero, such as a bias, is small after a few steps, and
  only a sum of updates.
  """
  (params, _), (others, _) = map(checkpoint.read_params, (workdir, expected))
  params, others = map(fitting.without_structs, (params, others))
  assert params.keys() == others.keys()
  for name, value in others.items():
    error = np.abs(params[name] - value).max()
    assert error <= tolerance * max(np.abs(value).max(), 1e-3), (name, error)
  squares = [
    sum(np.square(x, dtype=np.float64).sum() for x in tree)
    for tree in ([params[k] - others[k] for k in others], others.values())
  ]
  assert squares[0] ** 0.5 <= tolerance / 10 * squares[1] ** 0.5


def assert_same_predictions(workdir, expected):
  """Compares the saved predictions, row by row in the split's order."""
  (table, facts), (others, other_facts) = (
    predictions.read(predictions.path(one, 'test'))
    for one in (workdir, expected)
  )
  assert facts == other_facts
  assert len(table) == 101
  for key in ('index', 'name', 'label', 'prediction', 'correct', 'counted'):
    assert table[key].tolist() == others[key].tolist(), key
  np.testing.assert_allclose(table['loss'], others['loss'], rtol=1e-4)
  assert table['correct'].mean() == metrics.read(workdir)[-1]['test/accuracy']


def _seen(out, processes, name):
  """Returns step -> row -> hash; checks that all devices agree on a row."""
  steps = []
  for index in range(processes):
    with open(f'{out}.{index}.json') as f:
      for i, rows in enumerate(json.load(f)[name]):
        steps += [{}] * (i + 1 - len(steps))
        for row, digests in rows.items():
          assert set(digests) == {steps[i].get(row, digests[0])}
          steps[i] = steps[i] | {row: digests[0]}
  return steps


def _check(tmp_path, meshes):
  """Compares runs on one process and on two; `meshes`: name -> evaluations."""
  for name in ('one', 'many'):
    (tmp_path / name).mkdir()
  _train(tmp_path / 'one', 1, 4, meshes)
  _train(tmp_path / 'many', 2, 2, meshes)
  for name, evals in meshes.items():
    alone = _seen(tmp_path / 'one/seen', 1, name)
    assert _seen(tmp_path / 'many/seen', 2, name) == alone
    assert all(rows.keys() == alone[0].keys() for rows in alone)
    # Each epoch crops an image differently, so almost all images are unique.
    assert len({digest for rows in alone for digest in rows.values()}) > 500
    one, many = tmp_path / 'one' / name, tmp_path / 'many' / name
    assert_same_numbers(many, one, 1e-6, evals)
    assert_same_params(many, one, 1e-5)
    assert_same_predictions(many, one)


@pytest.mark.gate  # `test_all_meshes_train_like_one` has more of each.
def test_two_processes_train_like_one(tmp_path):
  name = 'distilled, accumulation'
  _write_teacher(tmp_path)
  # The first mesh splits everything that can be split. In the second, both
  # processes read all images.
  meshes = {name: worker.EVALS, 'tensor, continued': ['test']}
  _check(tmp_path, meshes)
  # Only one process writes the log.
  log = (tmp_path / 'many' / name / 'train.log').read_text()
  assert log.count('step 20/20 ') == 1
  assert '4 cpu device(s) of 2 process(es)' in log
  rows = metrics.read(tmp_path / 'many' / name)
  assert rows[-1]['test/count'] == 101


@pytest.mark.gate
def test_all_processes_save_when_the_slowest_one_can(tmp_path):
  run = dict(
    workdir=str(tmp_path / 'run'),
    config=dict(
      mesh={}, changes={'checkpoint.every': 'auto', 'total_steps': 8}, evals=[]
    ),
    slow_until=5,
  )
  out = str(tmp_path / 'seen')
  launch(*(2, 1), task='train', out=out, runs={'run': run})
  kept = {path.name for path in (tmp_path / 'run/checkpoints').iterdir()}
  assert kept == {'6', '8'}


def _write_teacher(tmp_path):
  model = models.build('ViT-Ti/4', num_classes=10, width=16, depth=1, heads=2)
  params = naive.random_params(model, np.zeros((1, 8, 8, 1), 'f'), scale=0.1)
  interop.save_npz(tmp_path / 'teacher.npz', params, model, image_size=8)


@pytest.mark.slow  # Takes minutes.
def test_all_meshes_train_like_one(tmp_path):
  _write_teacher(tmp_path)
  _check(tmp_path, dict.fromkeys(MESHES, worker.EVALS))


# The legs use eight devices, four, a mesh of 2 x 4, and two processes. The last
# number is the call of `requested` that stops the leg. There is a call after
# each step, and after each of the four batches of the evaluation at step 10,
# which the third leg makes up for.
LEGS = [
  (1, 8, dict(data=8), 5),
  (1, 4, dict(data=4), 5),
  (1, 8, dict(data=2, fsdp=4), 4 + 5),
  (2, 4, dict(data=2, fsdp=2, tensor=2), 0),
]


@pytest.mark.slow
def test_a_run_can_resume_on_other_meshes(tmp_path):
  """Slow, because it needs five launches of half a minute each."""
  config = dict(changes={'total_steps': 20})
  launch(
    *(1, 8),
    task='train',
    out=str(tmp_path / 'whole'),
    runs={
      'run': dict(
        workdir=str(tmp_path / 'expected'),
        config=config | dict(mesh=dict(data=8)),
      )
    },
  )
  expected = _seen(tmp_path / 'whole', 1, 'run')
  seen = []
  for i, (processes, devices, mesh, stop_after) in enumerate(LEGS):
    out = tmp_path / f'leg{i}'
    run = dict(
      workdir=str(tmp_path / 'moved'),
      config=config | dict(mesh=mesh),
      stop_after=stop_after,
    )
    launch(processes, devices, task='train', out=str(out), runs={'run': run})
    batches = _seen(out, processes, 'run')
    # A leg that stops has already put the next batch on the devices.
    seen += batches[:5]
  assert len(expected) == 20
  assert seen == expected
  assert_same_numbers(tmp_path / 'moved', tmp_path / 'expected', 1e-5)
  assert_same_params(tmp_path / 'moved', tmp_path / 'expected', 1e-5)


@pytest.mark.gate  # Two processes compile three programs.
def test_a_wrong_bit_in_one_of_two_processes_is_found(tmp_path):
  texts = launch(2, 2, task='twice', workdir=str(tmp_path), codes=[78])
  for text in texts:
    assert 'steps 1 to 8 ' in text
    assert 'Step 6 ' in text
    assert 'gradient differs on 1 of 4 devices' in text
    assert '(process 1, host ' in text
