"""Guards: the comparison with timm and its worker processes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks.measure import gpu_vs_timm, jax_worker

ROOT = pathlib.Path(__file__).parents[2]
TASK = {
  'overrides': '',
  'num_classes': 10,
  'batch_size': 4,
  'image_size': 32,
  'depth': 1,
  'dtype': 'float32',
  'device': 'cpu',
  'compile': False,
  'turns': 2,
  'steps': 1,
  'warmup': 1,
}


def _measure(contenders, *, seconds, params=7, rounds=1, monkeypatch):
  order = []

  def work(contender, task, **_):
    assert task == {'model': 'ViT-Ti/16', **TASK}
    order.append(contender)
    return {
      'seconds': [seconds[contender]] * task['turns'],
      'params': params if contender == 'timm' else 7,
      'compile_sec': float(len(order)),
      'peak_gib': None,
      'device_kind': 'NVIDIA H100 PCIe',
      'versions': {},
    }

  monkeypatch.setattr(gpu_vs_timm, 'work', work)
  monkeypatch.setattr(gpu_vs_timm, 'check_torch', lambda _: None)
  results = gpu_vs_timm.measure(
    'ViT-Ti/16', contenders, TASK, rounds=rounds, torch_python=sys.executable
  )
  return results, order


def test_measure(monkeypatch):
  results, order = _measure(
    ['ours', 'plain', 'timm'],
    seconds={'ours': 0.1, 'plain': 0.2, 'timm': 0.4},
    rounds=2,
    monkeypatch=monkeypatch,
  )
  assert order == ['ours', 'plain', 'timm'] * 2
  assert [r['ratio'] for r in results.values()] == [1, 2, 4]
  ours = results['ours']
  assert ours['step_ms']['values'] == [100] * 4
  assert ours['images_per_sec'] == pytest.approx(40)
  assert ours['compile_sec'] == 1  # From the first process.
  # The model has 4 patches of 768 values, 5 tokens, D = 192 and 10 classes.
  macs = 4 * 768 * 192 + 5 * 12 * 192**2 + 2 * 25 * 192 + 1920
  assert ours['mfu'] == pytest.approx(40 * 6 * macs / 756e12)


def test_other_parameters(monkeypatch):
  with pytest.raises(ValueError, match=r"differs .* {'ours': 7, 'timm': 8}"):
    _measure(
      ['ours', 'timm'],
      seconds={'ours': 1, 'timm': 1},
      params=8,
      monkeypatch=monkeypatch,
    )


def test_unknown_contender():
  with pytest.raises(ValueError, match='--contenders: theirs unknown'):
    gpu_vs_timm.measure(
      'ViT-B/16', ['theirs'], TASK, rounds=1, torch_python=sys.executable
    )


@pytest.mark.gate
def test_jax_worker():
  task = {'contender': 'plain', 'model': 'ViT-Ti/16', **TASK}
  found = jax_worker.main(task)
  assert len(found['seconds']) == 2
  # The sum is: patches, class token, 5 positions, a block, last norm, head.
  block = 4 * (192**2 + 192) + 2 * 192 * 768 + 768 + 192 + 4 * 192
  expected = 768 * 192 + 192 + 192 + 5 * 192 + block + 2 * 192 + 1930
  assert found['params'] == expected
  assert found['compile_sec'] > 0
  assert json.loads(json.dumps(found)) == found


@pytest.mark.hf
def test_timm_worker():
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'benchmarks.measure.timm_worker'),
      json.dumps({'contender': 'timm', 'model': 'ViT-Ti/16', **TASK}),
    ],
    cwd=ROOT,
    env=os.environ,
    capture_output=True,
    check=True,
    text=True,
  )
  found = json.loads(done.stdout.splitlines()[-1])
  assert len(found['seconds']) == 2
  ours = jax_worker.main({'contender': 'ours', 'model': 'ViT-Ti/16', **TASK})
  assert found['params'] == ours['params']
