"""Guards: the parser reads compiled HLO modules, and counts their loops."""

import pytest

from vit_jax.plan import hlo

MODULE = """\
HloModule jit_f, is_scheduled=true, replica_count=2, num_partitions=4

FileNames
1 "model.py"

%fused_computation.1 (p0: f32[8,128]) -> f32[8,128] {
  %p0 = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %exp.1 = f32[8,128]{1,0:T(8,128)} exponential(%p0), metadata={op_name="jit(f)/exp"}
}

ENTRY %main.5 (x: f32[8,128]) -> (f32[8,128], /*index=1*/s32[]) {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %limit = s32[]{:T(256)} constant(12)
  %fusion.1 = f32[8,128]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%fused_computation.1, metadata={op_name="jit(f)/a (b)/exp" stack_frame_id=7}, backend_config={"window_config":{"estimated_cycles":"1234","body":"calls=%nothing"}}
  %pair.2 = (bf16[3,5]{0,1:T(8,128)(2,1)}, (s8[9]{0:T(1024)(128)(4,1)}, /*index=1*/pred[])) custom-call(%x, %fusion.1), custom_call_target="a(b"
  ROOT %tuple.3 = (f32[8,128]{1,0}, s32[]) tuple(%fusion.1, %limit)
}
"""  # noqa: E501


def test_a_module_is_read_into_computations_and_instructions():
  module = hlo.parse(MODULE)
  assert list(module.computations) == ['fused_computation.1', 'main.5']
  assert module.entry.name == 'main.5'
  assert module.num_devices == 8
  opcodes = ['parameter', 'constant', 'fusion', 'custom-call', 'tuple']
  assert [one.opcode for one in module.entry] == opcodes
  assert module.entry.root.name == 'tuple.3'
  assert module.computations['fused_computation.1'].root.name == 'exp.1'


def test_an_instruction_knows_its_attributes():
  fusion = hlo.parse(MODULE).entry.instructions['fusion.1']
  assert fusion.estimated_cycles == 1234
  assert fusion.op_name == 'jit(f)/a (b)/exp'
  assert fusion.called == {'calls': ['fused_computation.1']}
  assert [one.name for one in fusion.operands] == ['x']
  assert [one.name for one in fusion.parts] == ['p0', 'exp.1']
  assert fusion.attribute('kind') == 'kLoop'
  assert fusion.attribute('index') is None
  assert fusion.bytes == 8 * 128 * 4


def test_brackets_in_quotes_and_nested_tuples():
  call = hlo.parse(MODULE).entry.instructions['pair.2']
  assert call.opcode == 'custom-call'
  assert [one.name for one in call.operands] == ['x', 'fusion.1']
  assert [(a.dtype, a.dims) for a in call.arrays] == [
    ('bf16', (3, 5)),
    ('s8', (9,)),
    ('pred', ()),
  ]
  assert call.bytes == 3 * 5 * 2 + 9 + 1


@pytest.mark.parametrize(
  'shape, bytes_, padded',
  [
    ('f32[8,128]{1,0:T(8,128)}', 4096, 4096),
    # The minor dimension is the 3, padded to 128; the 5 is padded to 8.
    ('bf16[3,5]{0,1:T(8,128)(2,1)}', 30, 8 * 128 * 2),
    ('bf16[2,197,384]{2,1,0:T(8,128)(2,1)}', 302592, 2 * 200 * 384 * 2),
    ('f32[100]{0:T(256)}', 400, 1024),
    ('s32[]{:T(256)}', 4, 1024),
    ('s32[]', 4, 4),
    ('f32[5]{0:T(8,128)}', 20, 4096),
    ('s4[3]', 2, 2),
    ('f8e4m3fn[7]{0}', 7, 7),
    ('f32[<=6]{0}', 24, 24),
    ('token[]', 0, 0),
  ],
)
def test_bytes(shape, bytes_, padded):
  text = (
    f'ENTRY %main (p: f32[]) -> f32[] {{\n  ROOT %p = {shape} parameter(0)\n}}'
  )
  instruction = hlo.parse(text).entry.root
  (array,) = instruction.arrays
  assert (instruction.bytes, array.padded_bytes) == (bytes_, padded)


@pytest.mark.parametrize(
  'text',
  [
    'ENTRY %m (p: f32[]) -> f32[] {\n  what is this\n}',
    'ENTRY %m () -> f32[] {\n  %a = f32[] add(%b\n}',
  ],
)
def test_text_that_is_not_a_module_is_refused(text):
  with pytest.raises(ValueError, match='HLO'):
    hlo.parse(text)


def loop(
  *,
  start='constant(0)',
  bound='constant(7)',
  direction='LT',
  step='add(%i, %one)',
  order='%i, %n',
  config='',
):
  """Returns a loop like that of `scan`, whose state has counter and bound."""
  return f"""\
%condition (s: (s32[], s32[])) -> pred[] {{
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  ROOT %less = pred[] compare({order}), direction={direction}
}}

%body (s: (s32[], s32[])) -> (s32[], s32[]) {{
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %next = s32[] {step}
  ROOT %out = (s32[], s32[]) tuple(%next, %n)
}}

ENTRY %main (p: s32[]) -> (s32[], s32[]) {{
  %p = s32[] parameter(0)
  %start = s32[] {start}
  %bound = s32[] {bound}
  %begin = (s32[], s32[]) tuple(%start, %bound)
  ROOT %while.1 = (s32[], s32[]) while(%begin), condition=%condition, body=%body{config}
}}
"""  # noqa: E501


def count(text):
  module = hlo.parse(text)
  (found,) = (i for i in module.entry if i.opcode == 'while')
  return hlo.trip_count(found)


@pytest.mark.parametrize(
  'changes, expected',
  [
    ({}, 7),  # 0, 1, ... 6
    ({'start': 'constant(2)'}, 5),  # 2, 3, ... 6
    ({'step': 'add(%i, %two)'}, 4),  # 0, 2, 4, 6
    ({'direction': 'LE'}, 8),
    ({'direction': 'NE'}, 7),
    ({'order': '%n, %i', 'direction': 'GT'}, 7),
    ({'order': '%n, %i', 'direction': 'GE'}, 8),
    ({'bound': 'constant(0)'}, 0),
    # 9, 7, 5, 3, 1, -1
    (
      {
        'start': 'constant(9)',
        'bound': 'constant(-2)',
        'step': 'subtract(%i, %two)',
        'direction': 'GT',
      },
      6,
    ),
    # 1, 2, 4, 8, 16
    (
      {
        'start': 'constant(1)',
        'bound': 'constant(20)',
        'step': 'multiply(%i, %two)',
      },
      5,
    ),
    ({'bound': 'copy(%start)', 'start': 'constant(3)'}, 0),
    ({'config': ', backend_config={"known_trip_count":{"n":"33"}}'}, 33),
  ],
)
def test_trip_count(changes, expected):
  assert count(loop(**changes)) == expected


@pytest.mark.gate
@pytest.mark.parametrize(
  'changes',
  [
    {'bound': 'copy(%p)'},
    {'step': 'remainder(%i, %two)'},
    {'step': 'copy(%i)'},  # Never ends.
    {'bound': 'constant(200000)'},
  ],
)
def test_an_unknown_trip_count_is_none(changes):
  assert count(loop(**changes)) is None
