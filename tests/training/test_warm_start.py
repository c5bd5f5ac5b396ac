"""Guards: which weights a new model keeps, resizes or leaves out."""

import types

import flax.traverse_util
import jax
import ml_collections
import numpy as np
import pytest
from scipy import ndimage

from tests import tiny_step
from tests.checkpoint import states
from tests.interop import tiny
from tests.interop.tiny import params_of_4_pixels as _params
from tests.interop.tiny import unstacked as _flat
from tests.tiny_run import assert_same_but
from vit_jax import config as config_lib
from vit_jax import interop, models
from vit_jax.training import warm_start

POSITION = 'Transformer/posembed_input/pos_embedding'
SIZES = dict(width=8, depth=2, heads=2, mlp_dim=16)


def _save(workdir, params, size=None):
  """Writes a run's checkpoint and, if `size` is given, its config.json."""
  states.save(workdir, {'params': params, 'ema_params': {}}, [5])
  if size:
    config = config_lib.default()
    config.model.name = 'ViT-Ti/4'
    config.image_size = size
    config.num_classes = 3
    config_lib.save(ml_collections.ConfigDict(config), workdir)


def _load(path, params, new_grid=(2, 2), new_head=True, **changes):
  """Loads weights for a model whose initial parameters are `params`."""
  names = flax.traverse_util.flatten_dict(params, sep='/')
  program = types.SimpleNamespace(
    config=types.SimpleNamespace(image_size=[4 * side for side in new_grid]),
    model=models.build('ViT-Ti/4', num_classes=3, **(SIZES | changes)),
    shapes=types.SimpleNamespace(params=jax.eval_shape(lambda: params)),
    layout=tiny_step.one_device(),
    init_params=lambda chosen: flax.traverse_util.unflatten_dict(
      {name: names[name] for name in chosen}, sep='/'
    ),
  )
  return warm_start.load(path, program, new_head=new_head)


def test_new_head_is_kept_and_the_old_one_left_out(tmp_path):
  source = _params(1, classes=5, representation_size=8)
  params = _params(2, classes=3)
  _save(tmp_path, source, size=(8, 8))
  loaded = _load(tmp_path, params)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  flat, head = _flat(loaded), {'head/kernel', 'head/bias'}
  assert_same_but(flat, _flat(source), but=head)
  for name in head:
    np.testing.assert_array_equal(flat[name], _flat(params)[name])


def test_position_embedding_is_resized_as_scipy_does(tmp_path):
  """The old grid is known from the run's config."""
  new = (4, 2)  # As many tokens as the old grid, (2, 4).
  source = _params(1, size=(8, 16))
  _save(tmp_path, source, size=(8, 16))
  loaded = _load(
    tmp_path, _params(2, size=(4 * new[0], 4 * new[1])), new_grid=new
  )
  old, resized = _flat(source)[POSITION], _flat(loaded)[POSITION]
  np.testing.assert_array_equal(resized[:, 0], old[:, 0])  # The class token's.
  expected = ndimage.zoom(
    old[0, 1:].reshape(2, 4, 8), (new[0] / 2, new[1] / 4, 1), order=1
  )
  np.testing.assert_allclose(
    resized[0, 1:].reshape(*new, 8), expected, atol=1e-6
  )
  assert_same_but(
    _flat(loaded), _flat(source), but={'head/kernel', 'head/bias', POSITION}
  )


def test_a_kept_head_must_fit(tmp_path):
  source = _params(1, representation_size=8)
  _save(tmp_path, source, size=(8, 8))
  loaded = _load(tmp_path, _params(2, representation_size=8), new_head=False)
  assert_same_but(_flat(loaded), _flat(source), but=set())
  with pytest.raises(ValueError, match=r'init\.new_head=True') as error:
    _load(
      tmp_path, _params(2, classes=5, representation_size=8), new_head=False
    )
  assert f'weights of {tmp_path}/checkpoints/5 do not fit' in str(error.value)
  assert (
    '\n  different (2):\n    head/bias is (3,), expected (5,)'
    '\n    head/kernel is (8, 3), expected (8, 5)\n'
  ) in str(error.value)


def test_a_run_keeps_the_checkpoint_it_started_from(tmp_path):
  source, workdir = tmp_path / 'source', tmp_path / 'run'
  _save(source, _params(1), size=(8, 8))
  assert warm_start.pin('', tmp_path) == ''
  pinned = warm_start.pin(str(source), workdir)
  assert pinned == f'{source}/checkpoints/5'
  # A stage is the run beside this one.
  stage = warm_start.pin('stage:source', workdir)
  assert stage == 'stage:source/checkpoints/5'
  for path in (pinned, stage):
    assert str(warm_start.resolve_path(path, workdir)) == pinned
  with pytest.raises(ValueError, match=r'No checkpoint at .*nothing'):
    warm_start.pin('stage:nothing', workdir)
  workdir.mkdir()
  config = config_lib.default()
  config.init.checkpoint = pinned
  config_lib.save(config, workdir)
  (source / 'checkpoints' / '5').rename(source / 'checkpoints' / '6')
  assert warm_start.pin(str(source), workdir) == pinned
  assert warm_start.pin(pinned, workdir) == pinned
  # A path that is only a prefix of the pinned path is another run.
  other = tmp_path / 'sour'
  _save(other, _params(1))
  assert warm_start.pin(str(other), workdir) == f'{other}/checkpoints/5'
  bucket = warm_start.resolve_path('s3://b/runs', '/runs/a')
  assert bucket.as_posix().startswith('s3:')


