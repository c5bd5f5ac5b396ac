"""Guards: plans of GPUs have the right devices, and say what they are."""

import json

import pytest

from tests.plan.test_as_json import _plan
from vit_jax.configs import pretrain
from vit_jax.paper.cost import planning
from vit_jax.plan import as_json, devices, gpus, many_runs, one_run, render


@pytest.mark.parametrize(
  'text, name, count',
  [('h100x8', 'h100x8', 8), ('h200', 'h200x1', 1), ('a100x3', 'a100x3', 3)],
)
def test_names(text, name, count):
  target = devices.parse(text)
  assert (str(target), target.devices, target.chips) == (name, count, count)
  assert target.cores is None
  assert devices.parse(name) == target


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


def test_times_are_called_a_roofline_everywhere(monkeypatch):
  monkeypatch.setattr(gpus, 'plugin', lambda: 'jax-cuda13-plugin 1.2')
  figures = as_json.figures(_plan(topology='h100x8', seconds=0.25))
  json.dumps(figures)
  assert figures['method'] == 'roofline, not measured'
  assert figures['gpu_compiler'] == 'jax-cuda13-plugin 1.2'
  # Nothing corrects a bound by default.
  assert figures['step_ms'] == figures['step_ms_corrected'] == 250
  assert figures['images_per_sec_per_core'] == 4096 / 0.25 / 8
  assert figures['core_days'] is figures['libtpu'] is None
  days = 0.25 * figures['total_steps'] / 86_400
  assert figures['device_days'] == pytest.approx(8 * days)
  page = render.page(figures)
  assert 'A step takes at least 250 ms' in page
  assert 'GPU-days (roofline, not' in page
  assert 'ms (roofline, not measured;' in page
  assert 'images/s/GPU' in page
  assert 'images/s/core' not in page
  assert 'Times are a roofline, not measured' in ' '.join(page.split())
  assert 'roofline, not measured' in render.table([figures, figures])

  corrected = as_json.figures(_plan(topology='h100x8'), 0.5)
  assert corrected['step_ms_corrected'] == 500
  assert 'A step takes 500 ms' in render.page(corrected)
  assert "compiler's cycles" in as_json.figures(_plan())['method']


def test_the_papers_runs_are_not_planned_for_gpus(tmp_path):
  with pytest.raises(ValueError, match=r'--topology=h100x8: .*TPU slices'):
    planning.compile_missing([], tmp_path, 'h100x8', lambda text: None)
