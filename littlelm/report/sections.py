"""The report's sections: HTML from what a run directory holds."""

from __future__ import annotations

import html
import shlex
from collections import Counter
from typing import Any

from littlelm import units
from littlelm.plan.flops import formula_of
from littlelm.report.charts import NARROW, WIDE, Curve, line_chart
from littlelm.report.contents import RunContents
from littlelm.train.ledger import WRITE_SECONDS

_PART_MEANING = {
    "train": "forward, backward, optimizer",
    "compile": "the first step, which compiles",
    "data_wait": "waiting for the next rows",
    "evaluate": "bits per byte",
    "checkpoint": "saving",
    "sample": "continuing prompts",
    "report": "writing this page",
    "prepare": "tokenizing and packing, or finding it done",
    "startup": "imports, building the model, measuring the peak",
    "lost": "steps that a kill made to be done again",
}


def text(value: Any) -> str:
    """A value as HTML text; control characters, which HTML forbids, as a replacement character."""
    printable = "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in str(value))
    return html.escape(printable)


def _card(label: str, value: str, note: str, main: bool = False) -> str:
    kind = "card main" if main else "card"
    return f'<div class="{kind}"><dt>{text(label)}</dt><dd>{text(value)}</dd><p>{text(note)}</p></div>'


def state(run: RunContents) -> str:
    """One word on whether the run is complete, as a badge."""
    if run.complete:
        return f'<span class="badge done">complete, {run.step:,} steps</span>'
    total = "" if run.total_steps is None else f" of {run.total_steps:,} ({run.step / run.total_steps:.0%})"
    return f'<span class="badge">step {run.step:,}{total}</span>'


def device(run: RunContents) -> str:
    """`8 x NVIDIA B200`, `AMD EPYC, 2 threads`, or nothing where no environment is recorded."""
    gpus, cpu = run.environment.get("gpus") or [], run.environment.get("cpu") or {}
    if gpus and (run.config is None or run.config.train.device != "cpu"):
        return f"{run.world_size} x {gpus[0]['name']}"
    processes = f"{run.world_size} processes on " if run.world_size > 1 else ""
    return f"{processes}{cpu['model']}, {cpu.get('torch_threads', '?')} threads" if cpu.get("model") else ""


def headline(run: RunContents) -> str:
    """The numbers a reader looks for first."""
    cards = []
    if run.evals:
        last, best = run.evals[-1], min(run.evals, key=lambda record: record["bits_per_byte"])
        note = f"validation, {last['bytes']:,} bytes" if "bytes" in last else "validation"
        if best["bits_per_byte"] < last["bits_per_byte"]:
            note += f"; best {best['bits_per_byte']:.4f} at {units.human(best['tokens'])} tokens"
        cards.append(_card("bits per byte", f"{last['bits_per_byte']:.4f}", note, main=True))
    else:
        loss = next((r["loss"] for r in reversed(run.train) if r.get("loss") is not None), None)
        cards.append(_card("training loss", "–" if loss is None else f"{loss:.4f}", "not evaluated yet", main=True))
    if run.cores:
        last = run.cores[-1]
        name = "CORE (estimate)" if last["name"] == "core_est" else "CORE"
        note = f"± {last['core_v1_error']:.4f}, v1; v2 {last['core_v2']:.4f}; {last['items']:,} items"
        cards.append(_card(name, f"{last['core_v1']:.4f}", note))
    speed = run.median("tokens_per_second")
    if speed is not None:
        overall = f"; {run.tokens / run.seconds:,.0f} with all that is not training" if run.seconds else ""
        cards.append(_card("tokens/s", f"{speed:,.0f}", f"median step{overall}"))
    mfu = run.median("mfu")
    if mfu is not None and run.facts.get("peak_flops"):
        peak = run.facts["peak_flops"] * run.world_size
        cards.append(_card("MFU", f"{mfu:.1%}", f"of {units.flops(peak)}/s; formula below"))
    elif mfu is not None:
        cards.append(_card("MFU", f"{mfu:.1%}", "median step"))
    if run.parameters is not None:
        roles = run.facts.get("parameters_by_role") or {}
        matrices = f"{units.human(roles['matrix'])} in matrices" if roles.get("matrix") else ""
        cards.append(_card("parameters", units.human(run.parameters), matrices))
    ratio = f"{run.tokens / run.parameters:.3g} a parameter" if run.parameters else ""
    cards.append(_card("tokens", units.human(run.tokens), ratio))
    if run.seconds:
        restarts = len(run.sessions) - 1
        note = "" if restarts < 1 else f"{restarts} restart{'s' if restarts > 1 else ''}"
        cards.append(_card("time", units.duration(run.seconds), note or "one session"))
    if run.usd is not None:
        per_hour = run.sessions[-1].get("usd_per_hour")
        cards.append(_card("cost", units.usd(run.usd), f"at {units.usd(per_hour)} an hour" if per_hour else ""))
    return "".join(cards)


