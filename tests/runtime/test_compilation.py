"""Guards: the option that makes XLA's GPU programs deterministic is set."""

import os

import pytest

from vit_jax.runtime import compilation

OPTION = '--xla_gpu_deterministic_ops=true'


@pytest.fixture
def plugin(monkeypatch):
  monkeypatch.setattr(
    compilation.importlib.util, 'find_spec', lambda name: 'cuda13' in name
  )


def test_the_option_is_set_once_and_keeps_other_flags(plugin, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_dump_to=/tmp/x')
  assert compilation.make_deterministic()
  assert compilation.make_deterministic()
  assert os.environ['XLA_FLAGS'] == f'--xla_dump_to=/tmp/x {OPTION}'


def test_without_a_gpu_plugin_nothing_is_set(monkeypatch):
  monkeypatch.setattr(
    compilation.importlib.util, 'find_spec', lambda name: None
  )
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  assert not compilation.make_deterministic()
  assert 'XLA_FLAGS' not in os.environ
