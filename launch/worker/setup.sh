#!/usr/bin/env bash
# On a worker: unpacks ~/vit_jax_code.tar.gz and installs it for the TPU.
#
# The machine's own Python may be too old, so uv brings one. Installed are the
# versions of a lock file and nothing else; or, if WORKDIR is of a run that has
# recorded its own, exactly these and their Python, so that a run goes on with
# what it began with. A second time takes seconds.
#
#   VIT_JAX_HOME    where everything lies (~/vit_jax_home)
#   PYTHON_VERSION  which Python (3.12)
#   LOCK            a file of launch/locks by name (tpu); none: the newest
#                   versions that setup.py allows
#   EXTRAS          of the package, if LOCK=none (tpu,gcs)
#   WORKDIR         of a run that goes on, gs:// too; none unless set
#
# `ready` there says that all is done.
set -euo pipefail

home=${VIT_JAX_HOME:-$HOME/vit_jax_home}
python_version=${PYTHON_VERSION:-3.12}
lock=${LOCK:-tpu}
extras=${EXTRAS:-tpu,gcs}
workdir=${WORKDIR:-}
archive=$HOME/vit_jax_code.tar.gz
code=$home/code
python=$home/venv/bin/python
instead='To go on with the versions of the lock file instead: tpu_vm.py watch'
instead+=' --new_versions, or setup without --workdir. The run will say what'
instead+=' changed.'

fail() {
  echo "error: $HOSTNAME: $*" >&2
  exit 1
}

# Makes the virtual environment anew, unless it has that Python: 3.12, 3.12.1
bring_python() {
  local have=''
  [[ ! -x $python ]] || have=$("$python" -c 'import platform
print(platform.python_version())') || true
  [[ $have == "$1" || $have == "$1".* ]] ||
    uv venv --quiet --clear --python "$1" "$home/venv"
}

# Installs what a file of requirements says, no more, and then the code.
install_exactly() {
  uv pip sync --quiet --python "$python" "$1" &&
    uv pip install --quiet --python "$python" --no-deps --editable "$code"
}

# Prints what a run has recorded; nothing if it has not.
read_recorded() {
  "$python" -c 'import sys
from etils import epath
try:
  print(epath.Path(sys.argv[1]).read_text(), end="")
except FileNotFoundError:
  pass' "$1"
}

if systemctl is-active --quiet vit_jax 2>/dev/null; then
  fail 'a run is alive, and its code is not replaced under it. Stop it first.'
fi
if [[ -n ${EXTRAS:-} && $lock != none ]]; then
  fail "EXTRAS=$EXTRAS is for LOCK=none: launch/locks/$lock.txt has its own."
fi
mkdir -p "$home"
rm -f "$home/ready"
if [[ -f $archive ]]; then
  rm -rf "$home/code.new"
  mkdir "$home/code.new"
  tar -xzf "$archive" -C "$home/code.new"
  rm -rf "$code"
  mv "$home/code.new" "$code"
elif [[ ! -d $code ]]; then
  fail "there is no $archive."
fi
file=$code/launch/locks/$lock.txt
if [[ $lock != none && ! -f $file ]]; then
  fail "LOCK=$lock: the code has no launch/locks/$lock.txt."
fi

export UV_INSTALL_DIR=$home/bin UV_PYTHON_INSTALL_DIR=$home/python
export PATH=$UV_INSTALL_DIR:$PATH
if ! command -v uv >/dev/null; then
  curl --location --silent --show-error --fail --retry 5 \
    https://astral.sh/uv/install.sh | UV_NO_MODIFY_PATH=1 sh
fi
bring_python "$python_version"
if [[ $lock == none ]]; then
  uv pip install --quiet --python "$python" --editable "${code}[$extras]"
  installed='the newest versions'
else
  install_exactly "$file"
  installed="the versions of launch/locks/$lock.txt"
fi

if [[ -n $workdir ]]; then
  record=$workdir/requirements.txt
  # Read with what was just installed: it can reach buckets.
  text=$(read_recorded "$record") || fail "$record cannot be read. $instead"
  if [[ -z $text ]]; then
    echo "$HOSTNAME: the run has recorded no versions yet ($record)."
  elif ! grep --quiet '^libtpu==' <<<"$text"; then
    echo "$HOSTNAME: warning: $record is of a machine without a TPU, and not" \
      'what is installed here.' >&2
  else
    echo "$text" >"$home/requirements.txt"
    wanted=$(sed --quiet 's/^# Python //p' <<<"$text")
    { bring_python "${wanted:-$python_version}" &&
      install_exactly "$home/requirements.txt"; } ||
      fail "the versions that $record names cannot be installed; a release may" \
        "have been withdrawn. $instead"
    grep ', not from an index: ' <<<"$text" |
      sed "s/^#/$HOSTNAME: warning: not installed:/" >&2 || true
    installed="exactly the versions of $record"
  fi
fi
cd "$home"
"$python" -c 'from importlib.metadata import version
import platform
import sys
import vit_jax
print(platform.node() + ": ready, Python " + platform.python_version()
      + ", jax " + version("jax") + "; " + sys.argv[1])' "$installed"
touch "$home/ready"