# Weights of other kinds ------------------------------------------------------


def _foreign(tmp_path, kind, monkeypatch):
  """Writes weights; returns `init.checkpoint`, the path and the parameters."""
  model = models.build('ViT-Ti/4', num_classes=5, gelu='exact', **SIZES)
  params = _params(1, classes=5)
  if kind == 'huggingface':
    path = tmp_path / 'hf'
    interop.save_huggingface(path, params, model, 8)
    return str(path), path, params
  path = tmp_path / 'weights' / 'sam' / 'ViT-B_32.npz'
  interop.save_npz(path, params, model, image_size=8)
  if kind == 'npz':
    return str(path), path, params
  monkeypatch.setenv('VIT_JAX_WEIGHTS', str(tmp_path / 'weights'))
  return 'sam/ViT-B_32', path, params


@pytest.mark.parametrize('kind', ['npz', 'huggingface', 'catalog'])
def test_weights_of_other_kinds(tmp_path, kind, monkeypatch, caplog):
  given, path, source = _foreign(tmp_path, kind, monkeypatch)
  workdir = tmp_path / 'run'
  pinned = warm_start.pin(given, workdir)
  assert pinned == str(path)
  assert warm_start.resolve_path(given, workdir) == path
  params = _params(2, size=(12, 12))
  caplog.set_level('INFO', logger='absl')
  loaded = _load(
    warm_start.resolve_path(pinned, workdir),
    params,
    new_grid=(3, 3),
  )
  origin = caplog.messages[-1]
  assert origin.startswith(f'Weights from {path}: 37 arrays loaded; resized: ')
  # The file has no such record; the folder is for transformers.
  assert ('pillow_bilinear' in origin) == (kind == 'huggingface')
  assert "set gelu='exact' to compute the same" in origin
  assert_same_but(
    _flat(loaded), _flat(source), but={'head/kernel', 'head/bias', POSITION}
  )
  # A run that has begun no longer needs the weights it started from.
  workdir.mkdir()
  config = config_lib.default()
  config.init.checkpoint = pinned
  config_lib.save(config, workdir)
  path.rename(tmp_path / 'gone')
  assert warm_start.pin(given, workdir) == pinned
  with pytest.raises(ValueError, match=r'sam|hf'):
    warm_start.pin(given, tmp_path / 'other')


def test_an_optimizer_beside_the_weights_is_left_out(tmp_path, caplog):
  source = _flat(_params(1))
  file = {f'opt/target/{k}': v for k, v in source.items()}
  np.savez(tmp_path / 'a.npz', **file, **{'opt/state/step': np.ones(1)})
  caplog.set_level('INFO', logger='absl')
  loaded = _load(tmp_path / 'a.npz', _params(2), new_head=False)
  assert_same_but(_flat(loaded), source, but=set())
  origin = caplog.messages[-1]
  assert origin.endswith(': 40 arrays loaded; dropped: opt/state/step.')


# Sizes of the run that a model starts from ------------------------------------


def _save_config(workdir, **model):
  config = config_lib.default()
  config.model.update(model)
  workdir.mkdir(parents=True, exist_ok=True)
  config_lib.save(config, workdir)


def _started_from(tmp_path, place='checkpoints/9', **model):
  config = config_lib.default()
  config.model.name = 'ViT-Ti/8'
  config.model.update(model)
  config.init.checkpoint = str(tmp_path / 'run' / place)
  return warm_start.with_model(config, tmp_path / 'new').model.to_dict()


def test_sizes_are_those_of_the_run_that_it_starts_from(tmp_path):
  sizes = dict(width=96, depth=4, heads=3, patch_size=(4, 8), pooling='gap')
  others = dict(dropout_rate=0.1, representation_size=-1, head_bias=-3.0)
  _save_config(tmp_path / 'run', name='ViT-Ti/8', **sizes, **others)
  found = _started_from(tmp_path)
  assert {key: found[key] for key in sizes} == sizes
  assert {found[key] for key in others} == {None}
  # A size that the config sets stays.
  assert _started_from(tmp_path, depth=3)['depth'] == 3
  # Another model keeps its own sizes.
  other = _started_from(tmp_path, name='ViT-S/8', width=192)
  assert other['depth'] is None


@pytest.mark.parametrize(
  'place, depth',
  [
    ('best/9', 4),
    ('damaged_checkpoints/9', 4),
    ('checkpoints/B_16.npz', None),
    ('copies/9', None),
  ],
)
def test_only_what_a_run_wrote_has_its_sizes(tmp_path, place, depth):
  _save_config(tmp_path / 'run', name='ViT-Ti/8', depth=4)
  assert _started_from(tmp_path, place)['depth'] == depth


