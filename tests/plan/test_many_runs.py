"""Guards: the command reports and refuses the right things without libtpu."""

import importlib.util
import json
import math
import os
import pathlib

import jax
import pytest

from vit_jax.configs import pretrain, quickstart
from vit_jax.plan import devices, many_runs, one_run

ROOT = pathlib.Path(__file__).parents[2]
B16 = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
  monkeypatch.chdir(ROOT)


@pytest.fixture
def no_compiler(monkeypatch):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)


@pytest.fixture
def plan(command):
  return lambda *words: command('vit_jax.plan', *words)


def _quiet(text):
  del text


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is not None,
  reason='says what is missing where the TPU compiler is not installed',
)
def test_json_without_the_compiler(plan):
  result = plan(*(B16, '--config.epochs=30.0', '--topology=v3:16x16', '--json'))
  assert result.returncode == 0, result.stderr
  (line,) = result.stdout.splitlines()
  figures = json.loads(line)
  assert figures['config'] == 'configs/pretrain.py:ViT-B/16,imagenet2012'
  assert (figures['topology'], figures['devices']) == ('v3:16x16', 512)
  assert figures['total_steps'] == 30 * 1_281_167 // 4096
  assert figures['params'] == 87_158_248
  assert figures['hbm_gib'] is figures['step_ms'] is None


def test_a_wrong_slice_is_one_line(plan):
  result = plan(B16, '--topology=v3:3x3')
  assert (result.returncode, result.stdout) == (1, '')
  assert result.stderr.startswith("error: 'v3:3x3' is not a known TPU slice")
  assert result.stderr.count('\n') == 1


def test_a_wrong_also_flag_is_named():
  with pytest.raises(
    ValueError, match=r"^--also=nope: there is no file 'nope'"
  ):
    many_runs.expand({}, ['nope'], {})


@pytest.mark.parametrize('correction', [math.nan, math.inf, 0.0, -1.0])
def test_a_wrong_correction_is_refused(correction):
  with pytest.raises(ValueError, match='must be a number above 0'):
    many_runs.Options(correction=correction)


def test_wrong_configs_are_reported_before_any_is_planned(
  no_compiler, monkeypatch
):
  good = one_run.Run('good', pretrain.get_config('ViT-B/16,imagenet2012'))
  bad = good.changed({'accumulation_steps': 0})
  planned = []
  monkeypatch.setattr(many_runs, '_plan', lambda *job: planned.append(job))
  for topologies in ([], ['v3:2x2'], ['auto']):
    with pytest.raises(ValueError, match='accumulation_steps=0'):
      many_runs.plan_all([good, bad], topologies, many_runs.Options(), _quiet)
  assert planned == []


@pytest.mark.parametrize('kind', [jax.errors.JaxRuntimeError, ValueError])
def test_one_failure_does_not_lose_the_others(no_compiler, monkeypatch, kind):
  plan = many_runs._plan

  def sometimes(run, target, *others):
    if str(target) == 'v3:4x4':
      raise kind('INTERNAL: it broke')
    return plan(run, target, *others)

  monkeypatch.setattr(many_runs, '_plan', sometimes)
  run = one_run.Run('B', pretrain.get_config('ViT-B/16,imagenet2012'))
  options = many_runs.Options()
  reports, _ = many_runs.plan_all([run], ['v3:2x2', 'v3:4x4'], options, _quiet)
  assert [one['error'] for one in reports] == [None, 'INTERNAL: it broke']
  assert reports[1]['topology'] == 'v3:4x4'
  json.loads(many_runs.to_json(reports))
  assert 'INTERNAL: it broke' in many_runs.render_all(reports, '')
  # The command calls `check` after it prints all reports.
  many_runs.check(reports[:1])
  with pytest.raises(ValueError, match=r'1 of 2 could not be .* B: INTERNAL'):
    many_runs.check(reports)
  if kind is ValueError:
    with pytest.raises(ValueError, match=r'^INTERNAL'):
      many_runs.plan_all([run], ['v3:4x4'], options, _quiet)


def test_a_missing_compiler_is_reported_with_the_install_command(no_compiler):
  config = pretrain.get_config('ViT-B/16,imagenet2012')
  run = one_run.Run('B', config)
  reports, note = many_runs.plan_all(
    [run], ['v3:2x2', 'auto:v5e'], many_runs.Options(), _quiet
  )
  assert 'pip install "vit-paper-jax[plan]"' in note
  assert [r['topology'] for r in reports] == ['v3:2x2', None]
  table = many_runs.render_all(reports, note)
  assert 'pip install "vit-paper-jax[plan]"' in ' '.join(table.split())
  assert len(json.loads(many_runs.to_json(reports))) == 2
  _, note = many_runs.plan_all([run], [], many_runs.Options(), _quiet)
  assert note.startswith('Add --topology=SLICE, such as v3:16x16')


def test_planning_leaves_the_hardware_alone(no_compiler, monkeypatch):
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', 'mine')
  monkeypatch.delenv('ALLOW_MULTIPLE_LIBTPU_LOAD', raising=False)
  run = one_run.Run('B', pretrain.get_config('ViT-B/16,imagenet2012'))
  many_runs.plan_all([run], ['v3:2x2'], many_runs.Options(), _quiet)
  assert os.environ['TPU_SKIP_MDS_QUERY'] == 'mine'
  assert os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] == '1'
  assert jax.config.jax_platforms == 'cpu'


@pytest.mark.parametrize(
  'topologies, message',
  [
    (['v9:2x2'], "'v9:2x2' is not a known TPU slice"),
    (['auto:v9'], 'choose one of v2, v3'),
    (['v3:2x2', 'cpu'], 'cpu measures this machine and cannot be combined'),
    (['gpu'], 'JAX sees no GPU here, only cpu'),
  ],
)
def test_refused_before_any_work(topologies, message):
  with pytest.raises(ValueError, match=message):
    many_runs.plan_all([], topologies, many_runs.Options(), _quiet)


def test_several_configs_and_their_overrides():
  named = {'mine': pretrain.get_config('ViT-B/16,imagenet2012')}
  names = ['configs/pretrain.py:ViT-L/16,jft300m', 'configs/quickstart.py']
  found = many_runs.expand(named, names[:1], {'data.batch_size': 256})
  assert [run.name for run in found] == ['mine', names[0]]
  # Flag parsing has already overridden the named config.
  assert [run.config.data.batch_size for run in found] == [4096, 256]
  found = many_runs.expand({}, names[1:], {})
  assert [run.name for run in found] == [
    f'configs/quickstart.py {stage}' for stage in quickstart.STAGES
  ]
  with pytest.raises(ValueError, match='do not suit configs'):
    many_runs.expand({}, names[1:], {'data.batch_size': 256})
  with pytest.raises(ValueError, match='--config is missing'):
    many_runs.expand({}, [], {})


def test_table_6_has_18_runs():
  names = many_runs.table6()
  assert len(set(names)) == 18
  assert names[4] == 'configs/pretrain.py:ViT-L/16,jft300m,epochs=14'
  found = many_runs.expand({}, names, {})
  assert [run.config.epochs for run in found].count(14.0) == 5
  assert len(found) == 18
