"""SBOM, audit and licences of the locked packages. Works offline.

    python -m tools.dependencies sbom [FILE]
    python -m tools.dependencies audit [--advisories DIRECTORY]
    python -m tools.dependencies licences

The data comes from `requirements/serve.lock`, the metadata of the installed packages and
`[tool.wopr.dependencies]` of `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from packaging.markers import Marker
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements" / "serve.lock"
PROJECT: Final = "wopr (pyproject.toml)"

_ENTRY: Final = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)\s*(?:;\s*([^\\]+?))?\s*\\?"
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA: Final = re.compile(r"#\s+(?:via\s+)?(\S.*)")
# SPDX licences by the names that packages without a licence expression use.
_SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_EXPRESSION: Final = re.compile(r"\(|\)|[A-Za-z0-9.+-]+")


@dataclass(slots=True)
class LockedPackage:
    """One entry of the lock."""

    name: str
    version: str
    marker: str = ""
    hashes: list[str] = field(default_factory=list[str])
    needed_by: list[str] = field(default_factory=list[str])

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.')}"

    @property
    def is_for_this_platform(self) -> bool:
        """Return whether the entry applies to this interpreter and operating system."""
        return not self.marker or Marker(self.marker).evaluate()

    @property
    def installed(self) -> metadata.Distribution | None:
        """The installed package of this name, in any version."""
        try:
            return metadata.distribution(self.name)
        except metadata.PackageNotFoundError:
            return None


def read_lock(text: str) -> list[LockedPackage]:
    """Return the entries of a lock, in its order."""
    entries: list[LockedPackage] = []
    is_comment_of_entry = False
    for line in text.splitlines():
        if found := _ENTRY.fullmatch(line):
            name, version, marker = found.groups()
            entries.append(LockedPackage(canonicalize_name(name), version, (marker or "").strip()))
            is_comment_of_entry = True
        elif found := _HASH.search(line):
            entries[-1].hashes.append(found[1])
        elif is_comment_of_entry and (found := _VIA.search(line)):
            needed_by = found[1].strip()
            if needed_by != "via" and not needed_by.startswith("-c "):
                entries[-1].needed_by.append(needed_by)
    return entries


def read_configuration() -> dict[str, Any]:
    """Return the settings of `pyproject.toml` about dependencies."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = document["tool"]["wopr"]["dependencies"]
    return found


# Licences


def licence_of(entry: LockedPackage, overrides: Mapping[str, str]) -> str:
    """Return a package's licence as an SPDX expression; empty if its metadata names none."""
    if entry.name in overrides:
        return overrides[entry.name]
    installed = entry.installed
    if installed is None:
        return ""
    # The published type has fewer methods than the object.
    fields = cast("Message", installed.metadata)
    if expression := fields.get("License-Expression"):
        return expression
    # Some packages have the whole licence text here. Its first line is the name.
    text = (fields.get("License") or "").strip().partition("\n")[0]
    if (known := _SPDX.get(text, text)) != "UNKNOWN" and _is_expression(known):
        return known
    named = [
        each.rpartition(" :: ")[2]
        for each in fields.get_all("Classifier") or []
        if each.startswith("License :: ")
    ]
    found = [_SPDX[name] for name in named if name in _SPDX]
    return " OR ".join(found) if found and len(found) == len(named) else ""


