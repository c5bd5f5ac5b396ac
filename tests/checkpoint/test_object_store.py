"""Guards: checkpoints are moved and replaced safely on object stores.

Object stores cannot rename folders.
"""

import threading

import pytest
from etils import epath

from tests.checkpoint import object_store
from vit_jax import checkpoint
from vit_jax.checkpoint import folders, params, record, restoring, saving
from vit_jax.runtime import errors

RUN = epath.Path('gs://bucket/run')


@pytest.fixture
def bucket(monkeypatch):
  return object_store.mount(monkeypatch)


def _write(path, files=('default/d/a', 'fingerprints/metadata')):
  for name in ('commit_success.txt', *files):
    (path / name).write_text(f'{path.name}: {name}')


def _damage(monkeypatch, step):
  def restore(path, _):
    if path.name == step:
      raise checkpoint.DamagedError(f'{path} is damaged.')
    return f'state {path.name}'

  monkeypatch.setattr(restoring, 'restore', restore)


def test_damaged_steps_are_moved(bucket, monkeypatch):
  for number in (2, 3):
    _write(RUN / 'checkpoints/4')
    _write(RUN / 'checkpoints/8')
    _damage(monkeypatch, '8')
    assert checkpoint.latest_step(RUN) == 8
    assert checkpoint.restore_newest(RUN, None) == ('state 4', 4)
    assert checkpoint.latest_step(RUN) == 4
    assert folders.damaged_steps(RUN / 'checkpoints') == set()
    moved = [n for n in bucket.names() if '/damaged_checkpoints/' in n]
    assert len(moved) == 3 * (number - 1)
    assert not [n for n in bucket.names() if '/checkpoints/8' in n]
  assert moved[:3] == [
    '/bucket/run/damaged_checkpoints/8-2/commit_success.txt',
    '/bucket/run/damaged_checkpoints/8-2/default/d/a',
    '/bucket/run/damaged_checkpoints/8-2/fingerprints/metadata',
  ]
  text = (RUN / 'damaged_checkpoints/8/default/d/a').read_text()
  assert text == '8: default/d/a'


def test_a_failed_copy_deletes_nothing(bucket, monkeypatch):
  _write(RUN / 'checkpoints/8')
  before = bucket.names()
  real = object_store.Bucket._open

  def fail(self, path, mode='rb', **options):
    if mode == 'wb' and 'damaged' in path and path.endswith('metadata'):
      raise OSError('403 Forbidden')
    return real(self, path, mode, **options)

  monkeypatch.setattr(object_store.Bucket, '_open', fail)
  assert not restoring._moved_aside(
    RUN / 'checkpoints/8', RUN / 'damaged_checkpoints'
  )
  assert set(before) <= set(bucket.names())
  # An incomplete copy does not look complete.
  assert not (RUN / 'damaged_checkpoints/8/commit_success.txt').exists()


def test_a_half_deleted_step_is_not_complete(bucket, monkeypatch):
  _write(RUN / 'checkpoints/8')

  def fail(*_, **__):
    raise OSError('503')

  with monkeypatch.context() as context:
    context.setattr(type(RUN), 'rmtree', fail)
    with pytest.raises(OSError, match='503'):
      folders.move(RUN / 'checkpoints/8', RUN / 'elsewhere/8')
  assert checkpoint.latest_step(RUN) is None
  assert (RUN / 'elsewhere/8/commit_success.txt').exists()


@pytest.mark.parametrize(
  ('error', 'kind'),
  [
    (errors.StoreError('gs://bucket/run: no answer'), errors.StoreError),
    (ValueError('UNAVAILABLE: 503'), errors.StoreError),
    (OSError('Forbidden: b/bucket/o'), OSError),
  ],
)
def test_a_store_that_does_not_answer(bucket, monkeypatch, error, kind):
  """The run can be restarted, and no checkpoint counts as damaged."""
  _write(RUN / 'checkpoints/8')
  before = bucket.names()

  def read(_):
    raise error

  monkeypatch.setattr(record, 'read', read)
  with pytest.raises(kind, match='checkpoints/8 cannot be read: ') as raised:
    checkpoint.restore_newest(RUN, {})
  assert isinstance(raised.value, errors.RestartableError) == (
    kind is errors.StoreError
  )
  with pytest.raises(kind, match='checkpoints/8 cannot be read: '):
    params._check_reach(RUN / 'checkpoints/8', error)
  assert bucket.names() == before


@pytest.mark.parametrize(
  ('error', 'kind'),
  [
    (errors.StoreError('no answer'), errors.StoreError),
    (OSError('Forbidden'), errors.SaveError),
  ],
)
def test_saving_to_a_store_that_does_not_answer(
  bucket, monkeypatch, error, kind
):
  _write(RUN / 'best/8')

  def fail(*_):
    raise error

  monkeypatch.setattr(folders, 'move', fail)
  with (
    pytest.raises(errors.SaveError, match='8 could not be replaced: ') as why,
    params._out_of_the_way(RUN / 'best', 8),
  ):
    pass
  assert type(why.value) is kind

  def opened(*_, **__):
    raise error

  monkeypatch.setattr(saving.ocp, 'CheckpointManager', opened)
  with pytest.raises(errors.SaveError, match='Opening gs://') as why:
    saving.Saver(RUN / 'checkpoints', lambda steps: set(steps), 5)
  assert type(why.value) is kind


def test_a_store_that_hangs(bucket, monkeypatch):
  monkeypatch.setattr(
    saving.ocp, 'CheckpointManager', lambda *_, **__: threading.Event().wait()
  )
  with pytest.raises(errors.StoreError, match='has not ended within'):
    saving.Saver(RUN / 'checkpoints', lambda steps: set(steps), 0.1)


def test_params_are_replaced(bucket):
  path = RUN / 'best/8'
  _write(path)
  with params._out_of_the_way(RUN / 'best', 8):
    assert not path.exists()
    assert checkpoint.find(RUN / 'best') == RUN / 'best/8.replaced'
    _write(path, ['new'])
  assert bucket.names() == [
    '/bucket/run/best/8/commit_success.txt',
    '/bucket/run/best/8/new',
  ]


def test_old_params_come_back_if_new_ones_are_incomplete(bucket):
  _write(RUN / 'best/8')
  before = bucket.names()
  with (  # noqa: PT012
    pytest.raises(errors.SaveError),
    params._out_of_the_way(RUN / 'best', 8),
  ):
    (RUN / 'best/8/half').write_text('')
    raise errors.SaveError
  assert bucket.names() == before


def test_a_mounted_store_that_cannot_rename_folders(tmp_path, monkeypatch):
  folder = epath.Path(tmp_path)
  (folder / 'a/b').mkdir(parents=True)
  (folder / 'a/b/c').write_text('text')

  def fail(*_):
    raise OSError(5, 'Input/output error')

  monkeypatch.setattr(type(folder), 'rename', fail)
  folders.move(folder / 'a', folder / 'd/a')
  assert (folder / 'd/a/b/c').read_text() == 'text'
  assert not (folder / 'a').exists()
