"""A notebook in a process of its own: reads steps as JSON from stdin, prints what each cell showed.

Jupyter's client leaves threads, sockets and warnings behind, which tests must not. A step is ``{"run": source}``, with
``"interrupt_at": text`` to interrupt the cell once it has shown that text; ``{"restart": true}``; or ``{"book":
sources}``, which runs a whole notebook with nbclient. Output of a cell is filed under the cell that the kernel names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import nbclient
import nbformat
from jupyter_client.manager import KernelManager

_PATIENCE_S = 60


class Notebook:
    """A kernel, and what each cell has shown."""

    def __init__(self) -> None:
        self.kernel: Any = KernelManager()
        self.shown: list[str] = []
        self._cells: dict[str, int] = {}  # by the id of its message, unique until the kernel restarts
        self.kernel.start_kernel()
        self._connect()

    def _connect(self) -> None:
        self.client: Any = self.kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_PATIENCE_S)

    def run(self, source: str, interrupt_at: str = "") -> None:
        """Run a cell until the kernel is idle again."""
        cell = self.client.execute(source)
        number = self._cells[cell] = len(self.shown)
        self.shown.append("")
        while True:
            message = self.client.get_iopub_msg(timeout=_PATIENCE_S)
            kind, content, parent = message["msg_type"], message["content"], message["parent_header"].get("msg_id")
            if kind == "stream":
                self.shown[self._cells[parent]] += content["text"]
            elif kind == "error":
                self.shown[self._cells[parent]] += f"{content['ename']}: {content['evalue']}\n"
            elif kind == "status" and content["execution_state"] == "idle" and parent == cell:
                return
            if interrupt_at and interrupt_at in self.shown[number]:
                interrupt_at = ""
                self.kernel.interrupt_kernel()

    def restart(self) -> None:
        """Restart the kernel, as the button of the notebook does."""
        self.client.stop_channels()
        self.kernel.restart_kernel(now=False)
        self._cells.clear()
        self._connect()

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.kernel.shutdown_kernel(now=False)


def run_book(sources: list[str]) -> list[str]:
    """Run a notebook from its first cell to its last, as `jupyter execute` does."""
    made: Any = nbformat.v4
    book = made.new_notebook(cells=[made.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(book, timeout=_PATIENCE_S, kernel_name="python3").execute()
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in book.cells]


def main() -> None:
    """Carry out the steps."""
    steps = json.load(sys.stdin)
    if "book" in steps[0]:
        print(json.dumps(run_book(steps[0]["book"])))
        return
    notebook = Notebook()
    try:
        for step in steps:
            if "restart" in step:
                notebook.restart()
            else:
                notebook.run(step["run"], step.get("interrupt_at", ""))
    finally:
        notebook.close()
    print(json.dumps(notebook.shown))


if __name__ == "__main__":
    main()
