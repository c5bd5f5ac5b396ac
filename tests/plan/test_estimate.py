"""Guards: the step-time estimate follows its rules on hand-made programs."""

import pytest

from tests.plan.programs import CYCLES, counted, fused, loop, microseconds, run

EXP = fused(
  'exp',
  '%p = f32[1000]{0} parameter(0)',
  # The fusion's own cycles already include those inside it.
  'ROOT %e = f32[1000]{0} exponential(%p)' + CYCLES % 999_000,
)
EXP_CALL = '  %f = f32[1000]{0} fusion(%x), kind=kLoop, calls=%exp'


def test_a_fusion_counts_once_with_its_own_cycles():
  found = run(EXP_CALL + CYCLES % 5000, EXP)
  assert microseconds(found) == {'elementwise': 5}
  assert found.seconds == pytest.approx(5e-6)
  assert found.uncovered == {}
  assert found.assumptions == []


def test_nested_loops_multiply():
  inner = counted('inner', 5, EXP_CALL + CYCLES % 2000)
  more = '  %g = f32[1000]{0} exponential(%x)' + CYCLES % 7000
  outer = counted('outer', 3, loop('inner') + more)
  found = run(loop('outer'), EXP + inner + outer)
  # 3 x (5 x 2 + 7)
  assert microseconds(found) == {'elementwise': 51}
  rows = {(r.name, r.times, round(r.seconds * 1e6)) for r in found.rows}
  assert {('f', 15, 30), ('g', 3, 21)} <= rows


KERNEL = (
  '  %k = bf16[500,10]{1,0} custom-call(%x), custom_call_target='
  '"tpu_custom_call", metadata={op_name="jit(f)/OP"}, backend_config='
  '{"custom_call_config":{"body":"TUzvUgFN","cost_estimate":{"flops":FLOPS,'
  '"transcendentals":5,"bytes_accessed":BYTES}}}'
)


@pytest.mark.parametrize(
  'flops, bytes_, expected', [(3_000_000, 100_000, 3), (100, 400_000, 4)]
)
def test_a_kernels_time_follows_from_its_stated_cost(flops, bytes_, expected):
  line = KERNEL.replace('FLOPS', str(flops)).replace('BYTES', str(bytes_))
  found = run(line)
  assert microseconds(found) == {'other': expected}
  assert 'kernels' in found.assumptions[0]


def test_copies_beside_the_computation_take_no_time():
  lines = (
    '  %s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]) copy-start(%x)\n'
    '  %d = f32[1000]{0:S(1)} copy-done(%s)\n'
    '  %t = ((f32[1000]{0}), f32[10]{0:S(1)}, s32[]) slice-start(%x),'
    ' slice={[0:10]}\n'
    '  %e = f32[10]{0:S(1)} slice-done(%t)'
  )
  found = run(lines)
  assert found.seconds == 0
  assert found.overlapped_bytes == 4040
  assert found.uncovered == {}


UNKNOWN = """
%c (s: (s32[])) -> pred[] {
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(9)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

%b (s: (s32[])) -> (s32[]) {
  %s = (s32[]) parameter(0)
  %x = f32[1000]{0} constant({...})
  %e = f32[1000]{0} exponential(%x)CYCLES
  ROOT %t = (s32[]) custom-call(%e), custom_call_target="Mystery"
}
"""
UNKNOWN_LOOP = (
  '  %begin = (s32[]) tuple(%zero)\n'
  '  %w = (s32[]) while(%begin), condition=%c, body=%b,'
  ' metadata={op_name="jit(f)/search"}'
)


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
  found = run(UNKNOWN_LOOP, UNKNOWN.replace('CYCLES', CYCLES % 6000))
  assert microseconds(found) == {'elementwise': 6}
  assert 'w (jit(f)/search)' in found.assumptions[0]


def test_the_longest_branch_is_taken():
  branches = ''.join(
    fused(
      name,
      '%p = f32[1000]{0} parameter(0)',
      'ROOT %e = f32[1000]{0} exponential(%p)' + CYCLES % cycles,
    )
    for name, cycles in (('short', 1000), ('long', 8000), ('middle', 3000))
  )
  line = (
    '  %c = f32[1000]{0} conditional(%zero, %x, %x, %x),'
    ' branch_computations={%short, %long, %middle}'
  )
  found = run(line, branches)
  assert microseconds(found) == {'elementwise': 8}
  assert 'branches of c' in found.assumptions[0]


ENCODER = 'jit(train_step)/jvp(ViT)/Transformer/encoderblock_0/'
ATTENTION = ENCODER + 'MultiHeadDotProductAttention_0/'


@pytest.mark.parametrize(
  'opcode, op_name, expected',
  [
    ('convolution(%p, %p)', ENCODER + 'MlpBlock_0/Dense_0/dot', 'matmul'),
    ('convolution(%p, %p)', ATTENTION + 'query/dot_general', 'matmul'),
    ('dot(%p, %p)', ATTENTION + 'out/dot_general', 'matmul'),
    ('dot(%p, %p)', ATTENTION + 'bqhk,bthk->bhqt/dot_general', 'attention'),
    ('exponential(%p)', ATTENTION + 'exp', 'attention'),
    ('exponential(%p)', ATTENTION + 'key/add', 'elementwise'),
    ('tanh(%p)', ENCODER + 'MlpBlock_0/tanh', 'elementwise'),
    ('transpose(%p)', ATTENTION + 'transpose', 'copies'),
    ('dynamic-slice(%p)', ENCODER + 'while/body/slice', 'copies'),
    ('xor(%p, %p)', ENCODER + 'Dropout_0/random_bits/xor', 'random'),
    ('rng-bit-generator(%p)', 'jit(f)/anything', 'random'),
  ],
)
def test_a_fusion_is_classed_by_what_it_contains(opcode, op_name, expected):
  name = f', metadata={{op_name="{op_name}"}}'
  inside = fused(
    'inside',
    '%p = f32[1000]{0} parameter(0)',
    # A fusion is not always named after its product.
    f'%o = f32[1000]{{0}} {opcode}{name}',
    'ROOT %b = f32[1000]{0} bitcast(%o)',
  )
  outside = '' if opcode.startswith(('convolution', 'dot(')) else name
  call = '  %f = f32[1000]{0} fusion(%x), kind=kOutput, calls=%inside'
  found = run(call + outside + CYCLES % 1000, inside)
  assert microseconds(found) == {expected: 1}


def test_classes_add_up():
  lines = (
    '  %e = f32[1000]{0} exponential(%x)'
    + CYCLES % 1500
    + '\n  %s = f32[1000]{0} sort(%x), to_apply=%less'
    + CYCLES % 2500
    + '\n  %r = f32[1000]{0} all-reduce(%x), replica_groups={}, to_apply=%add'
  )
  found = run(lines)
  assert microseconds(found) == {
    'elementwise': 1.5,
    'other': 2.5,
    'collectives': 0.8,
  }
  assert found.seconds == pytest.approx(4.8e-6)
