"""Runs `python -m vit_jax.main`, with some code in place of the run.

The first argument is that code: statements with `config`, `workdir`, `options`,
`errors` and `os`.
"""

import os
import runpy
import sys

from vit_jax.runtime import errors
from vit_jax.training import stages, train

code = sys.argv.pop(1)
names = {'errors': errors, 'os': os}
exec(f'def run(config, workdir, **options): {code}', names)
stages.train_stages = train.train_and_evaluate = names['run']
runpy.run_module('vit_jax.main', run_name='__main__', alter_sys=True)
