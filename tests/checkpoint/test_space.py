"""Guards: a lack of disk space is found before anything is written."""

import contextlib
import shutil
import types

import jax
import jax.numpy as jnp
import pytest

from tests.checkpoint import states
from tests.tiny_run import eventful_config
from vit_jax import checkpoint
from vit_jax.checkpoint import space
from vit_jax.runtime import errors
from vit_jax.training import train

STATE = {'w': jnp.ones((1000, 500)), 'n': jnp.int32(3)}
NEEDED = 1000 * 500 * 4 + 4 + 2**20


def _disk(monkeypatch, free, total=10**12):
  usage = types.SimpleNamespace(total=total, free=free)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)


def test_shortage_states_the_space_needed(tmp_path, monkeypatch):
  _disk(monkeypatch, NEEDED)
  assert space.shortage(tmp_path, STATE) == ''
  _disk(monkeypatch, NEEDED - 1)
  assert space.shortage(tmp_path, STATE) == (
    f'No space for a checkpoint in {tmp_path}: it takes 3.05 MB, and 3.05 MB'
    ' are free. Make room and start the same command again.'
  )
  shapes = jax.eval_shape(lambda: STATE)
  assert space.shortage(tmp_path, shapes) == space.shortage(tmp_path, STATE)
  _disk(monkeypatch, 0, total=0)  # A file system that reports no size.
  assert space.shortage(tmp_path, STATE) == ''


@pytest.mark.parametrize(
  ('count', 'text'),
  [(0, '0 B'), (999, '999 B'), (1000, '1 kB'), (3.5e12, '3.5 TB')],
)
def test_sizes(count, text):
  assert space._size(count) == text


def test_nothing_is_written_without_space(tmp_path, monkeypatch):
  states.save(tmp_path, STATE, [1])
  _disk(monkeypatch, 10**5)
  opened = checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)
  with contextlib.closing(opened) as checkpoints:
    with pytest.raises(errors.SaveError) as error:
      checkpoints.save(2, STATE)
    last = f'The last complete one is {tmp_path}/checkpoints/1.'
    assert str(error.value).endswith(last)
  assert states.names(tmp_path / 'checkpoints') == ['1']
  with pytest.raises(errors.SaveError, match=f'in {tmp_path}/best: it takes'):
    checkpoint.save_params(tmp_path, 'best', 2, STATE)
  assert states.names(tmp_path / 'best') == []


def test_a_run_ends_before_its_first_step(tmp_path, monkeypatch):
  _disk(monkeypatch, 10**5)
  with pytest.raises(errors.SaveError, match='Make room and start the same'):
    train.train_and_evaluate(eventful_config(), tmp_path / 'run')
  log = (tmp_path / 'run/train.log').read_text()
  assert 'First step' not in log
