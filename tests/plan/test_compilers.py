"""Guards: a plan names its compiler, and reads its figures and errors."""

import types

import jax
import pytest

from vit_jax.plan import compilers, devices

GIB = compilers.GIB
KNOWN = compilers.Memory(parameters=100, optimizer=200, average=0, batch=30)


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
  memory = compilers.read_memory(stats, KNOWN)
  assert memory == compilers.Memory(100, 200, 0, 30, 20, 1000, 6, 40)
  assert memory.total == 350 + 1000 + (310 - 304) + 40
  # Where the temporaries are not stated, they follow from the peak.
  stats.temp_size_in_bytes = 0
  memory = compilers.read_memory(stats, KNOWN)
  assert memory.temporaries == 1200 - 350 - 6


@pytest.mark.parametrize(
  'message, gib, error',
  [
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required'
      ' for HLO temporaries (96.00G) exceeds available HBM (15.48G).',
      *(96, ''),
    ),
    (
      'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory'
      ' in memory space hbm. Used 20.50G of 15.48G hbm. Exceeded hbm capacity'
      ' by 5.02G.',
      *(20.5, ''),
    ),
    ('RESOURCE_EXHAUSTED: Used 512.00M of 100.00M hbm.', 0.5, ''),
    ('RESOURCE_EXHAUSTED: in vmem.', 0, 'RESOURCE_EXHAUSTED: in vmem.'),
    ('INTERNAL: a\n  check', 0, 'INTERNAL: a check'),
    ('x' * 1000, 0, 'x' * 400 + ' ...'),
  ],
)
def test_errors_of_the_compiler(monkeypatch, message, gib, error):
  class Program:
    arguments = (None, None)

    @property
    def train_step(self):
      return self

    def lower(self, *arguments):
      return self

    def compile(self, options):
      raise jax.errors.JaxRuntimeError(message)

  monkeypatch.setattr(compilers, 'build', lambda config, target: Program())
  monkeypatch.setattr(compilers, 'held', lambda program: KNOWN)
  found = compilers.compile_step(None, devices.parse('v3:2x2'))
  assert (found.error, found.estimate, found.fits) == (error, None, False)
  assert found.memory.temporaries == round(gib * GIB)
  assert found.memory.parameters == 100


def test_memory_up_to_the_usable_size_fits():
  def fits(temporaries, program=0, estimate='estimate'):
    memory = compilers.Memory(temporaries=temporaries, program=program)
    return compilers.Compiled(memory, 100, estimate).fits

  assert fits(100)
  assert not fits(101)
  # The program itself takes memory, too.
  assert not fits(90, program=11)
  # The compiler ran out of memory, and 99 are only its temporaries.
  assert not fits(99, estimate=None)


@pytest.mark.parametrize(
  'figures, name',
  [
    ({'libtpu': '0.0.50', 'jax': '0.12.0'}, 'libtpu 0.0.50, jax 0.12.0'),
    ({'gpu_compiler': 'plugin 1', 'jax': '2'}, 'plugin 1, jax 2'),
    ({'config': 'of an earlier version'}, ''),
  ],
)
def test_names_of_compilers(figures, name):
  assert compilers.named(figures) == name
