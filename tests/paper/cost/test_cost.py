"""Guards: the cost of a finished run follows from its own config."""

import json

import pytest

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.configs import midi, mini, pretrain
from vit_jax.paper import cost, items, numbers
from vit_jax.paper.design import SCALES
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining

MODEL = {
  **{'name': 'ViT-B/32', 'width': 4, 'depth': 2, 'heads': 1, 'mlp_dim': 8},
  **{'patch_size': [8, 8], 'dropout_rate': None},
}


def _leave(workdir, **changes):
  config = {
    'model': MODEL,
    'num_classes': 5,
    'image_size': [16, 16],
    'channels': 3,
    'data': {'batch_size': 10},
    'total_steps': 100,
  } | changes
  workdir.mkdir(exist_ok=True)
  (workdir / 'config.json').write_text(json.dumps(config))


def test_the_cost_of_a_run_comes_from_its_own_config(tmp_path):
  _leave(tmp_path)
  # 4 patches of 192 numbers, 2 blocks on 5 tokens, and the head. A block has
  # query, key, value and output projections, the MLP, scores and weighted sums.
  block = 5 * 4 * 4 * 4 + 5 * 2 * 4 * 8 + 2 * 5 * 5 * 4
  macs = 4 * 192 * 4 + 2 * block + 4 * 5
  # A multiply-accumulate is two operations; 1,000 images take three passes.
  assert cost.exaflops_of_run(tmp_path) == pytest.approx(
    macs * 2 * 3 * 1000 / 1e18
  )


def test_a_folder_without_a_run_has_no_cost(tmp_path):
  with pytest.raises(
    ValueError, match=r'holds no run: there is no config.json'
  ):
    cost.exaflops_of_run(tmp_path)


def test_device_hours_cover_all_devices_and_restarts():
  metrics = {
    'goodput/steps_seconds': 3000.0,
    'goodput/input_seconds': 600.0,
    'goodput/restart_seconds': 600.0,
    'goodput/devices': 4.0,
    'test/seconds': 9.0,
  }
  assert cost.device_hours(metrics) == pytest.approx(4.0)
  assert cost.device_hours({'test/seconds': 9.0}) is None


def test_runs_have_the_epochs_of_their_configs():
  for model, data, dataset in (
    ('BiT-R50x1', values.IMAGENET, 'imagenet2012'),
    ('BiT-R50x1', values.IMAGENET21K, 'imagenet21k'),
    ('ViT-B/32', values.IMAGENET, 'imagenet2012'),
    ('ViT-B/32', values.IMAGENET21K, 'imagenet21k'),
  ):
    epochs = pretrain.get_config(f'{model},{dataset}').epochs
    run = Pretraining(model, data, None)
    assert cost.exaflops(run) == cost.exaflops(Pretraining(model, data, epochs))


def test_the_compute_of_a_miniature_is_known_before_its_run(tmp_path):
  for model, epochs in (('ViT-B/16', 7), ('BiT-R50x1', 14)):
    config = mini.get_config(f'{model},jft300m,epochs={epochs}')
    # A run resolves these keys before it saves its config.
    config.num_classes, config.model.dtype = 10, 'float32'
    config_lib.save(config, tmp_path)
    run = Pretraining(model, values.JFT, epochs)
    # Its few classes hardly matter.
    assert cost.teraflops_in_miniature(run) == pytest.approx(
      1e6 * cost.exaflops_of_run(tmp_path), rel=0.01
    )


# One of each kind of model; counting all of them takes a minute.
_SMALL = ('ViT-B/32', 'BiT-R50x1', 'R50+ViT-B/32', 'AxialResNet50')


@pytest.mark.parametrize(
  ('scale', 'model'),
  [
    pytest.param(s, m, marks=[] if m in _SMALL else pytest.mark.slow)
    for s in cost.MACS
    for m in cost.MACS[s]
  ],
)
def test_kept_counts_are_those_of_the_models(scale, model):
  if scale == 'paper':
    built = models.build(model, num_classes=1000)
    assert accounting.forward_macs(built, (224, 224)) == cost.MACS[scale][model]
    return
  smaller = {'mini': mini.MINI, 'midi': midi.MIDI}[scale]
  config = mini.make(f'{model},jft300m,epochs=7', smaller)
  run = Pretraining(model, values.JFT, 7)
  counted = cost.teraflops_of_config(config)
  assert cost.teraflops_in_miniature(run, scale) == pytest.approx(counted, 1e-9)


@pytest.mark.parametrize('scale', SCALES)
def test_claims_are_known_without_a_trace_of_a_model(scale, monkeypatch):
  # A trace takes a second, and --list and --dry_run ask for all claims.
  monkeypatch.setattr(accounting, 'forward_macs', None)
  claims = [c for item in items.ITEMS.values() for c in item.claims(scale)]
  assert {'half_the_compute', 'resnet_first_small'} <= {c.key for c in claims}
  assert {*cost.MACS['mini']} == {model for model, _ in numbers.ROWS_6}
