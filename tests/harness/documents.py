"""A document taken apart: its code blocks and tables, each with the headings it stands under."""

import re
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINE_END = " ⏎ "  # how a table's cell writes the end of a line


@dataclass
class Block:
    language: str
    text: str
    line: int
    heading: str


@dataclass
class Row:
    cells: list[str]
    line: int


@dataclass
class Table:
    heading: str
    columns: list[str]
    rows: list[Row] = field(default_factory=list)


@dataclass
class Document:
    text: str
    blocks: list[Block]
    tables: list[Table]

    def rows(self, heading: str, first_column: str) -> list[Row]:
        """Of the one table of that heading whose first column is called so."""
        found = [t for t in self.tables if t.heading == heading and t.columns[0] == first_column]
        assert len(found) == 1, f"{len(found)} tables under {heading!r} begin with {first_column!r}"
        return found[0].rows


def code(cell: str) -> str:
    """What a cell says in its code spans; the text of a cell that has none is not code."""
    spans: list[str] = re.findall(r"(`+)(.+?)\1", cell)
    return " ".join(text for _, text in spans)


def read(path: str) -> Document:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    document = Document(text, [], [])
    heading, fence, table = "", None, None
    for number, line in enumerate(text.splitlines(), 1):
        if fence is not None:
            if line == "```":
                fence = None
            else:
                fence.text += line + "\n"
        elif line.startswith("```"):
            fence = Block(line[3:], "", number + 1, heading)
            document.blocks.append(fence)
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
        if fence is None and line.startswith("|"):
            table = _add_row(document, table, heading, number, line)
        else:
            table = None
    return document


def _add_row(
    document: Document, table: Table | None, heading: str, number: int, line: str
) -> Table:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if table is None:
        table = Table(heading, cells)
        document.tables.append(table)
    elif set(line) - set("|-: "):
        assert len(cells) == len(table.columns), f"line {number}: {len(cells)} cells"
        table.rows.append(Row(cells, number))
    return table


def source(pattern: str) -> str:
    """The program's files of that pattern, one after the other."""
    paths = sorted((REPOSITORY / "src").glob(pattern))
    assert paths, f"src/{pattern} is not there"
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
