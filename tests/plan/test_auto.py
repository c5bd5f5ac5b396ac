"""Guards: `auto` finds the smallest slice that fits, with a fake compiler."""

import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import auto, devices, one_run

V5E = ('v5e:1x1', 'v5e:2x2', 'v5e:2x4')


def _run(batch_size=32, **changes):
  config = pretrain.get_config('ViT-L/16,jft300m')
  config.data.batch_size = batch_size
  config.model.depth = 2
  return one_run.Run('L', config).changed(changes)


def _auto(monkeypatch, compiler, fits_from, run=None, search=False, **effort):
  """Plans on three slices; a run fits on at least `fits_from` devices."""
  slices = [devices.parse(text) for text in V5E]
  monkeypatch.setattr(devices, 'of_generation', lambda name: slices)
  compiler.needs = lambda config, target: (
    3 if target.devices >= fits_from else 30
  )
  effort = one_run.Effort(search=search, **effort)
  return auto.smallest(run or _run(), 'v5e', effort, lambda text: None)


def _compiled(compiler):
  return [slice_ for _, slice_ in compiler.calls]


@pytest.mark.parametrize('fits_from, answer', [(1, 'v5e:1x1'), (8, 'v5e:2x4')])
def test_the_smallest_slice(monkeypatch, compiler, fits_from, answer):
  plan = _auto(monkeypatch, compiler, fits_from)
  assert str(plan.target) == answer
  assert plan.fits
  assert plan.ended == ''


def test_limits(monkeypatch, compiler):
  plan = _auto(monkeypatch, compiler, 4, search=True, max_tries=1)
  assert _compiled(compiler) == ['v5e:1x1']
  assert (str(plan.target), plan.fits, plan.fix) == ('v5e:1x1', False, None)
  assert plan.ended.startswith('--max_tries is reached')
  plan = _auto(monkeypatch, compiler, 4, search=True, max_seconds=-1)
  assert len(compiler.calls) == 2
  assert plan.ended.startswith('--max_minutes is reached')


@pytest.mark.parametrize(
  'changes, first',
  [
    # This mesh needs at least four devices.
    ({'mesh.data': -1, 'mesh.fsdp': 4}, 'v5e:2x2'),
    # Two devices share an image, but 1x1 has only one.
    ({'mesh.data': -1, 'mesh.fsdp': 1, 'mesh.tensor': 2}, 'v5e:2x2'),
    # This mesh needs exactly eight devices.
    ({'mesh.data': 8, 'mesh.fsdp': 1}, 'v5e:2x4'),
  ],
)
def test_slices_that_do_not_suit_the_mesh_are_skipped(
  monkeypatch, compiler, changes, first
):
  plan = _auto(monkeypatch, compiler, 1, _run(batch_size=8, **changes))
  assert str(plan.target) == first
  # Two devices share each of the four images.
  tensor = {'mesh.data': -1, 'mesh.fsdp': 1, 'mesh.tensor': 2}
  plan = _auto(monkeypatch, compiler, 8, _run(batch_size=4, **tensor))
  assert (str(plan.target), plan.fits) == ('v5e:2x4', True)


def test_a_batch_that_no_slice_divides(compiler):
  compiler.needs = lambda config, target: 3
  with pytest.raises(ValueError, match='batch_size=6 and accumulation'):
    auto.smallest(
      _run(batch_size=6), 'v3', one_run.Effort(search=False), lambda text: None
    )
