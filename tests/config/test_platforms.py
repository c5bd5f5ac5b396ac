"""Guards: the compiler's options of each platform."""

import types

import jax

from tests.tiny_run import tiny_config
from vit_jax import sharding
from vit_jax.config import platforms
from vit_jax.training import program


def test_the_step_has_the_options_of_its_platform(monkeypatch):
  jax.devices()  # Reads XLA_FLAGS, and would end at the unknown flags below.

  def options(platform, count, kind=''):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    return platforms.compiler_options(
      types.SimpleNamespace(local_devices=[device], size=count)
    )

  assert options('cpu', 8) == options('gpu', 8) == {}
  name = 'xla_enable_async_all_gather'
  assert options('tpu', 1, 'TPU v3') == {name: 'true'}
  memory = {'xla_tpu_scoped_vmem_limit_kib': 65536}
  assert options('tpu', 1, 'TPU v5 lite') == {name: 'true'} | memory
  monkeypatch.setenv('LIBTPU_INIT_ARGS', f'--xla_a=1 --{name}=false')
  assert options('tpu', 1) == {}  # The user decides.

  seen = []
  monkeypatch.setattr(
    platforms, 'compiler_options', lambda mesh: {str(mesh.size): 'of a test'}
  )
  monkeypatch.setattr(
    program.jax,
    'jit',
    lambda step, **options: seen.append(options['compiler_options']),
  )
  config = tiny_config({'num_classes': 2, 'mesh.data': 8})
  config.model.dtype = 'float32'
  _ = program.Program(config, sharding.build(**config.mesh)).train_step
  assert seen == [{'8': 'of a test'}]
