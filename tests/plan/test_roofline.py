"""Guards: the time of hand-made GPU programs is their roofline."""

import pytest

from tests.plan.programs import GPU, counted, fused, loop, microseconds, run


def test_a_kernel_reads_each_operand_once_and_writes_its_result():
  add = fused(
    'add',
    '%p = f32[1000]{0} parameter(0)',
    '%q = f32[1000]{0} parameter(1)',
    'ROOT %e = f32[1000]{0} add(%p, %q)',
  )
  line = '  %f = f32[1000]{0} fusion(%x, %x), kind=kLoop, calls=%add'
  found = run(line, add, GPU)
  assert microseconds(found) == {'elementwise': 0.08}  # 2 x 4 kB


def test_slices_and_updates_in_place_move_only_their_part():
  # The scan over layers reads a layer of parameters, and writes one of
  # gradients: 4 kB each in both directions, 7 times.
  one = fused(
    'one',
    '%p = f32[100,1000]{1,0} parameter(0)',
    '%i = s32[] parameter(1)',
    '%s = f32[1,1000]{1,0} dynamic-slice(%p, %i, %i)',
    'ROOT %e = f32[1,1000]{1,0} negate(%s)',
  )
  two = fused(
    'two',
    '%p = f32[100,1000]{1,0} parameter(0)',
    '%v = f32[1,1000]{1,0} parameter(1)',
    '%i = s32[] parameter(2)',
    'ROOT %u = f32[100,1000]{1,0} dynamic-update-slice(%p, %v, %i, %i)',
  )
  body = (
    '  %f = f32[1,1000]{1,0} fusion(%y, %i), kind=kLoop, calls=%one\n'
    '  %g = f32[100,1000]{1,0} fusion(%y, %f, %i), kind=kLoop, calls=%two'
  )
  found = run(loop('layers'), one + two + counted('layers', 7, body), GPU)
  # The loop's counter moves a few bytes, too.
  assert found.seconds == pytest.approx(7 * 4 * 0.04e-6, rel=0.02)


GEMM = (
  '  %g = (TYPE[1000,2000]{1,0}, s8[4194304]{0}) custom-call(%l, %r),'
  ' custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_'
  'config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
  '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]}}}'
)


@pytest.mark.parametrize('dtype, peaks', [('bf16', 1), ('f32', 2), ('s8', 0.5)])
def test_a_product_is_bound_by_arithmetic_or_memory(dtype, peaks):
  arrays = (
    f'  %l = {dtype}[1000,5000]{{1,0}} parameter(3)\n'
    f'  %r = {dtype}[5000,2000]{{1,0}} parameter(4)\n'
  )
  found = run(arrays + GEMM.replace('TYPE', dtype), chip=GPU)
  # 2 x 1000 x 2000 x 5000 operations; working space counts nothing.
  assert microseconds(found) == {'matmul': 20_000 * peaks}
  # Without a sum, 4 MFLOP take less than to read 10 kB and write 4 MB.
  narrow = GEMM.replace('["1"]', '[]').replace('(%l, %r)', '(%bf16, %bf16)')
  found = run(narrow.replace('TYPE', 'bf16'), chip=GPU)
  assert microseconds(found) == {'matmul': 40.1}


@pytest.mark.parametrize(
  'target, operands, result',
  [
    ('Forward', '%i, %k', '%r = (bf16[2,8,8,16]{3,2,1,0}, u8[9]{0})'),
    ('BackwardInput', '%o, %k', '%r = (bf16[2,8,8,4]{3,2,1,0}, u8[9]{0})'),
    ('BackwardFilter', '%i, %o', '%r = (bf16[16,3,3,4]{3,2,1,0}, u8[9]{0})'),
  ],
)
def test_a_convolution_and_its_gradients_have_equal_operations(
  target, operands, result
):
  line = (
    '  %i = bf16[2,8,8,4]{3,2,1,0} parameter(3)\n'
    '  %k = bf16[16,3,3,4]{3,2,1,0} parameter(4)\n'
    '  %o = bf16[2,8,8,16]{3,2,1,0} parameter(5)\n'
    f'  {result} custom-call({operands}), window={{size=3x3 pad=1_1x1_1}},'
    f' dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv{target}"'
  )
  found = run(line, chip=GPU)
  assert microseconds(found) == {'matmul': 2 * 2 * 8 * 8 * 16 * 9 * 4 / 1e6}


@pytest.mark.parametrize('backward, products', [('', 2), ('Backward', 5)])
def test_attention_has_two_products_and_five_in_its_gradient(
  backward, products
):
  line = (
    '  %q = bf16[10,200,12,64]{3,2,1,0} parameter(3)\n'
    '  %r = (bf16[10,200,12,64]{3,2,1,0}, u8[0]{0}) custom-call(%q, %q, %q),'
    f' custom_call_target="__cudnn$fmhaSoftmax{backward}"'
  )
  expected = products * 2 * 10 * 12 * 200 * 200 * 64 / 1e6
  found = run(line, chip=GPU)
  assert microseconds(found) == {'attention': pytest.approx(expected)}
