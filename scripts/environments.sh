# Sourced by scripts that test in environments of their own.
python=${PYTHON:-python3}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

prepare() { # LOCK FOLDER
  cmp --silent "$1" "$2/installed.lock" && return
  say "installing $1 in $2 (a minute or more)"
  rm -rf "$2"
  "$python" -m venv "$2"
  "$2/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$1"
  cp "$1" "$2/installed.lock" # last: an installation that was interrupted is repeated
}
