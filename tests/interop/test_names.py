"""Guards every layout of others: its names, its configs, and what comes back.

`names/*.txt` has tiny models as transformers 5.24 and timm 1.0.31 write them:
`[case]`, the `config.json` without what is read by nobody, the model that it is
here, and the name and shape of each array. `{0,1}` stands for both blocks, and
`- ` is before an array that changes no output. Arrays here are random.
"""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy

from tests.interop import tiny
from vit_jax import interop, models
from vit_jax.interop import families, timm_layouts
from vit_jax.models import position

# Values of the configs above that are transformers' defaults.
DEFAULTS = ('layer_norm_eps', 'qkv_bias', 'rope_theta', 'hidden_dropout_prob')

# Written as the tower alone; and this version of transformers leaves out some
# of MSN's prefixes.
BARE = ('mae', 'siglip', 'msn')
# There is no mask token, and sections of configs repeat the projection.
OTHERWISE = {
  'architectures',
  'use_mask_token',
  'projection_dim',
  'vision_config',
}
# Whose code resizes positions with antialiasing.
ANTIALIASED = ('dinov2_with_registers', 'timm')


def _cases():
  for path in sorted(pathlib.Path(__file__).with_name('names').glob('*.txt')):
    for part in path.read_text().split('\n\n'):
      name, config, model, *arrays = part.strip().split('\n')
      config = json.loads(config.removeprefix('config '))
      yield name[1:-1], config, json.loads(model.removeprefix('model ')), arrays


CASES = {name: case for name, *case in _cases()}


def _arrays(lines):
  """Returns random arrays by name, and the names that change no output."""
  rng, arrays, unused = np.random.default_rng(0), {}, []
  for line in lines:
    name, *shape = line.removeprefix('- ').split(' ')
    for block in '01' if '{0,1}' in name else '0':
      full = name.replace('{0,1}', block)
      arrays[full] = rng.normal(size=tuple(map(int, shape))).astype('f')
      unused += [full] * line.startswith('- ')
  return arrays, unused


def write(folder, name):
  """Writes the folder of a case; returns its arrays, and the unused names."""
  config, _, lines = CASES[name]
  arrays, unused = _arrays(lines)
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(config))
  safetensors.numpy.save_file(arrays, folder / 'model.safetensors')
  return arrays, unused


def test_every_layout_has_a_case(tmp_path):
  found = set()
  for name in CASES:
    write(tmp_path, name)
    found.add(interop.read(tmp_path).layout)
  assert found == families.OTHERS.keys()


@pytest.mark.parametrize('name', CASES)
def test_files_of_others_are_read_and_written_bit_by_bit(tmp_path, name):
  stored, unused = write(tmp_path, name)
  config, expected, _ = CASES[name]
  weights = interop.read(tmp_path)
  sizes = dict(width=8, depth=2, heads=2) | expected
  assert weights.model == models.build('ViT-B/4', **sizes)
  assert weights.dropped == tuple(sorted(unused))
  # A config that leaves the defaults out is of the same model.
  section = config.get('vision_config', config)
  section = {k: v for k, v in section.items() if k not in DEFAULTS}
  if 'vision_config' in config:
    section = config | {'vision_config': section}
  (tmp_path / 'config.json').write_text(json.dumps(section))
  assert interop.read(tmp_path).model == weights.model

  has_head = 'head/kernel' in weights.params
  params, report = interop.fit_weights(
    weights, weights.model, None, new_head=not has_head
  )
  assert len(report.notes) == (not weights.preprocessing)
  assert not report.resized
  assert {k.partition('/')[0] for k in report.new} <= {'head', 'head_dist'}
  if not has_head:
    params = {k: v for k, v in params.items() if not k.startswith('head')}
  if (table := weights.params.get(families.POSITION)) is not None:
    resized, _ = interop.fit_weights(
      weights, weights.model, (12, 8), new_head=True
    )
    expected = position.resize(
      table,
      old_grid=(2, 2),
      new_grid=(3, 2),
      num_prefix_tokens=table.shape[1] - 4,
      method='bicubic' + '_antialias' * (weights.layout in ANTIALIASED),
    )
    np.testing.assert_array_equal(
      tiny.flat(resized)[families.POSITION], expected
    )
  to = tmp_path / 'written'
  described = weights.described | {'layout': weights.layout}
  interop.save_huggingface(
    to, params, weights.model, weights.image_size, **described
  )
  written = safetensors.numpy.load_file(to / 'model.safetensors')
  plain = families.OTHERS[weights.layout].plain if name in BARE else str
  tiny.assert_equal(
    {plain(k): v for k, v in written.items()},
    {plain(k): v for k, v in stored.items() if k not in unused},
  )
  again = interop.read(to)
  for key in ('model', 'layout', 'image_size', 'channels', 'class_names'):
    assert getattr(again, key) == getattr(weights, key)
  if weights.preprocessing:
    assert again.described == weights.described
  assert not again.dropped
  found = json.loads((to / 'config.json').read_text())
  if weights.layout in timm_layouts.FAMILIES:
    for key in ('num_classes', 'num_features', 'global_pool'):
      assert found[key] == config[key]
    found, config = found['pretrained_cfg'], config['pretrained_cfg']
  if 'vision_config' not in found:  # The tower alone.
    config = config.get('vision_config', config)
  for key in found.keys() & config.keys() - OTHERWISE:
    assert found[key] == config[key], key
