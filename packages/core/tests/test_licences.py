"""What is installed has the licences of all that it is made of."""

from __future__ import annotations

from importlib import metadata


def test_texts_of_our_licence_and_of_the_headers_that_are_compiled_in_are_installed() -> None:
    files = metadata.files("ringcore") or []
    texts = {str(file).split("licenses/")[1]: file.read_text() for file in files if "/licenses/" in str(file)}
    assert set(texts) == {"LICENSE", "nanobind/LICENSE"}
    assert "Apache License" in texts["LICENSE"]
    assert "Redistributions in binary form must reproduce the above copyright" in texts["nanobind/LICENSE"]
