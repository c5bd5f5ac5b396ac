"""Guards: damaged folders of others are one error each; unusual ones are read.

Both with tiny folders as transformers and timm write them.
"""

import json
import re
import shlex
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from tests.interop import test_names, tiny
from vit_jax import interop

WEIGHTS, CONFIG = 'model.safetensors', 'config.json'
INDEX = f'{WEIGHTS}.index.json'
PART = 'model-0000{}-of-00002.safetensors'
KINDS = ('dinov2', 'timm_deit3')


def _configure(folder, **changes):
  config = json.loads((folder / CONFIG).read_text())
  (folder / CONFIG).write_text(json.dumps(config | changes))


def _save(folder, arrays):
  safetensors.numpy.save_file(arrays, folder / WEIGHTS)


def _split(folder, arrays, **more):
  """Writes the arrays into two files, and an index with `more` in it."""
  (folder / WEIGHTS).unlink()
  for i, names in enumerate((sorted(arrays)[::2], sorted(arrays)[1::2]), 1):
    part = {name: arrays[name] for name in names}
    safetensors.numpy.save_file(part, folder / PART.format(i))
    more |= dict.fromkeys(names, PART.format(i))
  (folder / f'{WEIGHTS}.index.json').write_text(
    json.dumps({'weight_map': more})
  )


def _fit(folder):
  weights = interop.read(folder)
  return interop.fit_weights(weights, weights.model, 8)


@pytest.mark.parametrize(
  'damage, message',
  [
    (lambda to, _: (to / CONFIG).write_text('[]'), 'json .*write it again'),
    (
      lambda to, _: (to / WEIGHTS).write_bytes(
        (to / WEIGHTS).read_bytes()[:-9]
      ),
      r'model\.safetensors is damaged',
    ),
    (
      lambda to, x: _split(to, x, more='a.safetensors'),
      r'lacks a\.safetensors, 1 of the 3',
    ),
    (
      lambda to, x: _split(to, x, more=PART.format(1)),
      'lack 1 arrays .* such as more',
    ),
    (
      lambda to, x: _split(to, x, more='../a.safetensors'),
      r'index\.json names no files',
    ),
    (
      lambda to, x: _save(to, {f'x.{k}': v for k, v in x.items()}),
      r'arrays called x\.',
    ),
    (
      lambda to, x: _save(
        to, {k.replace('.1.norm2.weight', '.1.norm3'): x[k] for k in x}
      ),
      r'(?s)missing \(1\):.*LayerNorm_1/scale.*extra \(1\):.*norm3',
    ),
    (
      lambda to, x: _save(
        to, {k: v[None] if '.1.norm2.' in k else v for k, v in x.items()}
      ),
      r'LayerNorm_1/scale is \(1, 8\), expected \(8,\)',
    ),
    (
      lambda to, x: _save(
        to,
        x
        | {k: np.ones(8) for k in ('reg_token', 'embeddings.register_tokens')},
      ),
      r'config\.json describes no model',
    ),
  ],
)
@pytest.mark.parametrize('kind', KINDS)
def test_a_damaged_folder_is_an_error_that_names_it(
  tmp_path, kind, damage, message
):
  arrays, _ = test_names.write(tmp_path, kind)
  damage(tmp_path, arrays)
  with pytest.raises(ValueError, match=message) as error:
    _fit(tmp_path)
  assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
  'kind, changes, message',
  [
    ('dinov2', dict(model_type='swin'), "'swin'"),
    ('dinov2', dict(hidden_act='relu'), "'relu'"),
    ('dinov2', dict(num_attention_heads=3), 'heads'),
    ('timm_deit3', dict(architecture='eva02_small'), 'eva02_small'),
    ('timm_deit3', dict(model_args=dict(act_layer='relu')), "'relu'"),
    ('timm_deit3', dict(model_args=dict(num_heads=3)), 'heads'),
    ('timm_deit3', dict(model_args=dict(norm_layer='rmsnorm')), 'norm_layer'),
    ('timm_deit3', dict(model_args=dict(global_pool='avgmax')), 'avgmax'),
    ('vit', dict(hidden_size=16), r'cls is \(1, 1, 8\), expected \(1, 1, 16'),
    ('vit', dict(num_hidden_layers=3), r'missing \(16\)'),
    ('vit', dict(image_size=16), '4x4 has 16 tokens, but .* has 4'),
  ],
)
def test_configs_of_other_models_are_errors(tmp_path, kind, changes, message):
  test_names.write(tmp_path, kind)
  _configure(tmp_path, **changes)
  with pytest.raises(ValueError, match=message) as error:
    _fit(tmp_path)
  assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_parts_and_types_of_arrays(tmp_path, kind, dtype):
  arrays, _ = test_names.write(tmp_path, kind)
  expected = interop.read(tmp_path)
  rounded = {k: np.asarray(jnp.asarray(v, dtype)) for k, v in arrays.items()}
  _split(tmp_path, rounded)
  weights = interop.read(tmp_path)
  assert weights.model == expected.model
  tiny.assert_equal(
    weights.params,
    {k: np.asarray(jnp.asarray(v, dtype)) for k, v in expected.params.items()},
  )
  params, _ = interop.fit_weights(weights, weights.model, 8)
  assert {x.dtype.name for x in tiny.flat(params).values()} == {'float32'}


