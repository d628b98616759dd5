"""Runs notebooks as people do: in a kernel of their own, cell by cell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"


class _Manager(AsyncKernelManager):
    """Starts the kernel of this environment, whatever is installed for the user."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
        )


def run_notebook(name: str, folder: Path, before: str = "") -> list[dict[str, Any]]:
    """Run one of the examples; a cell that raises is an error.

    Args:
        name: Its path below `examples`.
        folder: Where it runs.
        before: Code that the kernel runs first, as a cluster's notebook has a session when it opens.

    Returns:
        Of each cell of code: what it printed (`text`), and how its last line is shown (`value`).
    """
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    if before:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(before))
    client = NotebookClient(
        notebook, timeout=300, startup_timeout=300, kernel_manager_class=_Manager,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute()
    return [_outputs(cell) for cell in notebook.cells if cell.cell_type == "code"][bool(before) :]


def _outputs(cell: Any) -> dict[str, Any]:
    text = "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
    values = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return {"text": text, "value": values[0] if values else None}
