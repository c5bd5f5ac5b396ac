"""Replaces the pauses before retries, so that tests do not wait."""

import types

import pytest

from vit_jax.checkpoint import reading


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
  """Returns the list of the requested pauses, in seconds."""
  made = []
  monkeypatch.setattr(reading, 'time', types.SimpleNamespace(sleep=made.append))
  return made
