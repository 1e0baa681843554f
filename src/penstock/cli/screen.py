"""The screen: tables and colour for people at a terminal, plain lines for everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.core.finding import Finding
from penstock.core.printable import printable
from penstock.core.secret import mask
from penstock.errors import FlowInvalid, PenstockError, Problem


class Screen:
    """One output stream; everything shown on it is masked and printable."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout
        self.is_terminal = bool(self._stream.isatty())
        self.console = Console(
            file=self._stream, highlight=False, soft_wrap=not self.is_terminal, force_terminal=self.is_terminal
        )

    def line(self, text: str = "", style: str = "") -> None:
        """One line."""
        shown = printable(mask(text))
        if self.is_terminal:
            self.console.print(Text(shown, style=style))
        else:
            print(shown, file=self._stream, flush=True)

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[Sequence[str]] = (), right: str = ""
    ) -> None:
        """Rows under headings; plain columns when nobody looks. `styles` are those of the cells, `right` headings of figures."""
        cells = [[printable(mask(cell)) for cell in row] for row in rows]
        if self.is_terminal:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for heading in headings:
                table.add_column(heading, overflow="fold", justify="right" if heading and heading in right else "left")
            for number, row in enumerate(cells):
                style = styles[number] if styles else [""] * len(row)
                table.add_row(*(Text(cell, style=one) for cell, one in zip(row, style, strict=True)))
            self.console.print(table)
            return
        widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
        for row in [list(headings), *cells]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=self._stream)

    def data(self, value: Any) -> None:
        """An answer for programs: one JSON document."""
        print(json.dumps(value, indent=2, ensure_ascii=False), file=self._stream)

    def finding(self, finding: Finding) -> None:
        """One line of a check, and the remedy of a bad one below it."""
        sign = "✗" if not finding.ok else "!" if finding.remedy else "✓"
        code = f" [{finding.code}]" if finding.code else ""
        detail = f": {finding.detail}" if finding.detail else ""
        self.line(f"  {sign} {finding.subject}{detail}{code}", "red" if not finding.ok else "")
        if finding.remedy:
            self.line(f"      → {finding.remedy}", "yellow")

    def problem(self, problem: Problem) -> None:
        """One problem of a flow file, and its remedy below it."""
        where = f"{problem.path}: " if problem.path else ""
        self.line(f"  ✗ {where}{problem.message}", "red")
        self.line(f"      → {problem.remedy}", "yellow")

    def error(self, error: PenstockError) -> None:
        """An error of ours: its code, what happened, and what to do."""
        self.line(f"{error.code}: {error.message}", "red")
        if isinstance(error, FlowInvalid) and len(error.problems) > 0 and error.problems[0].path:
            for problem in error.problems:
                self.problem(problem)
        self.line(f"  → {error.remedy}", "yellow")
