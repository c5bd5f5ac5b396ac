"""Guards: the time of hand-made programs follows the rules for TPUs."""

import pytest

from tests.plan.programs import CYCLES, counted, fused, loop, microseconds, run

EXP = fused(
  'exp',
  '%p = f32[1000]{0} parameter(0)',
  # The fusion's own cycles already include those inside it.
  'ROOT %e = f32[1000]{0} exponential(%p)' + CYCLES % 999_000,
)
EXP_CALL = '  %f = f32[1000]{0} fusion(%x), kind=kLoop, calls=%exp'


def test_loops_multiply_and_a_fusion_counts_once():
  inner = counted('inner', 5, EXP_CALL + CYCLES % 2000)
  more = '  %g = f32[1000]{0} exponential(%x)' + CYCLES % 7000
  outer = counted('outer', 3, loop('inner') + more)
  found = run(loop('outer'), EXP + inner + outer)
  # 3 x (5 x 2 + 7)
  assert microseconds(found) == {'elementwise': 51}
  rows = {(r.name, r.times, round(r.seconds * 1e6)) for r in found.rows}
  assert {('f', 15, 30), ('g', 3, 21)} <= rows
  assert found.assumptions == []


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
  body = counted('l', 9, EXP_CALL + CYCLES % 6000)
  unknown = body.replace('constant(9)', 'custom-call()')
  found = run(loop('l'), EXP + unknown)
  assert microseconds(found) == {'elementwise': 6}
  assert 'while.l' in found.assumptions[0]


def test_branches_count_by_their_mean():
  branches = ''.join(
    counted(name, 1, EXP_CALL + CYCLES % cycles)
    for name, cycles in (('a', 2000), ('b', 6000))
  )
  chosen = 'branch_computations={%a.body, %b.body}'
  lines = f'  %r = (s32[]) conditional(%zero, %x, %x), {chosen}'
  assert microseconds(run(lines, EXP + branches)) == {'elementwise': 4}


def test_what_has_no_cycles():
  found = run(
    # 4 kB written; 4 kB read and written.
    '  %r = f32[1000]{0} rng-bit-generator(%x)\n'
    '  %c = f32[1000]{0} copy(%x)\n'
    # These run beside the computation.
    '  %s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]) copy-start(%x)\n'
    '  %d = f32[1000]{0:S(1)} copy-done(%s)\n'
    '  %t = ((f32[1000]{0}), f32[10]{0:S(1)}, s32[]) slice-start(%x),'
    ' slice={[0:10]}\n'
    '  %u = f32[10]{0:S(1)} slice-done(%t)\n'
    '  %k = f32[1000]{0} custom-call(%x), custom_call_target="Mystery"'
  )
  assert microseconds(found) == {'random': 0.04, 'copies': 0.08}
  assert found.uncovered == {'custom-call': 4000}


ENCODER = 'jit(train_step)/jvp(ViT)/Transformer/encoderblock_0/'
ATTENTION = ENCODER + 'MultiHeadDotProductAttention_0/'


