"""Runs `python -m vit_jax.sweep` with fake training runs, which cost nothing.

FAKE_SECONDS   duration of each run
FAKE_FAILURES  names of the runs that fail, separated by spaces
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
