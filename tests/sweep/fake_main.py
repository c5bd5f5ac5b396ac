"""`python -m vit_jax.sweep`, but its runs cost nothing.

FAKE_SECONDS   what each takes
FAKE_FAILURES  names of runs that fail, with spaces between
"""

import os
import runpy

from tests.sweep import fakes
from vit_jax.sweep import commands

commands.command = fakes.command(
  os.environ['FAKE_SECONDS'],
  dict.fromkeys(os.environ.get('FAKE_FAILURES', '').split(), 1),
)
runpy.run_module('vit_jax.sweep', run_name='__main__', alter_sys=True)
