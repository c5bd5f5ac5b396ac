#!/usr/bin/env bash
# On a worker: unpacks ~/vit_jax_code.tar.gz and installs it for the TPU.
#
# The machine's own Python may be too old, so uv installs one. The script then
# installs exactly the versions of a lock file. If the run of WORKDIR has
# recorded its versions, the script installs exactly these and their Python
# instead, so that the run resumes with the versions it began with. A second
# set-up takes seconds.
#
#   VIT_JAX_HOME    folder of all files (~/vit_jax_home)
#   PYTHON_VERSION  version of Python (3.12)
#   LOCK            name of a file in launch/locks (tpu); none: the newest
#                   versions that setup.py allows
#   EXTRAS          extras of the package, only for LOCK=none (tpu,gcs)
#   WORKDIR         work directory of a run that continues, which may be gs://
#                   (not set: none)
#
# The file `ready` in VIT_JAX_HOME means that the set-up is complete.
set -euo pipefail

home=${VIT_JAX_HOME:-$HOME/vit_jax_home}
python_version=${PYTHON_VERSION:-3.12}
lock=${LOCK:-tpu}
extras=${EXTRAS:-tpu,gcs}
workdir=${WORKDIR:-}
archive=$HOME/vit_jax_code.tar.gz
code=$home/code
python=$home/venv/bin/python
instead='To go on with the versions of the lock file instead, use tpu_vm.py'
instead+=' watch --new_versions, or setup without --workdir. The run then warns'
instead+=' which versions changed.'

fail() {
  echo "error: $HOSTNAME: $*" >&2
  exit 1
}

# bring_python VERSION: recreates the virtual environment unless it has this
# Python, such as 3.12 or 3.12.1.
bring_python() {
  local have=''
  [[ ! -x $python ]] || have=$("$python" -c 'import platform
print(platform.python_version())') || true
  [[ $have == "$1" || $have == "$1".* ]] ||
    uv venv --quiet --clear --python "$1" "$home/venv"
}

# install_exactly FILE: installs exactly these requirements, and then the code.
install_exactly() {
  uv pip sync --quiet --python "$python" "$1" &&
    uv pip install --quiet --python "$python" --no-deps --editable "$code"
}

# read_recorded FILE: prints the versions that a run has recorded, if any.
read_recorded() {
  "$python" -c 'import sys
from etils import epath
try:
  print(epath.Path(sys.argv[1]).read_text(), end="")
except FileNotFoundError:
  pass' "$1"
}

if systemctl is-active --quiet vit_jax 2>/dev/null; then
  fail 'a run is alive, so its code cannot be replaced. Stop the run first.'
fi
if [[ -n ${EXTRAS:-} && $lock != none ]]; then
  fail "EXTRAS=$EXTRAS is for LOCK=none only: launch/locks/$lock.txt fixes" \
    'the extras.'
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
  fail "there is no $archive, so there is no code to install."
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
  # The record may be in a bucket, which the packages installed above can read.
  text=$(read_recorded "$record") || fail "$record cannot be read. $instead"
  if [[ -z $text ]]; then
    echo "$HOSTNAME: the run has recorded no versions yet ($record)."
  elif ! grep --quiet '^libtpu==' <<<"$text"; then
    echo "$HOSTNAME: warning: $record was written on a machine without a TPU," \
      'so its versions are not installed here.' >&2
  else
    echo "$text" >"$home/requirements.txt"
    wanted=$(sed --quiet 's/^# Python //p' <<<"$text")
    { bring_python "${wanted:-$python_version}" &&
      install_exactly "$home/requirements.txt"; } ||
      fail "the versions in $record cannot be installed; a release may be" \
        "withdrawn. $instead"
    grep ', not from an index' <<<"$text" |
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
