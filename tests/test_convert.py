"""Guards `vit_jax.convert`: every direction, its checks, what it overwrites."""

import itertools
import json

import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import checkpoint, convert, interop
from vit_jax.interop import families
from vit_jax.workdir import files


@pytest.fixture
def npz(tmp_path):
  model = tiny.vit(gelu='exact')
  params = tiny.params(model)
  interop.save_npz(
    tmp_path / 'a.npz',
    params,
    model,
    image_size=8,
    class_names=list('abcde'),
    preprocessing='resize',
  )
  return tmp_path / 'a.npz', params


def test_round_trips_between_all_formats(tmp_path, npz, capsys):
  source, params = npz
  for before, after in itertools.pairwise(['a.npz', 'hf', 'b.npz', 'hf2']):
    convert.convert(str(tmp_path / before), str(tmp_path / after))
  for name in ('a.npz', 'a.npz.json'):
    expected = (tmp_path / name).read_bytes()
    assert (tmp_path / name.replace('a', 'b', 1)).read_bytes() == expected
  for name in ('model.safetensors', 'config.json', 'preprocessor_config.json'):
    expected = (tmp_path / 'hf' / name).read_bytes()
    assert (tmp_path / 'hf2' / name).read_bytes() == expected
  tiny.assert_equal(families.from_released(np.load(tmp_path / 'b.npz')), params)
  weights = interop.read(tmp_path / 'hf2')
  assert weights.class_names == ('a', 'b', 'c', 'd', 'e')
  lines = capsys.readouterr().out.splitlines()
  assert lines[:2] == [
    f'Read {source}: 40 arrays loaded.',
    f'Wrote {tmp_path}/hf: ViT-Ti/4 with width=16, depth=2, heads=2,'
    ' mlp_dim=24, gelu=exact; 5 classes, named; 8x8 px; layout vit.',
  ]
  assert "Only b.npz.json says that the model has {'gelu': 'exact'}" in (
    '\n'.join(lines)
  )


def test_a_run_is_converted_with_its_averaged_weights_and_class_names(tmp_path):
  params = tiny.run(tmp_path / 'run')
  convert.convert(f'{tmp_path}/run', f'{tmp_path}/a.npz')
  tiny.assert_equal(families.from_released(np.load(tmp_path / 'a.npz')), params)
  beside = json.loads((tmp_path / 'a.npz.json').read_text())
  assert beside['class_names'] == ['1', '3', '5', '8', '9']
  assert beside['preprocessing'] == 'resize_small(9)'
  (tmp_path / 'run' / files.CLASS_NAMES).unlink()  # Older runs lack this file.
  config = json.loads((tmp_path / 'run/config.json').read_text())
  config['model']['quantization'] = 'int8'  # This key is gone.
  (tmp_path / 'run/config.json').write_text(json.dumps(config))
  convert.convert(f'{tmp_path}/run', f'{tmp_path}/b.npz')
  assert interop.read(tmp_path / 'b.npz').class_names == ()


def test_a_bare_released_file_and_another_resolution(tmp_path, npz):
  source, _ = npz
  (tmp_path / 'a.npz.json').unlink()
  convert.convert(str(source), f'{tmp_path}/hf', resolution=(8, 12))
  config = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert config['image_size'] == [8, 12]
  assert config['hidden_act'] == 'gelu_pytorch_tanh'
  expected = interop.load_npz(source, tiny.vit(), (8, 12))
  tiny.assert_equal(
    interop.load_huggingface(tmp_path / 'hf', tiny.vit(), (8, 12)), expected
  )


