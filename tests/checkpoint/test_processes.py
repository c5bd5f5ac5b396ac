"""Guards: two real processes save, fall back and resume together."""

from tests import several


def test_two_processes(tmp_path):
  words = [[str(tmp_path / 'run')]] * 2
  module = 'tests.checkpoint.two_processes'
  with several.Several(tmp_path, module, words, devices=2) as run:
    codes = run.codes(120)
    for index, code in enumerate(codes):
      assert code == 0, run.output(index)[-3000:]
      assert 'All is well.' in run.output(index)