def _is_expression(text: str) -> bool:
    words = [word for word in text.split() if word not in ("AND", "OR", "WITH")]
    return bool(words) and all(re.fullmatch(r"\(*[A-Z0-9][A-Za-z0-9.+-]*\)*", w) for w in words)


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Return whether allowed licences satisfy an SPDX expression."""
    tokens = _EXPRESSION.findall(expression)
    tokens.reverse()
    is_met = _meets_alternative(tokens, allowed)
    return is_met and not tokens


def _meets_alternative(tokens: list[str], allowed: frozenset[str]) -> bool:
    is_met = _meets_all(tokens, allowed)
    while tokens and tokens[-1] == "OR":
        tokens.pop()
        other = _meets_all(tokens, allowed)
        is_met = is_met or other
    return is_met


def _meets_all(tokens: list[str], allowed: frozenset[str]) -> bool:
    is_met = _meets_term(tokens, allowed)
    while tokens and tokens[-1] == "AND":
        tokens.pop()
        other = _meets_term(tokens, allowed)
        is_met = is_met and other
    return is_met


def _meets_term(tokens: list[str], allowed: frozenset[str]) -> bool:
    if not tokens:
        return False
    token = tokens.pop()
    if token == "(":
        is_met = _meets_alternative(tokens, allowed)
        return bool(tokens) and tokens.pop() == ")" and is_met
    if tokens[-1:] == ["WITH"]:
        tokens.pop()
        token = f"{token} WITH {tokens.pop() if tokens else ''}"
    return token in allowed


def check_licences(entries: Sequence[LockedPackage], settings: Mapping[str, Any]) -> list[str]:
    """Print the licence of every package, and return the licences that are missing or not allowed."""
    allowed = frozenset(settings["allowed-licences"])
    faults: list[str] = []
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        licence = licence_of(entry, settings["licences"])
        print(f"{entry.name:<{width}}  {entry.version:<12}  {licence or _unknown_licence(entry)}")
        if not licence and entry.is_for_this_platform:
            faults.append(f"{entry.name} {entry.version}: the metadata names no licence")
        elif licence and not is_allowed(licence, allowed):
            faults.append(f"{entry.name} {entry.version}: {licence} is not an allowed licence")
    return faults


def _unknown_licence(entry: LockedPackage) -> str:
    return "unknown" if entry.is_for_this_platform else "unknown (not for this platform)"


# Audit


@dataclass(frozen=True, slots=True)
class Advisory:
    """One OSV advisory about one package."""

    advisory_id: str
    package: str
    summary: str
    versions: frozenset[str]
    ranges: tuple[tuple[tuple[str, str], ...], ...]

    def affects(self, version: str) -> bool:
        """Return whether the advisory lists a version, or a range contains it."""
        return version in self.versions or any(_is_within(version, each) for each in self.ranges)


def _is_within(version: str, events: Sequence[tuple[str, str]]) -> bool:
    """Apply the events of a range in order: introduced, fixed, last affected."""
    at = Version(version)
    is_affected = False
    for kind, text in sorted(events, key=lambda event: _bound_version(event[1])):
        bound = _bound_version(text)
        if kind == "introduced" and at >= bound:
            is_affected = True
        elif (kind in ("fixed", "limit") and at >= bound) or (
            kind == "last_affected" and at > bound
        ):
            is_affected = False
    return is_affected


def _bound_version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        # An invalid bound counts as 0, so that a person checks the package.
        return Version("0")


def read_advisories(directory: Path) -> tuple[list[Advisory], list[str]]:
    """Read OSV documents: JSON files and zip archives of JSON files, at any depth.

    The second list has an error for each file that is not an OSV document.
    """
    found: list[Advisory] = []
    faults: list[str] = []
    for name, content in _json_files(directory):
        try:
            found += _advisories(_document(content))
        except KeyError as missing:
            faults.append(f"{name}: this is not an OSV document, {missing} is missing")
        except (AttributeError, TypeError, ValueError) as fault:
            faults.append(f"{name}: {fault}")
    return found, faults


def _json_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".json":
            yield str(path), path.read_bytes()
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".json"):
                        yield f"{path}/{name}", archive.read(name)


def _document(content: bytes) -> Mapping[str, Any]:
    expected = "expected a JSON object, an OSV document"
    try:
        document: Any = json.loads(content)
    except ValueError as fault:
        raise ValueError(f"{expected}: {fault}") from fault
    if not isinstance(document, dict):
        raise TypeError(f"{expected}, not a {type(document).__name__}")
    return cast("dict[str, Any]", document)


def _advisories(document: Mapping[str, Any]) -> Iterator[Advisory]:
    if document.get("withdrawn"):
        return
    for affected in document.get("affected", ()):
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI":
            continue
        ranges = [each for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM"]
        yield Advisory(
            advisory_id=document["id"],
            package=canonicalize_name(package["name"]),
            summary=document.get("summary", ""),
            versions=frozenset(affected.get("versions", ())),
            ranges=tuple(
                tuple((kind, str(bound)) for e in each["events"] for kind, bound in e.items())
                for each in ranges
            ),
        )


def audit(
    entries: Sequence[LockedPackage], settings: Mapping[str, Any], advisories: Path | None
) -> list[str]:
    """Compare the lock with the installed packages and with advisories; return the problems."""
    faults = [fault for entry in entries for fault in _integrity(entry)]
    here = sum(entry.is_for_this_platform for entry in entries)
    print(
        f"{len(entries)} locked packages, {here} for this platform: checked that each locked "
        "package has a hash and that the installed versions are the locked ones; installed files "
        "were not hashed"
    )
    if advisories is None:
        print(
            "No advisory data was given, so only integrity was checked, and NOT known vulnerabilities "
            "and yanked releases. Give a directory of OSV documents: "
            "make audit ADVISORIES=directory"
        )
        return faults
    known, unread = read_advisories(advisories)
    faults += unread
    if not known and not unread:
        return [*faults, f"{advisories} contains no advisories about PyPI packages"]
    yanked = _read_yanked(advisories)
    print(f"checked {len(known)} advisories and {len(yanked)} yanked releases")
    ignored: Mapping[str, str] = settings["ignored-advisories"]
    by_package: dict[str, list[Advisory]] = {}
    for each in known:
        by_package.setdefault(each.package, []).append(each)
    for entry in entries:
        if (entry.name, entry.version) in yanked:
            faults.append(f"{entry.name} {entry.version} was yanked")
        for each in by_package.get(entry.name, ()):
            if not each.affects(entry.version):
                continue
            if each.advisory_id in ignored:
                print(f"{each.advisory_id} is ignored: {ignored[each.advisory_id]}")
                continue
            faults.append(
                f"{entry.name} {entry.version}: {each.advisory_id} {each.summary}".strip()
            )
    return faults


def _integrity(entry: LockedPackage) -> Iterator[str]:
    if not entry.hashes:
        yield f"{entry.name} {entry.version} has no hash in the lock"
    if not entry.is_for_this_platform:
        return
    installed = entry.installed
    if installed is None:
        yield f"{entry.name} {entry.version} is locked but not installed"
    elif installed.version != entry.version:
        yield f"{entry.name} {installed.version} is installed, but {entry.version} is locked"


def _read_yanked(directory: Path) -> set[tuple[str, str]]:
    """Return the releases in `yanked.txt`, one `name==version` per line."""
    file = directory / "yanked.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.strip().split("==", 1) for line in lines if "==" in line)
    return {(canonicalize_name(name), version) for name, version in pairs}


# SBOM


def create_sbom(entries: Sequence[LockedPackage], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a CycloneDX 1.6 document. The same lock and packages give the same document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": own,
            },
        },
        "components": [_component(entry, settings["licences"]) for entry in entries],
        "dependencies": _graph(own, entries),
    }
    if moment := os.environ.get("SOURCE_DATE_EPOCH"):
        document["metadata"]["timestamp"] = datetime.fromtimestamp(int(moment), UTC).isoformat()
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return document


def _component(entry: LockedPackage, overrides: Mapping[str, str]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": entry.purl,
        "name": entry.name,
        "version": entry.version,
        "scope": "required",
        # Every file that the lock accepts: the sources and a wheel per platform.
        "hashes": [{"alg": "SHA-256", "content": each} for each in entry.hashes],
        "purl": entry.purl,
    }
    installed = entry.installed
    if installed is not None and installed.version == entry.version:
        licence = licence_of(entry, overrides)
        if licence:
            component["licenses"] = [{"expression": licence}]
    if entry.marker:
        component["properties"] = [{"name": "wopr:marker", "value": entry.marker}]
    return component


def _graph(own: str, entries: Sequence[LockedPackage]) -> list[dict[str, Any]]:
    """Return the dependencies between packages, from the comments of the lock."""
    references: dict[str, list[str]] = {PROJECT: [own]}
    for entry in entries:
        references.setdefault(entry.name, []).append(entry.purl)
    needs: dict[str, set[str]] = {ref: set() for refs in references.values() for ref in refs}
    for entry in entries:
        for name in entry.needed_by:
            # A group of `pyproject.toml`, such as the one that builds the project, is the project.
            key = PROJECT if name.startswith("wopr") else canonicalize_name(name)
            for reference in references.get(key, ()):
                needs[reference].add(entry.purl)
    return [{"ref": ref, "dependsOn": sorted(needed)} for ref, needed in sorted(needs.items())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; the exit code is 1 if there are problems."""
    parser = argparse.ArgumentParser(prog="python -m tools.dependencies", description=__doc__)
    parser.add_argument("command", choices=("sbom", "audit", "licences"))
    parser.add_argument("file", nargs="?", type=Path, help="the file to write the SBOM to")
    parser.add_argument("--advisories", type=Path, help="a directory of OSV documents")
    parser.add_argument("--lock", type=Path, default=LOCK)
    given = parser.parse_args(arguments)
    entries = read_lock(given.lock.read_text())
    settings = read_configuration()
    if given.command == "sbom":
        return _write(create_sbom(entries, settings), given.file)
    if given.command == "audit":
        faults = audit(entries, settings, given.advisories)
    else:
        faults = check_licences(entries, settings)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(faults)} problems" if faults else "no problems")
    return 1 if faults else 0


def _write(document: dict[str, Any], file: Path | None) -> int:
    text = json.dumps(document, indent=2) + "\n"
    if file is None:
        sys.stdout.write(text)
        return 0
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"{file}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