def _tokens(records: list[dict[str, Any]]) -> list[float]:
    return [record["tokens"] for record in records]


def validation_chart(run: RunContents) -> str:
    """Bits per byte over tokens, drawn twice: for a page and for a phone."""
    if not run.evals:
        return '<p class="empty">No evaluation yet: the validation curve appears with the first.</p>'
    curve = Curve("bits per byte", _tokens(run.evals), [record["bits_per_byte"] for record in run.evals])
    wide, narrow = (
        line_chart("validation bits per byte", [curve], size, "{:.4g}".format, format_last="{:.4f}".format)
        for size in (WIDE, NARROW)
    )
    return f'<div class="chart wide">{wide}</div><div class="chart narrow">{narrow}</div>'


def core_chart(run: RunContents) -> str:
    """CORE over tokens, where it was evaluated more than once."""
    if len(run.cores) < 2:
        return ""
    curve = Curve("CORE", _tokens(run.cores), [record["core_v1"] for record in run.cores])
    wide, narrow = (
        line_chart("CORE (v1)", [curve], size, "{:.3g}".format, format_last="{:.4f}".format) for size in (WIDE, NARROW)
    )
    return f'<section><div class="chart wide">{wide}</div><div class="chart narrow">{narrow}</div></section>'


def learning_rates(records: list[dict[str, Any]]) -> list[Curve]:
    """A curve for each role; roles that share one are named together."""
    keys = sorted({key for record in records for key in record if key.startswith("lr_")}) or ["lr"]
    by_values: dict[tuple[Any, ...], list[str]] = {}
    for key in keys:
        by_values.setdefault(tuple(record.get(key) for record in records), []).append(key.removeprefix("lr_"))
    x = _tokens(records)
    return [Curve(", ".join(names).replace("_", " "), x, values) for values, names in by_values.items()]


def training_charts(run: RunContents) -> str:
    """Loss, learning rate, tokens/s and gradient norm as small pictures."""
    records = run.train
    if len(records) < 2:
        return '<p class="empty">The training curves appear with the second step.</p>'

    def of(key: str, label: str, smooth: bool = True) -> list[Curve]:
        return [Curve(label, _tokens(records), [record.get(key) for record in records], smooth=smooth)]

    charts = [
        line_chart("training loss (nats a token)", of("loss", "loss"), NARROW, "{:.3g}".format, cut_start=True),
        line_chart("learning rate", learning_rates(records), NARROW, "{:.2g}".format, from_zero=True),
        line_chart("tokens/s", of("tokens_per_second", "tokens/s"), NARROW, from_zero=True),
        line_chart("gradient norm, before clipping", of("grad_norm", "norm"), NARROW, "{:.3g}".format, from_zero=True),
    ]
    skipped = [record["step"] for record in records if record.get("skipped")]
    note = ""
    if skipped:
        which = ", ".join(map(str, skipped[:10])) + (", ..." if len(skipped) > 10 else "")
        note = f'<p class="warning">Skipped for a loss or gradient that is not finite: step {which}.</p>'
    caption = '<p class="note">Lines are means of neighbouring steps, bands reach from the least to the greatest.</p>'
    return note + '<div class="grid">' + "".join(f'<div class="chart">{c}</div>' for c in charts) + "</div>" + caption


def time_and_money(run: RunContents) -> str:
    """A bar and a table of the parts, which add up to the whole."""
    whole = run.seconds
    if not whole:
        return '<p class="empty">No ledger yet.</p>'
    priced = run.usd is not None
    bar, rows = [], []
    for index, part in enumerate(run.parts):
        share = part.seconds / whole
        colour = f"--series-{index + 1}" if index < 5 else "--series-6"
        bar.append(f'<i style="width:{share * 100:.3f}%;background:var({colour})"></i>')
        cost = "" if not priced else f"<td>{'–' if part.usd is None else text(units.usd(part.usd))}</td>"
        rows.append(
            f'<tr><th><b class="dot" style="background:var({colour})"></b>{text(part.name.replace("_", " "))}'
            f"<small>{text(_PART_MEANING.get(part.name, ''))}</small></th>"
            f"<td>{text(units.duration(part.seconds))}</td><td>{share:.1%}</td>{cost}</tr>"
        )
    total = f"<td>{text(units.usd(run.usd))}</td>" if run.usd is not None else ""
    rows.append(f'<tr class="sum"><th>in all</th><td>{text(units.duration(whole))}</td><td>100.0%</td>{total}</tr>')
    note = ""
    if run.killed_sessions:
        many = f"{run.killed_sessions} session{'s were' if run.killed_sessions > 1 else ' was'}"
        note = f'<p class="note">{many} killed: up to {WRITE_SECONDS:.0f} s before each kill are not in this sum.</p>'
    head = "<th>part</th><th>time</th><th>share</th>" + ("<th>cost</th>" if priced else "")
    return (
        f'<div class="bar">{"".join(bar)}</div>'
        f'<table class="parts"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>{note}'
    )


