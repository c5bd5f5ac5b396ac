"""Guards: memory an image is the slope between two batches that have room."""

import pytest

from vit_jax.paper import planning
from vit_jax.paper.items.beyond import training_memory as memory
from vit_jax.paper.page import texts
from vit_jax.paper.runs import Results
from vit_jax.plan import devices
from vit_jax.runtime import command_line

COUNT = len(memory.MODELS)
# Model -> GiB of the state, and of an image. Any others have 1 and 0.125.
NEEDS = {'ViT-H/14': (9.0, 0.25), 'BiT-R152x4': (7.0, 0.75)}
# ResNets take more.
LESS = {resnet: (1.0, 0.25) for _, resnet in memory.PAIRS}


class Compiler:
  """Stands in for `vit_jax.plan`; remembers what it compiled."""

  def __init__(self, needs=NEEDS, broken='', last=0):
    self.asked, self._needs = [], needs
    self._broken, self._last = broken, last

  def __call__(self, words):
    config, batch, topology, form = words
    config = config.removeprefix('--config=')
    batch = int(batch.removeprefix('--config.data.batch_size='))
    assert (topology, form) == ('--topology=v3:2x2', '--json')
    model = config.partition(':')[2].removesuffix(',jft300m')
    if model == self._broken:
      raise ValueError('it crashed')
    if self._last and len(self.asked) == self._last:
      raise KeyboardInterrupt
    self.asked.append((model, batch))
    state, image = self._needs.get(model, (1.0, 0.125))
    if 'mini.py' in config:
      state, image = 0.001, 0.0005
    return {
      'config': config,
      'topology': 'v3:2x2',
      'hbm_gib': state + image * batch / 8 + batch / 2**13,
      'hbm': {'program': batch / 2**13},
      'hbm_usable_gib': 15.5,
      'forward_gmacs': 4.4,
      'params': 88_000_000,
      'libtpu': '0.0.1',
      'jax': '0.12.0',
    }


def test_memory_an_image_is_without_the_state(tmp_path):
  compiler = Compiler()
  memory.measure('paper', tmp_path, compiler)
  found = memory.read(tmp_path, 'paper')
  assert [*found] == [*memory.MODELS]
  assert memory.per_image(found['ViT-B/32']) == 0.125
  assert [b for m, b in compiler.asked if m == 'ViT-B/32'] == [512, 256]
  # 16 images take 9 + 4 GiB, which leaves room; 32 take 9 + 8 GiB.
  assert [*found['ViT-H/14']] == [16, 8]
  assert memory.per_image(found['ViT-H/14']) == 0.25
  assert memory.per_image(found['BiT-R152x4']) == 0.75


def test_an_interruption_loses_no_compilation(tmp_path):
  first = Compiler(last=3)
  with pytest.raises(KeyboardInterrupt):
    memory.measure('paper', tmp_path, first)
  assert memory.progress('paper', tmp_path) == (1, COUNT)
  again, third = Compiler(), Compiler()
  memory.measure('paper', tmp_path, again)
  assert not {*first.asked} & {*again.asked}
  memory.measure('paper', tmp_path, third)
  assert third.asked == []


def test_a_failure_stops_no_other_model(tmp_path):
  with pytest.raises(ValueError, match=r'ViT-B/32,jft300m: it crashed'):
    memory.measure('paper', tmp_path, Compiler(broken='ViT-B/32'))
  assert memory.progress('paper', tmp_path) == (COUNT - 1, COUNT)


@pytest.mark.parametrize('scale', ['mini', 'midi'])
def test_other_scales_have_the_models_of_the_miniature(tmp_path, scale):
  compiler = Compiler()
  memory.measure(scale, tmp_path, compiler)
  [plan, *_] = planning.read(tmp_path / memory.NAME)
  assert plan['config'] == 'configs/mini.py:ViT-B/32,jft300m'
  assert memory.progress(scale, tmp_path) == (COUNT, COUNT)
  assert memory.progress('paper', tmp_path) == (0, COUNT)


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize('model', memory.MODELS)
def test_models_have_configs(scale, model):
  text = f'{memory.FILES[scale]}:{model},jft300m'
  config = command_line.load_config(text)
  assert config.model.name == model


def _section(tmp_path, needs, scale='paper'):
  memory.measure(scale, tmp_path / 'measured', Compiler(needs))
  results = Results([], {}, scale=scale)
  return memory.ITEM.render(results, tmp_path / 'figures')


def test_table_and_answer(tmp_path):
  section = _section(tmp_path, LESS)
  table, claim = section.blocks
  shown = {place: texts.cell_text(table, *place).ours for place in table.cells}
  assert shown['ViT-B/32', 'GiB an image'] == '0.1250'
  assert shown['BiT-R50x1', 'GiB an image'] == '0.2500'
  assert shown['ViT-B/32', 'Parameters (millions)'] == '88.0000'
  assert claim.answer == 'seen once'
  assert 'ViT-B/32 0.1250, BiT-R50x1 0.2500, 0.50 times' in claim.evidence
  assert texts.status(section).word == 'complete'
  # In miniature it is not asked.
  assert len(_section(tmp_path, {}, 'mini').blocks) == 1


def test_a_missing_model_leaves_the_question_open(tmp_path):
  section = _section(tmp_path, LESS | {'BiT-R152x4': (15.0, 0.5)})
  assert section.blocks[-1].answer == 'missing'
  assert 'BiT-R152x4' in section.blocks[-1].evidence
  [missing] = section.missing
  assert 'BiT-R152x4' in missing
  assert texts.status(section).word == 'partly there'


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
  not devices.have_compiler(), reason='libtpu is not installed'
)
def test_the_real_compiler_states_the_memory_of_an_image(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, 'MODELS', ('ViT-B/32',))
  memory.measure('mini', tmp_path)
  found = memory.read(tmp_path, 'mini')['ViT-B/32']
  # A miniature of 2 blocks and 10 tokens: less than a thousandth of 16 GiB.
  assert 0 < memory.per_image(found) < 0.001