def test_image_size_and_model_can_be_given(tmp_path):
  model = tiny.vit()
  sizes = ','.join(f'{k}={v}' for k, v in tiny.SIZES.items())
  params = tiny.params(model, (8, 16))
  file = families.to_released(tiny.flat(params))
  np.savez(tmp_path / 'a.npz', **file)
  source = f'{tmp_path}/a.npz'
  with pytest.raises(ValueError, match='8 patches do not form a square grid'):
    convert.convert(source, f'{tmp_path}/b.npz')
  with pytest.raises(ValueError, match='do not fit the model'):
    convert.convert(source, f'{tmp_path}/b.npz', image_size=(8, 8))
  convert.convert(
    source,
    f'{tmp_path}/b.npz',
    model_name=f'ViT-Ti/4:{sizes}',
    image_size=(8, 16),
  )
  assert interop.read(tmp_path / 'b.npz').grid == (2, 4)


def test_options_that_a_given_model_omits_come_from_the_source(tmp_path):
  model = tiny.vit(gelu='exact', norm_epsilon=1e-3)
  interop.save_huggingface(tmp_path / 'hf', tiny.params(model), model, 8)
  spec = 'ViT-Ti/4:' + ','.join(f'{k}={v}' for k, v in tiny.SIZES.items())
  for given, epsilon in ((spec, 1e-3), (f'{spec},norm_epsilon=0.5', 0.5)):
    convert.convert(
      f'{tmp_path}/hf', f'{tmp_path}/a.npz', model_name=given, overwrite=True
    )
    written = interop.read(tmp_path / 'a.npz').model
    assert (written.gelu, written.norm_epsilon) == ('exact', epsilon)
  for given, message in (
    ('ViT-Ti/4:gelu', r"expected KEY=VALUE, got 'gelu'"),
    (f'{spec},num_classes=5', 'num_classes is no option here'),
    (f'{spec},depth=3', 'do not fit the model'),
  ):
    with pytest.raises(ValueError, match=message):
      convert.convert(f'{tmp_path}/hf', f'{tmp_path}/b.npz', model_name=given)


def test_an_existing_target_is_replaced_only_on_request(tmp_path, npz):
  source, _ = npz
  for target in ('b.npz', 'hf'):
    to = f'{tmp_path}/{target}'
    convert.convert(str(source), to)
    with pytest.raises(ValueError, match='exists; --overwrite replaces it'):
      convert.convert(str(source), to)
    convert.convert(str(source), to, overwrite=True)
  tiny.run(tmp_path / 'trained')
  with pytest.raises(ValueError, match='so it is not replaced'):
    convert.convert(str(source), f'{tmp_path}/trained', overwrite=True)
  assert checkpoint.latest_step(tmp_path / 'trained') == 9


def test_models_that_the_format_cannot_store_are_refused(tmp_path):
  model = tiny.vit(representation_size=8)
  interop.save_npz(tmp_path / 'a.npz', tiny.params(model), model, image_size=8)
  with pytest.raises(ValueError, match='representation_size=8'):
    convert.convert(f'{tmp_path}/a.npz', f'{tmp_path}/hf')
  assert not (tmp_path / 'hf').exists()
  with pytest.raises(ValueError, match='hf upload me/birds'):
    convert.convert(f'{tmp_path}/a.npz', 'hf://me/birds')


