"""What is in the wheels: `python tools/sbom.py FOLDER` writes FOLDER/ringcore.cdx.json, in the form of CycloneDX.

Of each wheel: its hash, its licence, the compiled libraries in it, and what pip installs with it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from email.message import Message
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

# Distribution -> of what headers there is code in its libraries, and under which licence.
_HEADERS = {"ringcore": ("nanobind", "BSD-3-Clause"), "ringcore-jax": ("jaxlib", "Apache-2.0")}


def main(folder: Path) -> None:
    """Write the list of all wheels of a folder.

    Raises:
        SystemExit: A wheel has no licence, or something compiled that its licence says nothing of.
    """
    wheels = sorted(folder.glob("*.whl"))
    described = [_described(wheel) for wheel in wheels]
    ours = {component.name for component, _ in described}
    # The same list for the same wheels.
    digest = hashlib.sha256(b"".join(hashlib.sha256(wheel.read_bytes()).digest() for wheel in wheels)).digest()
    bom = Bom(serial_number=uuid.UUID(bytes=digest[:16]), components=[component for component, _ in described])
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
    required = {name: _of_pypi(name) for _, needs in described for name in needs if name not in ours}
    for component in required.values():
        bom.components.add(component)
    for component, needs in described:
        own = [other for other, _ in described if other.name in needs]
        bom.register_dependency(component, [*own, *(required[name] for name in needs if name not in ours)])
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None or not ours:
        sys.exit(f"the list of what is in {folder} is none: {problem or 'there are no wheels'}")
    (folder / "ringcore.cdx.json").write_text(text + "\n")
    print(f"{len(ours)} distributions and {len(bom.components) - len(ours)} that they need: {folder}/ringcore.cdx.json")


def _described(wheel: Path) -> tuple[Component, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(metadata).decode())
        compiled = {name: archive.read(name) for name in names if name.endswith((".so", ".a")) or ".so." in name}
    licence, named = told["License-Expression"], told.get_all("License-File", [])
    folder = metadata.removesuffix("METADATA")
    missing = [name for name in named if f"{folder}licenses/{name}" not in names]
    if not licence or not named or missing:
        sys.exit(f"{wheel.name} says no licence, or lacks its text: {licence}, {named}, {missing}")
    # What auditwheel takes from the system has a licence of its own.
    foreign = [name for name in compiled if ".libs/" in name]
    if foreign:
        sys.exit(f"{wheel.name} brings libraries of others: {', '.join(foreign)}")
    parts = [
        Component(name=name, type=ComponentType.FILE, bom_ref=f"{wheel.name}/{name}", hashes=[_hash(data)],
                  licenses=[LicenseExpression(licence)])
        for name, data in sorted(compiled.items())
    ]  # fmt: skip
    if told["Name"] in _HEADERS:
        name, its_licence = _HEADERS[told["Name"]]
        if its_licence != licence and f"{folder}licenses/{name}/LICENSE" not in names:
            sys.exit(f"{wheel.name} is compiled with {name}, and lacks the text of its licence, {its_licence}")
        parts.append(
            Component(name=name, version=version(name), type=ComponentType.LIBRARY, bom_ref=f"{wheel.name}/{name}",
                      purl=PackageURL("pypi", name=name, version=version(name)),
                      licenses=[LicenseExpression(its_licence)])
        )  # fmt: skip
    component = Component(
        name=told["Name"], version=told["Version"], type=ComponentType.LIBRARY,
        bom_ref=wheel.name, purl=PackageURL("pypi", name=told["Name"], version=told["Version"]),
        licenses=[LicenseExpression(licence)], hashes=[_hash(wheel.read_bytes())],
        components=parts,
    )  # fmt: skip
    return component, sorted(set(_required(told)))


def _required(told: Message) -> Iterator[str]:
    """The names of what is installed with it without being asked for."""
    for text in told.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _of_pypi(name: str) -> Component:
    return Component(name=name, type=ComponentType.LIBRARY, bom_ref=name, purl=PackageURL("pypi", name=name))


def _hash(data: bytes) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
