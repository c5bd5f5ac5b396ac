"""Guards: a campaign's plan, its damage to files, and its table."""

import random

import numpy as np
import pytest

from tests.faults import damage, launching, plan, runs

ONE, _, TWO = launching.LAYOUTS


def _record(kind, layout=ONE, **values):
  moment = plan.Moment('step', 2, 0.25)
  fault = plan.Fault(kind, layout, 'folder', moment, None, seed=0)
  return runs.Record(fault, **values)


# The plan ---------------------------------------------------------------------


def test_plan_follows_from_the_seed():
  def draw(seed):
    return plan.make_plan(
      30, seed, list(plan.KINDS), launching.LAYOUTS, disks=True
    )

  assert draw(3) == draw(3)
  assert draw(3) != draw(4)


def test_faults_are_planned_only_where_they_are_possible():
  faults = plan.make_plan(
    600, 0, list(plan.KINDS), launching.LAYOUTS, disks=True
  )
  for fault in faults:
    if fault.kind in plan.SEVERAL:
      assert fault.layout.processes == 2
      assert fault.process in (0, 1)
    if fault.kind in ('kill-all', 'sigterm-all', 'flip'):
      assert fault.process is None
    if fault.kind in ('disk-full', 'read-only'):
      assert fault.place == 'disk'
    assert (fault.place == 'nan') == (fault.kind == 'nan-skip')
    if fault.kind in plan.DAMAGES:
      assert (fault.moment.event, fault.moment.count) == ('checkpoints', 2)
  processes = {f.process for f in faults if f.kind == 'kill-saving'}
  assert processes == {0, 1, None}


def test_without_disks_no_fault_needs_one():
  faults = plan.make_plan(100, 0, list(plan.KINDS), [ONE], disks=False)
  assert {fault.place for fault in faults} == {'folder', 'nan'}
  assert {fault.kind for fault in faults} == {
    *('kill-all', 'kill-saving', 'kill-ending', 'sigterm-all', 'truncate'),
    *('delete', 'flip', 'nan-skip', 'nan-stop', 'sigterm-early', 'ctrl-c'),
    *('ctrl-c-twice', 'orphans', 'unverified', 'second-copy'),
    *plan.AFTER_KILL,
  }
  with pytest.raises(ValueError, match='No fault of'):
    plan.make_plan(1, 0, ['kill-one'], [ONE], disks=True)


# Damage -----------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
  folder = tmp_path / 'checkpoints' / '20'
  (folder / 'd').mkdir(parents=True)
  (folder / 'd' / 'data').write_bytes(bytes(range(64)))
  (folder / 'd' / 'empty').touch()
  return folder


def test_flip_changes_one_bit(checkpoint):
  text = damage.damage(checkpoint, 'flip', random.Random(0))
  before = np.arange(64, dtype=np.uint8)
  after = np.frombuffer((checkpoint / 'd' / 'data').read_bytes(), np.uint8)
  assert np.unpackbits(before ^ after).sum() == 1
  assert text.endswith(' of 20/d/data (64 bytes)')


def test_only_complete_checkpoints_are_listed(tmp_path):
  assert damage.complete_steps(tmp_path) == []
  for name in ('5', '10', '15.orbax-checkpoint-tmp'):
    (tmp_path / 'checkpoints' / name / 'default').mkdir(parents=True)
  (tmp_path / 'checkpoints' / '9999').mkdir()
  assert damage.complete_steps(tmp_path) == [5, 10]


def test_unverified_damage_removes_the_fingerprints(checkpoint):
  largest = checkpoint / 'd' / 'data'
  largest.write_bytes(bytes(500))
  (checkpoint / 'fingerprints').mkdir(exist_ok=True)
  text = damage.damage(checkpoint, 'unverified', random.Random(0))
  assert text == 'changed 64 bytes of data, deleted fingerprints/'
  assert largest.read_bytes() == bytes(250) + b'\xff' * 64 + bytes(186)
  assert not (checkpoint / 'fingerprints').exists()


@pytest.mark.parametrize('seed', range(20))
def test_small_files_are_damaged(tmp_path, seed):
  rows = b'{"step": 1}\n'
  (tmp_path / 'metrics.jsonl').write_bytes(rows)
  path, before, refused = damage.damage_small(tmp_path, random.Random(seed))
  assert refused == (path.name in ('config.json', 'data.json'))
  assert path.read_bytes() != before
  if path.name == 'metrics.jsonl':
    assert before == rows
    assert path.read_bytes().startswith(rows)
  else:
    assert before is None


def test_small_disk(tmp_path):
  if reason := damage.why_no_disk(tmp_path / 'disk'):
    pytest.skip(reason)
  disk = damage.Disk(tmp_path / 'disk', megabytes=1)
  try:
    disk.fill(8192)
    (tmp_path / 'disk' / 'a').write_bytes(bytes(4096))
    with pytest.raises(OSError, match='No space left'):
      (tmp_path / 'disk' / 'b').write_bytes(bytes(20000))
    disk.empty()
    (tmp_path / 'disk' / 'b').write_bytes(bytes(20000))
    before = damage.listing(tmp_path / 'disk')
    assert before['b'][0] == 20000
    disk.read_only(True)
    with pytest.raises(OSError, match='Read-only'):
      (tmp_path / 'disk' / 'c').touch()
    disk.read_only(False)
    assert damage.listing(tmp_path / 'disk') == before
  finally:
    disk.close()
