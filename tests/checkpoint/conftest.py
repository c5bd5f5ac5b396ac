"""Nothing waits before it tries again."""

import types

import pytest

from vit_jax.checkpoint import restoring


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
  """The pauses that were made, in seconds."""
  made = []
  monkeypatch.setattr(
    restoring, 'time', types.SimpleNamespace(sleep=made.append)
  )
  return made
