"""Guards: a run is compared with the curve that is its own, and rightly."""

import numpy as np
import pandas as pd
import pytest

from tests.compare import made
from vit_jax import compare
from vit_jax.compare import expected, plots

B16 = 'deit3_b16_i1k_800ep_192px'
# The second stage; fine-tuning after ImageNet-21k; training on it.
THEN = {'epochs': 20.0, 'init.checkpoint': '/a', 'image_size': [224, 224]}
LAST = {'epochs': 50.0, 'init.checkpoint': '/a'}
SIZE_21K = {'num_classes': 21_843, 'data.num_examples': 12_400_000}
ON_21K = {'epochs': 240.0, **SIZE_21K}


def _report(percents, changes=(), wanted='auto', **values):
  flat = made.config(dict(changes))
  rows = made.rows(flat, percents, **values)
  return expected.report(expected.choose(wanted), flat, rows)


def test_the_published_curves():
  curves = expected.published()
  assert len(curves) == 18
  index = pd.read_csv(expected.FOLDER / 'index.csv', comment='#')
  assert index['source'].str.contains('README').all()
  for name, curve in curves.items():
    epochs, accuracy = curve.points.to_numpy(float).T
    # The name says which run it is, such as deit3_b16_i1k_800ep_192px.
    model = curve.settings['model.name'].lower()
    assert model.removeprefix('vit-').replace('/', '') == name.split('_')[1]
    side = curve.settings['image_size'].split('x')[0]
    assert name.endswith(f'_{epochs[-1]:.0f}ep_{side}px')
    assert curve.settings['epochs'] == epochs[-1]
    np.testing.assert_array_equal(epochs, 5 * np.arange(len(epochs)))
    assert (accuracy >= 0).all()
    assert (accuracy < 88).all()
    # Evaluations differ by some tenths, but a curve rises.
    assert (np.diff(accuracy) > -1.5).all()
    assert accuracy[-1] > accuracy.max() - 0.3
    # Of all curves, this one is such a run's.
    size = [int(side) for side in curve.settings['image_size'].split('x')]
    start = '/runs/a' if curve.settings['weights'] == 'trained' else ''
    found = _report(
      {}, {**curve.settings, 'image_size': size, 'init.checkpoint': start}
    )
    assert (found.curve, found.metric) == (name, '')
  # The printed accuracies, in README_revenge.md.
  for name, percent in {
    B16: 82.8,
    'deit3_h14_i1k_then20_20ep_224px': 85.2,
    'deit3_s16_i1k_then20_20ep_384px': 83.4,
    'deit3_l16_i21k_to_i1k_50ep_224px': 87.0,
  }.items():
    assert round(curves[name].at(800), 1) == percent


@pytest.mark.parametrize(
  ('changes', 'curve'),
  [
    ({}, B16),
    ({'model.name': 'ViT-S/16'}, 'deit3_s16_i1k_800ep_224px'),
    ({'epochs': 0.0, 'total_steps': 500_455}, B16),
    # A hundredth of the images is held out; the whole counts as an epoch.
    ({'data.num_examples': 1_268_355}, B16),
    (THEN, 'deit3_b16_i1k_then20_20ep_224px'),
    ({**THEN, 'image_size': [384, 384]}, 'deit3_b16_i1k_then20_20ep_384px'),
    (LAST, 'deit3_b16_i21k_to_i1k_50ep_224px'),
    (ON_21K, 'deit3_b16_i21k_240ep_224px'),
    # Other runs, and which of their values no curve has.
    ({'epochs': 300.0}, 'epochs 300 instead of 800'),
    ({'model.name': 'ViT-B/32'}, 'model.name ViT-B/32 instead of ViT-B/16'),
    ({'data.num_examples': 128_116}, '128116 instead of 1281167'),
    ({'num_classes': 100}, 'num_classes 100 instead of 1000'),
    ({'init.checkpoint': 'w'}, 'weights trained instead of random'),
  ],
)
def test_which_curve_is_a_runs(changes, curve):
  found = _report({}, changes)
  if curve in expected.published():
    assert found.curve == curve
  else:
    assert found.curve == ''
    assert curve in found.sentence
    # The nearest has most in common.
    assert '_b16_i1k_' in found.sentence


