"""
The result as one HTML file that needs nothing else: plots (matplotlib, extra `[bench]`) are inside it as SVG.

Colours follow the sides everywhere; paged is the dark one. Without matplotlib the page has its tables and says so.
"""

from __future__ import annotations

import html
import io
import re

from . import tables

__all__ = ["have_plots", "page"]

_COLOURS = {"paged": "#0b6e4f", "max": "#c44536", "pow2": "#e08e45", "oracle": "#b8a04a", "lazy": "#5b7db1", "llama": "#7a4f9a", "unified": "#b48fcf",
            "faster-transformer": "#888888", "orca-max": "#c44536", "orca-pow2": "#e08e45", "orca-oracle": "#b8a04a"}
_PARTS = (("tokens", "#0b6e4f", "token state"), ("reserved", "#8fc1a9", "reserved for tokens to come"), ("internal", "#e3a857", "internal: never used"),
          ("external", "#c9c9c9", "external: free or not usable"))
_STYLE = """
:root { color-scheme: light; } body { font: 15px/1.5 system-ui, sans-serif; color: #1c2321; background: #fff; max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin: 0 0 .2em; } h2 { font-size: 1.15em; margin: 2em 0 .4em; } p.sub { color: #5b6562; margin: .2em 0 1em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; font-size: .92em; } dt { color: #5b6562; } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .88em; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e8e6; } th { color: #5b6562; font-weight: 600; }
th:first-child, td:first-child { text-align: left; } ul.verdicts { list-style: none; padding: 0; } ul.verdicts li { padding: .2em 0 .2em 5.2em; text-indent: -5.2em; }
.tag { display: inline-block; width: 4.2em; margin-right: 1em; text-align: center; text-indent: 0; border-radius: 3px; font-size: .82em; font-weight: 600; color: #fff; }
.gain { background: #0b6e4f; } .loss { background: #b3261e; } .level { background: #7b8783; } .unknown { background: #c9cfcc; color: #333; }
figure { margin: 1em 0; } figure svg { max-width: 100%; height: auto; } figcaption, p.note { color: #5b6562; font-size: .88em; } details { margin: 1em 0; }
"""


def have_plots() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def page(result: dict) -> str:
    say = html.escape
    about = "".join(f"<dt>{say(k)}</dt><dd>{say(v)}</dd>" for k, v in tables.about(result))
    counts = {a: sum(v["answer"] == a for v in result["verdicts"]) for a in ("gain", "level", "loss", "unknown")}
    tally = f"{counts['gain']} gains, {counts['level']} level, {counts['loss']} losses, {counts['unknown']} open"
    verdicts = "".join(f'<li><span class="tag {v["answer"]}">{v["answer"]}</span>{say(v["words"])}</li>' for v in result["verdicts"] if v["answer"] != "unknown")
    open_ones = "".join(f"<li>{say(v['words'])}</li>" for v in result["verdicts"] if v["answer"] == "unknown")
    parts = [f"<h1>Memory of a language model: what paging brings on this device</h1><p class=sub>{say(result['model']['name'])} &middot; "
             f"{say(result['device']['device'] or result['machine']['cpu'])} &middot; {say(result['date'])}</p>",
             f"<dl>{about}</dl>", f"<h2>Which gains travelled</h2><p class=sub>{tally}. A difference within the spread, or under 5 %, is level.</p>"
             f"<ul class=verdicts>{verdicts}</ul>", f"<details><summary>Open questions</summary><ul>{open_ones}</ul></details>" if open_ones else ""]
    if have_plots():
        parts += [f"<h2>{say(title)}</h2><figure>{svg}<figcaption>{say(caption)}</figcaption></figure>" for title, svg, caption in _plots(result)]
    else:
        parts.append("<p class=note>Plots need matplotlib: pip install 'pyllama_paged[bench]', then pyllama-paged bench report DIR.</p>")
    parts += [_table(tables.held_table(result))]
    for table in tables.detail_tables(result):
        drawn = _table(table)
        parts.append(f"<details><summary>{say(table.title)}</summary>{drawn}</details>" if len(table.rows) > 30 else drawn)
    return (f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Memory benchmark</title>"
            f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def _table(t: tables.Table) -> str:
    say = html.escape
    head = "".join(f"<th>{say(c)}</th>" for c in t.columns)
    body = "".join("<tr>" + "".join(f"<td>{say(cell)}</td>" for cell in row) + "</tr>" for row in t.rows)
    note = f"<p class=note>{say(t.note)}</p>" if t.note else ""
    return f"<h2>{say(t.title)}</h2><div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"


# ---- plots

def _plots(result: dict) -> list[tuple[str, str, str]]:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "font.family": "sans-serif",
                            "svg.hashsalt": "pyllama_paged", "axes.axisbelow": True})
    rows, out = result["rows"], []
    for draw in (_over_time, _figure2, _churn, _per_session, _one_word, _price):
        figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
        drawn = draw(rows, axes)
        if drawn:
            out.append((drawn[0], _svg(figure), drawn[1]))
        pyplot.close(figure)
    return out


