"""Guards: the option that makes XLA's GPU programs deterministic is set."""

import os

import pytest

from vit_jax.runtime import compilation

OPTION = '--xla_gpu_deterministic_ops=true'


@pytest.mark.parametrize('installed', [True, False])
def test_the_option_is_set_once_if_a_plugin_is_installed(
  monkeypatch, installed
):
  monkeypatch.setattr(
    compilation.importlib.util,
    'find_spec',
    lambda name: installed and 'cuda13' in name,
  )
  monkeypatch.setenv('XLA_FLAGS', '--xla_dump_to=/tmp/x')
  for _ in range(2):
    assert compilation.make_deterministic() == installed
  option = f' {OPTION}' * installed
  assert os.environ['XLA_FLAGS'] == f'--xla_dump_to=/tmp/x{option}'