@pytest.mark.parametrize(
  ('percents', 'said'),
  [
    # Published are 50.766 at epoch 40 and 52.464, interpolated, at 42.5.
    ({40: 51.0}, 'epoch 40: 51.0, published 50.8: on track'),
    ({42.5: 52.5}, 'epoch 42.5: 52.5, published 52.5: on track'),
    ({40: 46.7}, 'epoch 40: 46.7, published 50.8: behind by 4.1 points'),
    ({40: 55.7}, 'epoch 40: 55.7, published 50.8: ahead by 4.9 points'),
    # The last evaluation counts; a resumed run may repeat it.
    ({40: 10.0, 40.0001: 50.7, 35: 99.0}, 'on track'),
    # Near the end, a point is much.
    ({800: 82.4}, 'on track'),
    ({800: 81.9}, 'behind by 0.9 points'),
    ({300: 74.8}, 'on track'),
    # Before the end of warm-up, nothing is said.
    ({4: 30.0}, 'too early to tell, before epoch 5'),
    ({}, 'no accuracy on a validation or test split yet'),
  ],
)
def test_what_is_said(percents, said):
  assert _report(percents).sentence.endswith(said)


@pytest.mark.parametrize('curve', expected.published().values())
def test_a_run_that_repeats_the_published_one_is_on_track(curve):
  """Also if an epoch's number is that before it, and with noise."""
  for epoch, percent in curve.points[1:].to_numpy()[::4]:
    for other in (percent, curve.at(epoch - 1), curve.at(epoch + 1) + 0.3):
      assert expected.verdict(curve, epoch, other) == 'on track'


def test_other_settings_are_named_and_make_it_not_comparable():
  changes = {'data.batch_size': 1024, 'model.layer_scale': None}
  found = _report({40: 50.8}, changes)
  assert found.curve == B16
  assert found.sentence == (
    'epoch 40: 50.8, published 50.8: not comparable: data.batch_size 1024'
    ' instead of 2048, model.layer_scale None instead of 0.0001'
  )
  # By name, a curve of another length can be looked at.
  found = _report({40: 50.8}, {'epochs': 300.0}, wanted=B16)
  assert found.sentence.endswith('not comparable: epochs 300 instead of 800')


@pytest.mark.parametrize('split', ['validation', 'val', 'test'])
def test_only_accuracy_on_images_of_their_own_counts(split):
  metric = f'{split}/accuracy'
  found = _report({40: 50.8}, metric=metric)
  assert found.metric == metric
  assert (found.epochs[1], round(found.shares[1], 5)) == (5, 0.02838)
  for other in ('train', 'held_out', f'{split}_clean', '5shot'):
    assert _report({40: 50.8}, metric=f'{other}/accuracy').metric == ''


def test_a_curve_of_the_users_own(tmp_path):
  file = tmp_path / 'mine.csv'
  file.write_text(
    '# Of last year\nloss,epoch,accuracy\n,90,76\n1,0,0\n,10,50\n'
  )
  run = {'epochs': 90.0, 'model.name': 'ViT-S/16'}
  said = _report({50: 64.0}, run, wanted=str(file)).sentence
  assert said == 'epoch 50: 64.0, published 63.0: on track'
  said = _report({50: 64.0}, wanted=str(file)).sentence
  assert said.endswith('not comparable: epochs 800 instead of 90')
  for text in (
    *('epoch,accuracy\n0,0\n10,0.5\n', 'epoch,accuracy\n10,50\n'),
    *('epoch,top1\n0,0\n10,50\n', 'epoch,accuracy\n0,0\n10,good\n', ''),
  ):
    file.write_text(text)
    with pytest.raises(ValueError, match=r'accuracy|good|two rows|columns'):
      expected.choose(str(file))
  with pytest.raises(ValueError, match=B16):
    expected.choose('deit3')


def test_the_command(tmp_path, command):
  made.run(tmp_path / 'runs/b16', {40: 50.8})
  made.run(tmp_path / 'runs/short', {40: 50.8}, {'epochs': 300.0})
  done = command('vit_jax.compare', tmp_path / 'runs', '--expected=auto')
  lines = [line.strip() for line in done.stdout.splitlines()]
  assert f'b16 ({B16}): epoch 40: 50.8, published 50.8: on track' in lines
  # One run has no curve: all are listed.
  assert set(expected.published()) <= set(lines)


def test_the_plot_has_the_published_curve(tmp_path):
  pytest.importorskip('matplotlib')
  made.run(tmp_path / 'b16', {20: 20.0, 40: 50.8})
  runs, curves = compare.load_runs(tmp_path), compare.load_curves(tmp_path)
  np.testing.assert_allclose(curves['epoch'], [20, 40], atol=1e-3)
  reports = expected.reports(expected.choose(B16), tmp_path).values()
  pictures = []
  for x in ('epoch', 'step'):
    for each in (reports, ()):
      path = tmp_path / 'plot.svg'
      plots.plot(runs, curves, 'validation/accuracy', x, path, each)
      pictures.append(path.read_text().count('<path'))
  # A line more, and its sample in the legend, but only over epochs.
  assert pictures[0] > pictures[1]
  assert pictures[2] == pictures[3]
