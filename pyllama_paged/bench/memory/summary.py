"""The result in the terminal: the verdicts first, then the tables."""

from __future__ import annotations

from ...cli import looks
from . import tables

__all__ = ["draw", "show"]

_STYLE = {"gain": "[green]gain[/]", "loss": "[red]LOSS[/]", "level": "level", "unknown": "[dim]unknown[/]"}


def draw(out, table: tables.Table) -> None:
    from rich import box
    from rich.table import Table

    drawn = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, caption=looks.clean(table.note).replace("[", "\\[") or None, caption_justify="left")
    for i, column in enumerate(table.columns):
        drawn.add_column(looks.clean(column), justify="right" if i else "left", no_wrap=i > 0)
    for row in table.rows:
        drawn.add_row(*(looks.clean(cell).replace("[", "\\[") for cell in row))
    out.print(drawn)


def show(result: dict) -> None:
    out = looks.console()
    if not out.is_terminal:
        out.width = 160                         # a file or a pipe has room
    for name, words in tables.about(result):
        out.print(f"[bold]{name:10}[/] {looks.clean(words)}", soft_wrap=True)
    out.print()
    for v in result["verdicts"]:
        if v["answer"] != "unknown":
            out.print(f"{_STYLE[v['answer']]:6}  {looks.clean(v['words'])}", soft_wrap=True)
    missing = sum(v["answer"] == "unknown" for v in result["verdicts"])
    if missing:
        out.print(f"[dim]{missing} questions are open: a rival was not run (see the tables).[/]")
    out.print()
    draw(out, tables.held_table(result))
    for table in tables.detail_tables(result):
        if not table.title.startswith("The whole process"):             # long; the page has it
            draw(out, table)
