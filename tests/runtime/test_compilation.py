"""Guards: the option that makes XLA's GPU programs deterministic is set."""

import os

from vit_jax.runtime import compilation


def test_other_options_stay(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_dump_to=/tmp/x')
  compilation.make_deterministic()
  assert os.environ['XLA_FLAGS'].split() == [
    '--xla_dump_to=/tmp/x',
    '--xla_gpu_deterministic_ops=true',
  ]
