"""Guards: a plan reads the compiler's memory figures and its errors."""

import types

import jax
import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import analysis, compiling, devices

KNOWN = compiling.Memory(parameters=100, optimizer=200, average=0, batch=30)


def _stats(**figures):
  names = ('argument', 'output', 'alias', 'temp', 'generated_code')
  zeros = {f'{name}_size_in_bytes': 0 for name in names}
  return types.SimpleNamespace(**zeros | {'peak_memory_in_bytes': 0} | figures)


def test_the_parts_add_up_to_the_compilers_total():
  stats = _stats(
    argument_size_in_bytes=350,
    output_size_in_bytes=310,
    alias_size_in_bytes=304,
    temp_size_in_bytes=1000,
    generated_code_size_in_bytes=40,
    peak_memory_in_bytes=1200,
  )
  memory, assumptions = compiling.read_memory(stats, KNOWN)
  assert memory == compiling.Memory(
    parameters=100,
    optimizer=200,
    average=0,
    batch=30,
    padding=20,
    temporaries=1000,
    outputs=6,
    program=40,
  )
  assert memory.total == 350 + 1000 + (310 - 304) + 40
  assert assumptions == ()


def test_unstated_temporaries_are_derived_from_the_peak():
  stats = _stats(
    argument_size_in_bytes=330,
    output_size_in_bytes=300,
    alias_size_in_bytes=300,
    peak_memory_in_bytes=1330,
  )
  memory, assumptions = compiling.read_memory(stats, KNOWN)
  assert memory.temporaries == 1000
  assert 'the most that is alive at a time' in assumptions[0]


@pytest.mark.parametrize(
  'message, gib',
  [
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required'
      ' for HLO temporaries (96.00G) exceeds available HBM (15.48G).',
      96,
    ),
    (
      'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory'
      ' in memory space hbm. Used 20.50G of 15.48G hbm. Exceeded hbm capacity'
      ' by 5.02G.',
      20.5,
    ),
    ('RESOURCE_EXHAUSTED: Used 512.00M of 100.00M hbm.', 0.5),
    ('RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.', None),
    ('INTERNAL: Used 20.50G of 15.48G hbm.', None),
  ],
)
def test_out_of_memory(message, gib):
  expected = None if gib is None else round(gib * compiling.GIB)
  assert compiling.parse_out_of_memory(message) == expected


def test_memory_up_to_the_usable_size_fits():
  def compiled(size, estimate='estimate'):
    memory = compiling.Memory(0, 0, 0, 0, temporaries=size)
    return compiling.Compiled(memory, 100, estimate, 1.0)

  assert compiled(100).fits
  assert not compiled(101).fits
  # The program itself takes memory, too.
  memory = compiling.Memory(0, 0, 0, 0, temporaries=90, program=11)
  assert not compiling.Compiled(memory, 100, 'estimate', 1.0).fits
  # The compiler ran out of memory, and 99 are only its temporaries.
  assert not compiled(99, estimate=None).fits


class _Program:
  """A program whose step fails to compile."""

  abstract_state = abstract_batch = None

  def __init__(self, message):
    self.train_step = self
    self.message = message

  def lower(self, *arguments):
    return self

  def compile(self, options):
    raise jax.errors.JaxRuntimeError(self.message)


def _build(monkeypatch, message):
  """Makes compiling fail with `message`; returns the list of build calls."""
  built = []

  def build(config, target):
    built.append((config, target))
    return _Program(message)

  monkeypatch.setattr(compiling, 'build', build)
  monkeypatch.setattr(compiling, 'held', lambda program: KNOWN)
  monkeypatch.setattr(compiling, '_COMPILED', {})
  return built


def _config(**changes):
  config = pretrain.get_config('ViT-B/16,imagenet2012')
  config.update_from_flattened_dict(changes)
  return analysis.resolve(config, 'tpu')


@pytest.mark.gate
@pytest.mark.parametrize(
  'message, error, temporaries',
  [
    ('INTERNAL: a\n  check failed', 'INTERNAL: a check failed', 0),
    ('RESOURCE_EXHAUSTED: Used 20.50G of 15.48G hbm.', '', 20.5),
    ('x' * 1000, 'x' * 400 + ' ...', 0),
  ],
)
def test_compiler_errors(monkeypatch, message, error, temporaries):
  built = _build(monkeypatch, message)
  found = compiling.compile_step(_config(), devices.parse('v3:2x2'))
  assert len(built) == 1
  assert (found.error, found.estimate, found.fits) == (error, None, False)
  assert found.memory.temporaries == temporaries * compiling.GIB
  assert found.memory.parameters == 100
