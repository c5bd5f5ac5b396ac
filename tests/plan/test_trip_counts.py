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