@pytest.mark.parametrize(
  'options, layout, given, written',
  [
    ({'representation_size': 16}, '', '', 'vit'),
    ({}, 'timm', '', 'timm'),
    ({}, 'vit_mae', '', 'vit_mae'),
    ({}, 'timm', 'vit_msn', 'vit_msn'),
    ({'distillation_token': True}, '', '', 'deit'),
    ({'pooling': 'map'}, '', 'timm', 'timm'),
    ({'layer_scale': 1e-4}, '', '', 'timm'),  # No DINOv2 has this hidden layer.
    (
      {'registers': 2, 'layer_scale': 1e-4, 'mlp_dim': 32},
      '',
      '',
      'dinov2_with_registers',
    ),
  ],
)
def test_weights_without_a_head_keep_their_layout(
  tmp_path, capsys, options, layout, given, written
):
  """By way of a folder in `layout`, if any; `given` is that of the last."""
  model = tiny.vit(1, gelu='exact', norm_epsilon=1e-6, **options)
  params = tiny.flat(tiny.params(model, (8, 12)))
  params = {k: v for k, v in params.items() if not k.startswith('head')}
  path = f'{tmp_path}/a.npz'
  interop.save_npz(path, tiny.unflat(params), model, image_size=(8, 12))
  if layout:
    convert.convert(path, f'{tmp_path}/b', layout=layout)
    path = f'{tmp_path}/b'
  convert.convert(path, f'{tmp_path}/c', layout=given)
  out = capsys.readouterr().out
  assert out.endswith(f'no head; 8x12 px; layout {written}.\n')
  assert 'new' not in out
  assert interop.read(f'{tmp_path}/c').layout == written
  card = (tmp_path / 'c/README.md').read_text()
  assert ('timm.create_model' in card) == (written == 'timm')
  assert 'image-feature-extraction' in card
  # Back to a file: nothing has changed.
  convert.convert(f'{tmp_path}/c', f'{tmp_path}/d.npz')
  weights = interop.read(f'{tmp_path}/d.npz')
  tiny.assert_equal(weights.params, params)
  assert (weights.model, weights.image_size) == (model, (8, 12))


def test_layouts_and_missing_arrays_that_are_refused(tmp_path, npz):
  source, _ = npz
  for target, layout, message in (
    ('b.npz', 'vit', '--layout=vit is for folders'),
    ('b', 'vit_base', "layout='vit_base' is unknown; known are vit, deit"),
    ('b', 'dinov2', 'dinov2 cannot express this model.*layer_scale=None'),
  ):
    with pytest.raises(ValueError, match=message):
      convert.convert(str(source), f'{tmp_path}/{target}', layout=layout)
  # Only a head may be missing.
  file = {k: v for k, v in np.load(source).items() if 'head' not in k}
  np.savez(source, **file)
  sizes = ','.join(f'{k}={v}' for k, v in tiny.SIZES.items())
  with pytest.raises(ValueError, match='lack pre_logits/bias, pre_logits/kern'):
    convert.convert(
      str(source),
      f'{tmp_path}/b',
      model_name=f'ViT-Ti/4:{sizes},representation_size=16',
    )
  assert not (tmp_path / 'b').exists()
  assert not (tmp_path / 'b.npz').exists()


@pytest.mark.gate
def test_the_command(tmp_path, npz, command):
  source, _ = npz
  names = tmp_path / 'names.txt'
  names.write_text('v\nw\nx\ny\nz\n\n  \n')
  result = command(
    'vit_jax.convert',
    f'--from={source}',
    f'--to={tmp_path}/b.npz',
    '--resolution=8x16',
    f'--class_names={names}',
  )
  assert result.returncode == 0, result.stderr
  assert '5 classes, named; 8x16 px.' in result.stdout
  weights = interop.read(tmp_path / 'b.npz')
  assert weights.class_names == ('v', 'w', 'x', 'y', 'z')
  result = command(
    'vit_jax.convert', f'--from={source}', f'--to={tmp_path}/b.npz'
  )
  assert result.returncode == 1
  assert result.stderr.splitlines()[-1] == (
    f'error: {tmp_path}/b.npz exists; --overwrite replaces it.'
  )


def test_operations_of_another_size_are_refused(tmp_path):
  model, to = tiny.vit(), f'{tmp_path}/b.npz'
  interop.save_npz(
    tmp_path / 'a.npz',
    tiny.params(model),
    model,
    image_size=8,
    preprocessing='resize(9)|central_crop(8)',
  )
  words = dict(source=f'{tmp_path}/a.npz', target=to, resolution=(12, 12))
  with pytest.raises(ValueError, match=r'a\.npz: .* 8x8 .* but 12x12'):
    convert.convert(**words)
  convert.convert(**words, preprocess='resize(14)|central_crop')
  assert interop.read(to).preprocessing == 'resize(14)|central_crop'