def test_the_model_of_the_run_that_it_starts_from(tmp_path):
  _save_config(tmp_path / 'run', name='ViT-L/16', depth=4, dropout_rate=0.3)
  found = _started_from(tmp_path, name='auto', width=64)
  # The dropout rate is that of fine-tuning, not of the run.
  assert (found['name'], found['dropout_rate']) == ('ViT-L/16', 0.1)
  assert (found['depth'], found['width']) == (4, 64)
  assert (
    _started_from(tmp_path, name='auto', dropout_rate=0.2)['dropout_rate']
    == 0.2
  )
  # Other spellings of a name, such as AugReg's, mean the same model.
  _save_config(tmp_path / 'run', name='R50+L/16', depth=3)
  found = _started_from(tmp_path, name='auto')
  assert (found['name'], found['dropout_rate']) == ('R50+ViT-L/16', 0.1)
  assert _started_from(tmp_path, name='R50+ViT-L/16')['depth'] == 3
  _save_config(tmp_path / 'run', name='BiT-R50x1')
  assert _started_from(tmp_path, name='auto')['dropout_rate'] is None


@pytest.mark.parametrize('kind', ['npz', 'huggingface'])
def test_the_model_of_a_file(tmp_path, kind, monkeypatch):
  _, path, _ = _foreign(tmp_path, kind, monkeypatch)
  # A run beside it is another one.
  _save_config(path.parent.parent, name='ViT-L/16', depth=4)
  config = config_lib.default()
  config.model.name, config.init.checkpoint = 'auto', str(path)
  found = warm_start.with_model(config, tmp_path / 'new').model
  assert found.name.endswith('/4')
  built = models.build(
    found.name,
    num_classes=5,
    **{k: found[k] for k in warm_start.SIZES if found[k] is not None},
  )
  for key in ('width', 'depth', 'heads', 'mlp_dim', 'gelu'):
    assert getattr(built, key) == (SIZES | {'gelu': 'exact'})[key]


def test_images_are_prepared_as_a_folder_says(tmp_path):
  model = tiny.vit(image_mean=(0.4, 0.5, 0.6), image_std=(0.2, 0.3, 0.4))
  operations = "eval_crop(0.5, method='pillow_bicubic')"
  interop.save_huggingface(
    *(tmp_path / 'folder', tiny.params(model, (8, 12)), model, (8, 12)),
    preprocessing=operations,
    decoding={'jpeg_dct': 'accurate'},
  )
  config = config_lib.default()
  config.model.name = config.init.preprocess = 'auto'
  config.init.checkpoint = str(tmp_path / 'folder')
  config.data.preprocess = 'inception_crop|flip'
  for name, text in (('test', 'resize'), ('own', 'resize(9)')):
    config.evals[name] = config_lib.evaluation('test', preprocess=text)
  found = warm_start.with_model(config, tmp_path / 'new')
  assert found.init.preprocess == found.evals.test.preprocess == operations
  assert found.evals.own.preprocess == 'resize(9)'
  assert found.data.preprocess == (
    "random_resized_crop(method='pillow_bicubic')|flip"
  )
  assert found.data.jpeg_dct == 'accurate'
  assert found.image_size == (8, 12)
  assert (found.model.image_mean, found.model.image_std) == (
    *((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
  )
  # A run that goes on does not need the folder, but for its model.
  (tmp_path / 'new').mkdir()
  config_lib.save(found, tmp_path / 'new')
  (tmp_path / 'folder/preprocessor_config.json').unlink()
  again = warm_start.with_model(config, tmp_path / 'new')
  assert again.to_dict() == found.to_dict()
  config.init.preprocess = ''
  assert warm_start.with_model(config, tmp_path / 'other').image_size == (
    *(224, 224),
  )


def test_sizes_stay_when_the_run_that_it_started_from_is_gone(tmp_path):
  _save_config(tmp_path / 'run', name='ViT-Ti/8', depth=4)
  config = config_lib.default()
  config.model.name = 'ViT-Ti/8'
  config.init.checkpoint = str(tmp_path / 'run/checkpoints/9')
  first = warm_start.with_model(config, tmp_path / 'new')
  (tmp_path / 'new').mkdir()
  config_lib.save(first, tmp_path / 'new')
  (tmp_path / 'run/config.json').unlink()
  assert warm_start.with_model(config, tmp_path / 'new') == first
  assert warm_start.with_model(config, tmp_path / 'other') == config


def test_without_a_checkpoint_of_a_run_nothing_is_taken(tmp_path):
  config = config_lib.default()
  for path in (str(tmp_path / 'a.npz'), 'augreg/B_16', ''):
    config.init.checkpoint = path
    assert warm_start.with_model(config, tmp_path) == config
  config.model.name = 'auto'
  with pytest.raises(ValueError, match=r'init.checkpoint, which is not set'):
    warm_start.with_model(config, tmp_path)