@pytest.mark.parametrize(
  'opcode, op_name, expected',
  [
    ('convolution(%p, %p)', ENCODER + 'MlpBlock_0/Dense_0/dot', 'matmul'),
    ('convolution(%p, %p)', ATTENTION + 'query/dot_general', 'matmul'),
    ('dot(%p, %p)', ATTENTION + 'bqhk,bthk->bhqt/dot_general', 'attention'),
    ('exponential(%p)', ATTENTION + 'exp', 'attention'),
    ('exponential(%p)', ATTENTION + 'key/add', 'elementwise'),
    ('transpose(%p)', ATTENTION + 'transpose', 'copies'),
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


GROUPS = 'replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add'


@pytest.mark.parametrize(
  'lines, expected',
  [
    # Two arrays of 4 kB and 10 kB are reduced together, at twice their bytes.
    (
      '  %c = (f32[1000]{0}, bf16[500,10]{1,0}) all-reduce(%x,'
      ' /*index=1*/%bf16), GROUPS',
      2.8,
    ),
    # 12 of the 16 gathered kB come over the links.
    ('  %c = f32[4000]{0} all-gather(%x), dimensions={0}, GROUPS', 1.2),
    # 3 of 4 quarters go over the links.
    ('  %c = f32[250]{0} reduce-scatter(%x), GROUPS', 0.3),
    ('  %c = f32[1000]{0} all-to-all(%x), GROUPS', 0.3),
    (
      '  %c = f32[1000]{0} collective-permute(%x),'
      ' source_target_pairs={{0,1},{1,0}}',
      0.4,
    ),
    (
      '  %s = (f32[1000]{0}, f32[4000]{0}) all-gather-start(%x), GROUPS\n'
      '  %d = f32[4000]{0} all-gather-done(%s)',
      1.2,
    ),
    (
      '  %s = ((f32[1000]{0}), f32[250]{0}, u32[]) async-start(%x),'
      ' calls=%scatter\n'
      '  %d = f32[250]{0} async-done(%s), calls=%scatter',
      0.3,
    ),
    # libtpu writes a reduce-scatter like this.
    (
      '  %f = f32[250]{0} fusion(%x), kind=kCustom,'
      ' calls=%all-reduce-scatter.clone.1',
      0.3,
    ),
  ],
)
def test_kinds_of_collectives(lines, expected):
  reduced = [
    '%p = f32[1000]{0} parameter(0)',
    f'ROOT %r = f32[250]{{0}} reduce-scatter(%p), {GROUPS}',
  ]
  sliced = [
    '%p = f32[1000]{0} parameter(0)',
    f'%r = f32[1000]{{0}} all-reduce(%p), {GROUPS}',
    'ROOT %s = f32[250]{0} slice(%r), slice={[0:250]}',
  ]
  computations = fused('scatter', *reduced)
  computations += fused('all-reduce-scatter.clone.1', *sliced)
  found = run(lines.replace('GROUPS', GROUPS), computations)
  assert microseconds(found) == {'collectives': expected}
  assert found.uncovered == {}


def test_a_collective_in_a_loop_counts_each_time():
  body = f'  %r = f32[1000]{{0}} all-reduce(%x), {GROUPS}'
  found = run(loop('l'), counted('l', 3, body))
  # 3 x 2 x 4 kB
  assert microseconds(found) == {'collectives': 2.4}


def test_overlapped_collectives_count_once():
  # libtpu writes this for v5e, where the gather appears in three fusions.
  gather = f'%g = f32[4000]{{0}} all-gather(%p), channel_id=7, {GROUPS}'
  parameter = '%p = f32[1000]{0} parameter(0)'
  start, end = (
    [
      parameter,
      gather,
      'ROOT %c = f32[4000]{0} custom-call(%g),'
      f' custom_call_target="AsyncCollective{name}"',
    ]
    for name in ('Start', 'Done')
  )
  beside = [parameter, '%e = f32[1000]{0} exponential(%p)', f'ROOT {gather}']
  lines = [
    '  %s = f32[4000]{0} fusion(%x), kind=kCustom, calls=%start',
    '  %m = f32[1000]{0} fusion(%x), kind=kOutput, calls=%beside'
    + CYCLES % 3000,
    '  %d = f32[4000]{0} fusion(%s), kind=kCustom, calls=%end',
    f'  %o = f32[4000]{{0}} all-gather(%x), channel_id=8, {GROUPS}',
  ]
  found = run(
    '\n'.join(lines),
    fused('start', *start) + fused('beside', *beside) + fused('end', *end),
  )
  # The product, 3 us, hides all of the first gather. The second one waits.
  assert microseconds(found) == {'collectives': 1.2, 'elementwise': 3}
  assert found.hidden_seconds == pytest.approx(1.2e-6)
  assert found.uncovered == {}


@pytest.mark.parametrize(
  'groups, size',
  [
    ('{{0,1,2,3},{4,5,6,7}}', 4),
    ('{{0,1},{2}}', 2),
    ('{}', 8),
    ('[4,2]<=[8]', 2),
    ('[2,4]<=[4,2]T(1,0)', 4),
    ("mesh['a'=2,'b'=4] {'a','b'}", 8),
    ("mesh['a'=2,'b'=4] {'b'}", 4),
    ("mesh['a'=8] {'a':(2)4}", 4),
    ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", 4),
  ],
)
def test_group_sizes(groups, size):
  found = run(
    f'  %c = f32[{size}000]{{0}} all-gather(%x), channel_id=3,'
    f' replica_groups={groups}, use_global_device_ids=true'
  )
  # All of the other devices' 4 kB arrive.
  assert microseconds(found) == {'collectives': 0.4 * (size - 1)}


@pytest.mark.parametrize(
  'kind, expected', [('ALL_REDUCE', 8), ('ALL_GATHER', 4)]
)
def test_transfers_between_slices_are_counted(kind, expected):
  attributes = (
    'channel_id=2, is_host_transfer=true, frontend_attributes={'
    '_xla_host_transfer_handler_name="xla_megascale_runtime",'
    f'_xla_megascale_transfer_type="{kind}"}}'
  )
  found = run(
    '  %token = token[] after-all()\n'
    f'  %s = (f32[1000]{{0}}, u32[], token[]) send(%x, %token), {attributes}\n'
    f'  %r = (f32[1000]{{0}}, u32[], token[]) recv(%token), {attributes}\n'
    '  %t = token[] send-done(%s), channel_id=2\n'
    '  %d = (f32[1000]{0}, token[]) recv-done(%r), channel_id=1'
  )
  assert microseconds(found) == {'collectives': expected}
  assert found.uncovered == {}