def _svg(figure) -> str:
    """Without XML head, and with ids that do not meet those of the page's other plots."""
    _svg.count = getattr(_svg, "count", 0) + 1
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()[file.getvalue().index("<svg"):]
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>p{_svg.count}", text)


def _plain(axis) -> None:
    """A logarithmic axis with numbers that people read: 10, 100, 1,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def _median(figure):
    return figure["median"] if isinstance(figure, dict) else figure


def _over_time(rows, axes):
    shown = [(side, row["timeline"]) for side in ("max", "llama", "lazy", "paged") if (row := rows.get(f"give back {side}")) and row.get("timeline")]
    if not shown:
        return None
    for side, line in shown:
        base = line[0][2] or 0
        axes.plot([p[0] for p in line], [((p[2] or 0) - base) / 1e6 for p in line], color=_COLOURS[side], label=tables.NAMES[side], linewidth=2 if side == "paged" else 1.4)
    axes.set(xlabel="seconds", ylabel="MB beyond the start", ylim=(0, None))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return "Memory over time", "Eight sessions grow in turns, every second one closes, then the rest: anonymous memory of the process, sampled from outside."


def _bars(axes, labels, shares) -> None:
    left = [0.0] * len(labels)
    for key, colour, name in _PARTS:
        values = [s[key] for s in shares]
        axes.barh(labels, values, left=left, color=colour, label=name, edgecolor="white", linewidth=0.5)
        for i, v in enumerate(values):
            if v > 4:
                axes.text(left[i] + v / 2, i, f"{v:.1f}", ha="center", va="center", fontsize=8, color="white" if key == "tokens" else "#222")
        left = [a + b for a, b in zip(left, values)]
    axes.set(xlim=(0, 100), xlabel="percent")
    axes.invert_yaxis()
    axes.legend(frameon=False, ncols=2, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.16))


def _figure2(rows, axes):
    if "simulated" not in rows:
        return None
    labels, shares = [], []
    for system, s in rows["simulated"]["systems"].items():
        labels.append(tables.NAMES[system])
        shares.append({k: s[k] for k, _, _ in _PARTS})
        if system in rows["simulated"]["paper"]:
            paper = rows["simulated"]["paper"][system]
            labels.append(f"{tables.NAMES[system]}, the paper" if system != "paged" else "vLLM, the paper")
            shares.append({k: paper.get(k, 0.0) for k, _, _ in _PARTS})
    axes.figure.set_size_inches(9, 4.2)
    _bars(axes, labels, shares)
    return "Where KV memory goes: simulated beside the paper's Figure 2", "OPT-13B, 40 GB, ShareGPT-like lengths. For vLLM the paper gives the token state alone."


def _churn(rows, axes):
    some = [r for r in rows.values() if r.get("scenario") == "churn" and "tokens" in r]
    some = [r for r in some if r["variant"] == some[0]["variant"]]
    if not some:
        return None
    _bars(axes, [tables.NAMES[r["side"]] for r in some], [{k: max(0.0, _median(r[k])) for k, _, _ in _PARTS} for r in some])
    return f"The same, measured on this device: {some[0]['variant']} requests under one budget", \
        "Real allocations through the same kernels. For paged, external is memory that is free for anybody."


def _per_session(rows, axes):
    variants = list(dict.fromkeys(r["variant"] for r in rows.values() if r.get("scenario") == "sessions" and "marks" in r))
    if not variants:
        return None
    for side in ("max", "lazy", "oracle", "paged", "llama", "unified"):
        row = rows.get(f"sessions {variants[-1]} {side}")
        if not row or "marks" not in row:
            continue
        points = sorted((int(label.split()[0]), mark) for label, mark in row["marks"].items() if label.endswith(" sessions"))
        base = _median(row["marks"]["launched"].get("anonymous", row["marks"]["launched"].get("footprint")))
        ys = [(_median(m.get("anonymous", m.get("footprint"))) - base) / 1e6 for _, m in points]
        axes.plot([n for n, _ in points], ys, marker="o", markersize=4, color=_COLOURS[side], label=tables.NAMES[side], linewidth=2 if side == "paged" else 1.4)
    axes.set(xlabel="sessions", ylabel="MB", yscale="log")
    _plain(axes.yaxis)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return f"Sessions that share a system prompt ({variants[-1]} tokens)", "Anonymous memory beyond the interpreter, logarithmic. llama.cpp's caches are made for a number of sequences: one point."


def _one_word(rows, axes):
    some = [r for r in rows.values() if r.get("scenario") == "one word" and "held" in r]
    if not some:
        return None
    for side in ("max", "llama", "lazy", "paged"):
        points = sorted((r["context"], _median(r["held"]) / 1e6) for r in some if r["side"] == side)
        if points:
            axes.plot(*zip(*points), marker="o", markersize=4, color=_COLOURS[side], label=tables.NAMES[side], linewidth=2 if side == "paged" else 1.4)
    axes.set(xlabel="context limit, tokens", ylabel="MB", yscale="log", xscale="log")
    axes.set_xticks(sorted({r["context"] for r in some}), [f"{r // 1024}k" for r in sorted({r["context"] for r in some})])
    axes.minorticks_off()
    _plain(axes.yaxis)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return "A one-word prompt", "Anonymous memory beyond the interpreter by the context limit, which is never used."


def _price(rows, axes):
    some = [r for r in rows.values() if r.get("scenario") == "price"]
    if not some:
        return None
    depths = sorted({r["depth"] for r in some})
    for i, depth in enumerate(depths):
        of = sorted((r["block"], r) for r in some if r["depth"] == depth)
        shade = 0.35 + 0.65 * (i + 1) / len(depths)
        axes.errorbar([str(b) for b, _ in of], [r["ratio"] for _, r in of], yerr=[[max(0, r["ratio"] - r["low"]) for _, r in of], [max(0, r["high"] - r["ratio"]) for _, r in of]],
                      marker="o", capsize=3, color="#0b6e4f", alpha=shade, label=f"after {depth:,}")
    axes.axhline(1.0, color="#444", linewidth=1)
    axes.axhspan(1.20, 1.26, color="#c44536", alpha=0.15, label="the paper's kernel: 1.20 to 1.26")
    axes.set(xlabel="tokens a block", ylabel="time / contiguous", ylim=(min(0.8, *(r["low"] for r in some)), max(1.3, *(r["high"] for r in some))))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return "The price in time, by block length", "A decoded token through blocks in random order over one through contiguous blocks; whole steps, not the attention kernel alone."
