#!/usr/bin/env bash
# Make .venv hold the tested versions and the four packages (editable): with `demo` as its argument what these need to
# run, otherwise what develops them too. Does nothing, at once, when it already does: the stamps are the hash of
# everything that decides what is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${OS:-}" == Windows_NT ]]; then bin=.venv/Scripts; else bin=.venv/bin; fi
inputs=(constraints.txt pyproject.toml packages/*/pyproject.toml scripts/venv.sh)
# cksum is POSIX; the path is part of the key because a moved virtual environment is a broken one
key="$(pwd) $(cat "${inputs[@]}" | cksum)"
holds() { [[ -f $1 && "$(cat "$1")" == "$key" ]]; }
stamp=.venv/.stamp
if holds "$stamp"; then exit 0; fi
what=("packages/prvr[encoders,plot]" --editable "packages/prvr-search[serve,milvus,otio]" --group dev)
if [[ ${1:-} == demo ]]; then
  stamp=.venv/.stamp-demo what=(packages/prvr --editable "packages/prvr-search[serve]")
  if holds "$stamp"; then exit 0; fi
fi

supported() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }
# A kill may leave a Python without pip, or with half of one; .made says that venv came to its end.
whole() { [[ -f .venv/.made || -f $stamp ]] && "$1" -c 'import pip._internal.commands.install' >/dev/null 2>&1; }
if ! supported "$bin/python" || ! whole "$bin/python"; then
  chosen=""
  for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python}; do
    if supported "$candidate"; then chosen=$candidate; break; fi
  done
  if [[ -z $chosen ]]; then
    echo "error: no Python 3.11, 3.12 or 3.13 with the venv module found (looked for: ${PYTHON:-python3, python3.11, python3.12, python3.13, python})." >&2
    echo "       Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
  fi
  echo "creating .venv with $("$chosen" --version)"
  "$chosen" -m venv --clear .venv
  touch .venv/.made
fi

pip=("$bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet --constraint constraints.txt --upgrade pip   # --group needs pip 25.1
"${pip[@]}" install --quiet --constraint constraints.txt torch           # alone and first: a failure names it
"${pip[@]}" install --quiet --constraint constraints.txt \
  --editable packages/lorentz --editable packages/regdiff --editable "${what[@]}"
printf '%s' "$key" > "$stamp"
echo ".venv is ready"
