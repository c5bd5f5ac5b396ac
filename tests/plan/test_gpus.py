"""Guards: plans of GPUs have the right devices, and say what they are."""

import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import devices, gpus, many_runs, one_run


def test_more_gpus_than_a_machine_has_are_refused():
  for text in ('h100x9', 'h100x0', 'h100x64'):
    with pytest.raises(ValueError, match=rf"'{text}'.*h100x1 to h100x8"):
      devices.parse(text)


def test_facts_are_those_of_the_data_sheets():
  chip = devices.parse('h100x8').chip
  assert (chip.peak_flops, chip.interconnect_bytes_per_second) == (
    989e12,
    45e10,
  )
  assert devices.parse('a100').chip.peak_flops == 312e12
  assert devices.parse('h200').chip.hbm_bytes_per_second == 4.8e12
  assert [str(t) for t in devices.of_generation('h200')] == [
    *('h200x1', 'h200x2', 'h200x4', 'h200x8')
  ]


def test_usable_memory_is_what_jax_allocates(monkeypatch):
  name = 'XLA_PYTHON_CLIENT_MEM_FRACTION'
  whole = gpus.GPUS['h100'].memory_bytes
  monkeypatch.delenv(name, raising=False)
  assert devices.parse('h100').chip.hbm_usable_bytes == int(0.75 * whole)
  monkeypatch.setenv(name, '.5')
  assert devices.parse('h100').chip.hbm_usable_bytes == whole // 2
  monkeypatch.setenv(name, 'half')
  with pytest.raises(ValueError, match=f'{name}=half must be a number'):
    gpus.memory_fraction()


@pytest.mark.parametrize('topology', ['h100x8', 'auto:a100'])
def test_without_the_compiler_one_error_says_what_to_install(
  monkeypatch, topology
):
  monkeypatch.setattr(gpus, 'plugin', lambda: None)
  run = one_run.Run('B', pretrain.get_config('ViT-B/16,imagenet2012'))
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[cuda\]"'):
    many_runs.plan_all(
      [run], [topology], many_runs.Options(), lambda text: None
    )


def test_a_config_is_resolved_for_gpus(monkeypatch):
  monkeypatch.setattr(gpus.Target, 'open', lambda self: [])
  seen = []
  monkeypatch.setattr(
    one_run.compiling,
    'build',
    lambda config, target: seen.append(config) or 1 / 0,
  )
  run = one_run.Run('B', pretrain.get_config('ViT-B/16,imagenet2012'))
  with pytest.raises(ZeroDivisionError):
    one_run.describe({}, run, devices.parse('h100x2'))
  assert seen[0].model.attention_implementation == 'cudnn'