def samples(run: RunContents) -> str:
    """The newest continuation of each prompt, the earlier ones folded away."""
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for record in run.of_kind("sample"):
        by_prompt.setdefault(record["prompt"], []).append(record)
    if not by_prompt:
        return '<p class="empty">No samples yet.</p>'
    blocks = []
    for prompt, records in by_prompt.items():
        newest, earlier = records[-1], records[-2::-1]
        folded = "".join(f"<p><small>step {r['step']:,}</small> {text(r['text'])}</p>" for r in earlier)
        more = f"<details><summary>{len(earlier)} earlier</summary>{folded}</details>" if earlier else ""
        blocks.append(
            f"<blockquote><p><mark>{text(prompt)}</mark>{text(newest['text'])}</p>"
            f"<footer>step {newest['step']:,}, after {units.human(newest['tokens'])} tokens</footer>{more}</blockquote>"
        )
    return "".join(blocks)


def meaning(run: RunContents) -> str:
    """How the headline's numbers are defined and where their constants are from."""
    facts = run.facts
    items = [
        "<b>Bits per byte</b> = −Σ log₂ p(token) over the validation set ÷ UTF-8 bytes of those tokens, so that models "
        "with different tokenizers compare. Tokens that stand for no text are in neither sum."
    ]
    if run.evals:
        last = run.evals[-1]
        items.append(
            f"<b>Validation set</b>: {last.get('targets', 0):,} tokens, {last.get('bytes', 0):,} bytes, sha256 "
            f"<code>{text(last.get('validation_sha256', ''))[:16]}</code>."
        )
    formula = facts.get("flops_formula") or (formula_of(run.config.model) if run.config is not None else None)
    if facts.get("flops_per_token"):
        counted = "" if formula is None else f"{text(formula.replace(' x ', ' × '))} = "
        items.append(
            "<b>MFU</b> = FLOPs a token × tokens/s ÷ peak. FLOPs a token = "
            f"{counted}{text(units.flops(facts['flops_per_token']))}."
        )
    if facts.get("peak_flops"):
        many = f" × {run.world_size} processes" if run.world_size > 1 else ""
        items.append(
            f"<b>Peak</b>: {text(units.flops(facts['peak_flops']))}/s{many}, {text(facts.get('peak_source', ''))}."
        )
    if facts.get("precision"):
        items.append(f"<b>Precision</b>: {text(facts['precision'])}.")
    if facts.get("parameters_by_role"):
        roles = ", ".join(
            f"{units.human(count)} {role.replace('_', ' ')}" for role, count in facts["parameters_by_role"].items()
        )
        items.append(f"<b>Parameters</b>: {text(roles)}.")
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def environment(run: RunContents) -> str:
    """Versions, code and machine as a table."""
    rows = []
    for key, value in run.environment.items():
        if key in ("schema_version", "run") or value in (None, [], {}):
            continue
        if isinstance(value, dict):
            shown = ", ".join(
                f"{name.replace('_', ' ')} {' '.join(item) if isinstance(item, list) else item}"
                for name, item in value.items()
            )
        elif key == "gpus":
            counts = Counter(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in value)
            shown = ", ".join(f"{count} x {name}" for name, count in counts.items())
        elif isinstance(value, list):
            shown = shlex.join(map(str, value))
        else:
            shown = ("no", "yes")[value] if isinstance(value, bool) else str(value)
        rows.append(f"<tr><th>{text(key.replace('_', ' '))}</th><td>{text(shown)}</td></tr>")
    return f'<table class="facts">{"".join(rows)}</table>' if rows else '<p class="empty">Not recorded.</p>'


def next_commands(run: RunContents) -> str:
    """What to type next, ready to copy."""
    directory = shlex.quote(str(run.directory))
    commands = []
    if not run.complete:
        commands.append((f"little-lm train {directory}", "go on from the newest checkpoint"))
    if any((run.directory / "checkpoints").glob("step-*")):
        commands.append((f'little-lm sample {directory} --prompt "The meaning of life is"', "let it write"))
    if (run.directory / "tensorboard").is_dir():
        commands.append((f"tensorboard --logdir {directory}/tensorboard", "every curve; needs nothing but a browser"))
    commands.append((f"little-lm config diff {directory} other.yaml", "what another file would change, and cost"))
    return "".join(f"<dt><code>{text(command)}</code></dt><dd>{text(why)}</dd>" for command, why in commands)
