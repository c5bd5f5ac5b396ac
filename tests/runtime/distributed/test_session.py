"""Guards: a launch's token, the grace of an error, and the port's addresses."""

import socket
import types

import pytest

from vit_jax.runtime import errors
from vit_jax.runtime.distributed import arbiter, roster, session
from vit_jax.runtime.distributed.cluster import Place


def test_token(monkeypatch):
  monkeypatch.delenv('VIT_JAX_LAUNCH_TOKEN', raising=False)
  here, there = Place('a:1', 2, 0), Place('a:1', 2, 1)
  none = session._token(here)
  assert session._token(there) == none
  in_job = session._token(Place('a:1', 2, 1, job='4098 3'))
  monkeypatch.setenv('VIT_JAX_LAUNCH_TOKEN', 'secret')
  launched = session._token(here)
  assert session._token(there) == launched
  assert len({none, in_job, launched}) == 3
  assert 'secret' not in launched
  assert len(launched) == 64  # The longest token that a hello may hold.


@pytest.mark.parametrize(
  ('error', 'code', 'grace'),
  [
    (ValueError('bad'), 1, roster.GRACE),
    (errors.SaveError('disk full'), 1, roster.GRACE),
    (errors.StoreError('no answer'), 76, roster.GRACE),
    # All others save, and then raise this error, too.
    (errors.PreemptedError('SIGTERM'), 75, 60),
    (errors.InterruptedByUserError('Ctrl-C'), 130, 60),
  ],
)
def test_only_a_preempted_process_waits_for_the_others(
  monkeypatch, error, code, grace
):
  reported, ended = [], []
  monkeypatch.setattr(session.jax_service, 'abandon', ended.append)
  run = types.SimpleNamespace(
    member=types.SimpleNamespace(fail=lambda *words: reported.append(words)),
    call=lambda answer: answer,
    _limits=types.SimpleNamespace(lost=59.5),
  )
  session._Run.end_early(run, error)
  assert reported == [(code, f'{type(error).__name__}: {error}', grace)]
  assert ended == [code]


@pytest.mark.parametrize(
  ('host', 'address'),
  [('127.0.0.1', '127.0.0.1'), ('localhost', '127.0.0.1'), ('node-1', None)],
)
def test_only_a_local_address_excludes_other_hosts(host, address):
  with arbiter._bind(host, 0) as server:
    found = server.getsockname()[0]
    assert found == (address or found)
    assert address or found in ('::', '0.0.0.0')
    port = server.getsockname()[1]
    socket.create_connection(('127.0.0.1', port)).close()