def test_a_folder_without_a_config(tmp_path):
  test_names.write(tmp_path, 'vit')
  (tmp_path / CONFIG).unlink()
  with pytest.raises(ValueError, match=r'no file .*config\.json'):
    interop.read(tmp_path)
  # timm's names alone are read, with what most of its models have.
  for kind in ('timm_vit', 'timm_siglip'):
    test_names.write(tmp_path, kind)
    expected = interop.read(tmp_path)
    (tmp_path / CONFIG).unlink()
    weights = interop.read(tmp_path)
    assert weights.model == expected.model.clone(heads=1)
    assert (weights.image_size, weights.preprocessing) == ((8, 8), '')


def test_arguments_of_timm_that_arrays_do_not_show(tmp_path):
  test_names.write(tmp_path, 'timm_dinov3')
  _configure(tmp_path, model_args={'rope_temperature': 50.0, 'num_heads': 1})
  weights = interop.read(tmp_path)
  assert (weights.model.rotary_base, weights.model.heads) == (50, 1)
  to = tmp_path / 'again'
  params, size = tiny.unflat(weights.params), weights.image_size
  options = dict(layout=weights.layout)
  interop.save_huggingface(to, params, weights.model, size, **options)
  assert interop.read(to).model.rotary_base == 50


# Pickles ---------------------------------------------------------------------


@pytest.mark.parametrize('name', ['pytorch_model.bin', 'a.pth'])
def test_pickles_are_refused(tmp_path, name):
  test_names.write(tmp_path, 'vit')
  (tmp_path / WEIGHTS).rename(tmp_path / name)
  path = tmp_path if name.endswith('.bin') else tmp_path / name
  with pytest.raises(ValueError, match='pickle only') as error:
    interop.read(path)
  assert str(path) in str(error.value)


@pytest.mark.hf
@pytest.mark.parametrize('name', ['pytorch_model.bin', 'a.pth'])
def test_the_command_for_a_pickle_converts_it(tmp_path, name):
  torch = pytest.importorskip('torch')
  arrays, _ = test_names.write(tmp_path, 'vit')
  _configure(tmp_path, id2label=dict(enumerate('abc')))
  expected = interop.read(tmp_path)
  state = {k: torch.tensor(v) for k, v in arrays.items()}
  torch.save(state, tmp_path / name)
  (tmp_path / WEIGHTS).unlink()
  is_folder = name.endswith('.bin')
  path = tmp_path if is_folder else tmp_path / name
  with pytest.raises(ValueError, match='pickle') as error:
    interop.read(path)
  commands = re.findall(r'(python -c "[^"]*")', str(error.value))
  command = commands[not is_folder].replace('FOLDER', str(path))
  command = command.replace('FILE', str(path))
  if is_folder:
    other = re.search(r't\.AutoModelFor\w+', str(error.value))[0]
    command = command.replace('t.AutoModel', other)
  _, *arguments = shlex.split(command)
  subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
  if not is_folder:  # Beside its config.
    (tmp_path / 'NEW.safetensors').rename(tmp_path / WEIGHTS)
  weights = interop.read(tmp_path / 'NEW' if is_folder else tmp_path)
  assert weights.model == expected.model
  tiny.assert_equal(weights.params, expected.params)
