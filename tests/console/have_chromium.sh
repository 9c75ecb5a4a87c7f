#!/usr/bin/env bash
# Makes sure that there is a Chromium for the tests of the console: the system's own, from its packages.
# Without one, and without the means to install it, those tests are skipped; in CI that is a failure.
set -euo pipefail

have() {
  for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && return 0
  done
  return 1
}

if have; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi

if ! command -v apt-get >/dev/null; then
  why="this system has no apt-get"
elif ! "${as_root[@]}" true 2>/dev/null; then
  why="installing it needs root, or a sudo that asks for no password"
else
  echo "installing chromium for the tests of the console"
  # The variable is set behind sudo, which would not hand it on.
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  "${apt[@]}" update || true
  # Not every system has the package without windows.
  for package in chromium-headless-shell chromium; do
    if "${apt[@]}" install -y --no-install-recommends "$package" fonts-dejavu-core >/dev/null && have; then exit 0; fi
  done
  why="apt-get could not install it"
fi

cat >&2 <<SAID
There is no chromium: $why.
The browser tests will be skipped. To have them, install it and run the tests again:
  sudo apt-get install chromium fonts-dejavu-core
SAID
if [ "${CI:-}" = "true" ]; then
  echo "In CI they must not be skipped." >&2
  exit 1
fi
