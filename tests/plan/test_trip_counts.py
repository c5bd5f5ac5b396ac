"""Guards: the trip counts of loops, on hand-made programs."""

import pytest

from vit_jax.plan import hlo, trip_counts


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
  return trip_counts.trip_count(module, found)


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


@pytest.mark.parametrize(
  'made',
  [
    'custom-call(%s), custom_call_target="c"',
    'conditional(%zero, %s, %s), branch_computations={%branch, %branch}',
  ],
)
def test_a_counter_that_passes_through_an_unknown_instruction(made):
  made = f'(s32[], s32[]) {made}'
  text = loop(step='get-tuple-element(%made), index=0').replace(
    '  %next =',
    '  %zero = s32[] constant(0)\n'
    '  %pair = (s32[], s32[]) tuple(%i, %n)\n'
    f'  %made = {made.replace("%s", "%pair")}\n  %next =',
  )
  branch = (
    '%branch (p: (s32[], s32[])) -> (s32[], s32[]) {\n'
    '  ROOT %p = (s32[], s32[]) parameter(0)\n}\n\n'
  )
  assert count(branch + text) is None
  # The counter is computed from a whole tuple.
  text = loop(step='custom-call(%pair), custom_call_target="c"').replace(
    '  %next =', '  %pair = (s32[], s32[]) tuple(%i, %n)\n  %next ='
  )
  assert count(text) is None
  # The unknown operation computes the initial state.
  text = loop().replace(
    '%begin = (s32[], s32[]) tuple(%start, %bound)',
    '%s = (s32[], s32[]) tuple(%start, %bound)\n  %zero = s32[] constant(0)'
    f'\n  %begin = {made}',
  )
  assert count(branch + text) is None


# A fusion with two results increments the counter, another compares it, and the
# outer loop passes on the bound of the inner one.
NESTED = """\
%add_fused (a: s32[], b: f32[]) -> (f32[], s32[]) {
  %a = s32[] parameter(0)
  %b = f32[] parameter(1)
  %three = s32[] constant({3})
  %sum = s32[] add(%a, %three)
  ROOT %t = (f32[], s32[]) tuple(%b, %sum)
}

%compare_fused (a: s32[], b: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=LT
}

%inner_condition (s: (f32[], s32[], s32[])) -> pred[] {
  %s = (f32[], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  ROOT %f = pred[] fusion(%i, %n), kind=kLoop, calls=%compare_fused
}

%inner_body (s: (f32[], s32[], s32[])) -> (f32[], s32[], s32[]) {
  %s = (f32[], s32[], s32[]) parameter(0)
  %x = f32[] get-tuple-element(%s), index=0
  %i = s32[] get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  %f = (f32[], s32[]) fusion(%i, %x), kind=kLoop, calls=%add_fused
  %y = f32[] get-tuple-element(%f), index=0
  %j = s32[] get-tuple-element(%f), index=1
  %j_start = (s32[], s32[], u32[]) copy-start(%j)
  %j_done = s32[] copy-done(%j_start)
  ROOT %t = (f32[], s32[], s32[]) tuple(%y, %j_done, %n)
}

%outer_condition (s: (s32[], s32[], f32[])) -> pred[] {
  %s = (s32[], s32[], f32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %two = s32[] constant(2)
  ROOT %c = pred[] compare(%i, %two), direction=LT
}

%outer_body (s: (s32[], s32[], f32[])) -> (s32[], s32[], f32[]) {
  %s = (s32[], s32[], f32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %x = f32[] get-tuple-element(%s), index=2
  %zero = s32[] constant(0)
  %begin = (f32[], s32[], s32[]) tuple(%x, %zero, %BOUND)
  %inner = (f32[], s32[], s32[]) while(%begin), condition=%inner_condition, body=%inner_body
  %y = f32[] get-tuple-element(%inner), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %t = (s32[], s32[], f32[]) tuple(%j, %n, %y)
}

ENTRY %main (x: f32[]) -> (s32[], s32[], f32[]) {
  %x = f32[] parameter(0)
  %zero = s32[] constant(0)
  %bound = s32[] constant(10)
  %begin = (s32[], s32[], f32[]) tuple(%zero, %bound, %x)
  ROOT %outer = (s32[], s32[], f32[]) while(%begin), condition=%outer_condition, body=%outer_body
}
"""  # noqa: E501


def nested_counts(bound):
  module = hlo.parse(NESTED.replace('%BOUND', bound))
  loops = [
    i for c in module.computations.values() for i in c if i.opcode == 'while'
  ]
  return {i.name: trip_counts.trip_count(module, i) for i in loops}


def test_a_bound_from_outside_the_outer_loop():
  # 0, 3, 6, 9
  assert nested_counts('%n') == {'inner': 4, 'outer': 2}


def test_a_bound_that_the_outer_loop_changes_is_not_known():
  assert nested_counts('%i') == {'inner': None, 'outer': 2}


# The loop's state contains the step and the growth of the step.
GROWING = """\
%condition (s: (s32[], s32[], s32[])) -> pred[] {
  %s = (s32[], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(10)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

%body (s: (s32[], s32[], s32[])) -> (s32[], s32[], s32[]) {
  %s = (s32[], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %step = s32[] get-tuple-element(%s), index=1
  %growth = s32[] get-tuple-element(%s), index=2
  %j = s32[] add(%i, %step)
  %next = s32[] add(%step, %growth)
  ROOT %t = (s32[], s32[], s32[]) tuple(%j, %next, %growth)
}

ENTRY %main (x: f32[]) -> (s32[], s32[], s32[]) {
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %begin = (s32[], s32[], s32[]) tuple(%zero, %one, %one)
  %first = (s32[], s32[], s32[]) while(%begin), condition=%condition, body=%body
  %start = s32[] get-tuple-element(%first), index=INDEX
  %again = (s32[], s32[], s32[]) tuple(%zero, %one, %start)
  ROOT %second = (s32[], s32[], s32[]) while(%again), condition=%condition, body=%body
}
"""  # noqa: E501


@pytest.mark.parametrize('index, second', [(2, 4), (1, None)])
def test_a_step_in_the_state_of_the_loop(index, second):
  module = hlo.parse(GROWING.replace('INDEX', str(index)))
  counts = {
    i.name: trip_counts.trip_count(module, i)
    for i in module.entry
    if i.opcode == 'while'
  }
  # The counter is 0, 1, 3, 6, (10). The growth of the second loop is a value
  # that the first loop left unchanged (index 2) or changed (index 1).
  assert counts == {'first': 4, 'second': second}
