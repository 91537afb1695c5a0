"""What a report says in words, the same in every format. Every figure comes with its basis."""

from __future__ import annotations

from collections.abc import Sequence

from essm_deploy.profiling.reporting.document import Memory, Row, Run, Spread
from essm_deploy.profiling.reporting.marks import COLLAPSE, SWEET_SPOT, marks_of, retention
from essm_deploy.units import format_bytes, format_ms

NOT_MEASURED = "not measured"


def title(run: Run) -> str:
    """Of which model, on what."""
    return f"{run.model.name or 'Budgets'} on {run.target}"


def full_title(run: Run) -> str:
    """With the name of the requirement, which tells runs on one target apart."""
    return f"{title(run)}, {run.requirement}" if run.requirement else title(run)


def common_title(runs: Sequence[Run]) -> str:
    """Of several runs: the model, if it is one, and every target."""
    models = {run.model.name for run in runs if run.model.name}
    targets = ", ".join(dict.fromkeys(run.target for run in runs))
    return f"{models.pop() if len(models) == 1 else 'Budgets'} on {targets}"


def headline(run: Run) -> str:
    """The answer in one sentence."""
    name = run.chosen.name if run.chosen else ""
    if run.status == "failed":
        return f"Failed: {run.message or 'the document does not say why'}"
    if run.status == "nothing_fits" or not name:
        reason = run.message or "no budget meets every limit"
        return f"Nothing fits: {reason}" if run.status == "nothing_fits" else f"No answer: {reason}"
    if run.status == "estimated":
        return f"{name} is the largest budget that meets every limit by estimate; nothing was measured"
    if run.status == "inconclusive" and not run.certain:
        return f"Inconclusive: {name}, the smallest budget, may or may not meet every limit; {run.message}"
    if run.status == "inconclusive":
        return f"{name} is the largest budget that surely meets every limit; a larger one cannot be told: {run.message}"
    if not limits_words(run):
        return f"No limit was set: {name} is the largest budget"
    return f"{name} is the largest budget that meets every limit"


def limits_words(run: Run) -> list[str]:
    """Each limit that was set."""
    limits, statistic = run.limits, statistic_of(run)
    words = []
    if limits.max_latency_ms is not None:
        words.append(f"{statistic} at most {format_ms(limits.max_latency_ms)}")
    if limits.max_memory_bytes is not None:
        words.append(f"memory at most {format_bytes(limits.max_memory_bytes)}")
    if limits.min_quality is not None:
        words.append(f"quality {limits.min_quality:.4g} or better")
    if limits.min_retention is not None:
        words.append(f"at least {limits.min_retention:.1%} of the full budget's quality")
    return words


def statistic_of(run: Run) -> str:
    """The percentile that decides; "latency" where nothing was measured."""
    measured = (row.latency_ms for row in run.candidates if row.latency_ms and row.latency_ms.basis == "measured")
    found = next(measured, None)
    return found.statistic if found else "latency"


def boundary(run: Run) -> str:
    """What one call is."""
    kinds = {"stream": "one step of the stream", "sequence": "one call over the whole sequence"}
    call = kinds.get(run.kind or "", run.kind or "one call")
    pace = next((row.latency_ms.pace_ms for row in run.candidates if row.latency_ms and row.latency_ms.pace_ms), None)
    call += f" every {format_ms(pace)}" if pace else ""
    stated = run.environment.boundary if run.environment else None
    return f"{call}, {stated}" if stated else call


def latency_words(row: Row) -> str:
    """The deciding statistic with its bounds, in one clause."""
    latency, value = row.latency_ms, row.milliseconds
    if latency is None or value is None:
        return f"latency {NOT_MEASURED}"
    if latency.basis == "estimated":
        return f"{format_ms(value)} (estimated)"
    calls = "" if latency.samples is None else f", {latency.samples:,} calls"
    confidence = "" if latency.confidence is None else f" with {100 * latency.confidence:.4g}% confidence"
    low = "no lower bound" if latency.lower is None else f"at least {format_ms(latency.lower)}"
    high = "no upper bound" if latency.upper is None else f"at most {format_ms(latency.upper)}"
    return f"{latency.statistic} {format_ms(value)}, {low} and {high}{confidence} (measured{calls})"


def memory_name(rows: Sequence[Row]) -> str:
    """The quantity that a memory limit bounds."""
    kinds = {row.memory.name for row in rows if row.memory}
    return next(iter(kinds)) if len(kinds) == 1 else "memory"


def memory_words(memory: Memory | None, name: str = "peak memory") -> str:
    """The bounded quantity, or why it is not known."""
    if memory is None:
        return f"memory {NOT_MEASURED}"
    if memory.bounded is None:
        return f"{name} not available: {memory.reasons.get(memory.bounded_by, 'no reason was given')}"
    return f"{name} {format_bytes(memory.bounded)} ({memory.basis})"


def quality_words(row: Row) -> str:
    """The metric and the share of the full budget's; it was measured in training, never here."""
    if row.quality is None:
        return f"quality {NOT_MEASURED}"
    share = retention(row)
    kept = "" if share is None else f", {share:.1%} of the full budget's"
    return f"{row.quality.name} {row.quality.value:.4g}{kept} (measured in training)"


def figures_of(row: Row) -> list[str]:
    """Latency, memory and quality of a budget, a clause each."""
    return [latency_words(row), memory_words(row.memory, memory_name([row])), quality_words(row)]


def basis_of(rows: Sequence[Row], kind: str) -> str:
    """ "measured", "estimated", or both."""
    parts = [row.latency_ms if kind == "latency" else row.memory for row in rows]
    return " or ".join(sorted({part.basis for part in parts if part is not None}, reverse=True)) or NOT_MEASURED


Fact = tuple[str, str, list[str]]
"""A name, its value, and what there is to say of it, a line each."""


def key_facts(run: Run) -> list[Fact]:
    """The chosen budget, the spread between its builds, the sweet spot and the collapse boundary."""
    marks = marks_of(run.candidates)
    facts: list[Fact] = [_rated("Chosen", run.chosen, [] if run.chosen else [headline(run)])]
    facts[0][2].extend(_better_below(run, marks.best))
    if run.spread:
        facts.append(_spread(run.spread))
    if not marks.known:
        return [*facts, ("Sweet spot", "unknown", ["The document states no quality relative to the full budget's."])]
    sweet = f"The smallest budget with {SWEET_SPOT:.0%} of the full budget's quality."
    return [*facts, _rated("Sweet spot", marks.sweet, [sweet]), _collapse(marks.collapsed)]


def _better_below(run: Run, best: Row | None) -> list[str]:
    """A smaller budget than the chosen one may have the better quality, which need not grow with the budget."""
    if (
        run.chosen is None
        or best is None
        or best.quality is None
        or run.candidates.index(best) >= run.candidates.index(run.chosen)
    ):
        return []
    return [f"{best.name}, a smaller one, has the better {best.quality.name}: {best.quality.value:.4g} (measured in training)"]


def _rated(name: str, row: Row | None, lines: list[str]) -> Fact:
    if row is None:
        return (name, "none", lines)
    return (name, row.name, [*lines, *figures_of(row)])


def _spread(spread: Spread) -> Fact:
    values = spread.latency_ms
    apart = f"{(max(values) - min(values)) / min(values):.1%} apart" if min(values) > 0 else "no spread"
    shown = ", ".join(format_ms(value) for value in values)
    return ("Builds", apart, [f"{spread.statistic} of the chosen engine, built {len(values)} times: {shown} (measured)."])


def _collapse(collapsed: Sequence[Row]) -> Fact:
    name, share = "Collapse boundary", f"less than {COLLAPSE:.0%} of the full budget's quality"
    if not collapsed:
        return (name, "not reached", [f"No budget with a known quality has {share} (measured in training)."])
    each = [f"{row.name}: {quality_words(row)}" for row in collapsed]
    return (name, collapsed[-1].name, [f"The largest budget with {share}.", *each])


def question_words(run: Run) -> str:
    """What was timed, and what it had to meet."""
    call = boundary(run)
    return f"{call[:1].upper()}{call[1:]}. Limits: {'; '.join(limits_words(run)) or 'none'}."


def warnings_of(run: Run) -> list[tuple[str, str]]:
    """Of each budget that has any, its warnings in one line, with the reasons of what is not valid."""
    found = []
    for row in run.candidates:
        lines = list(row.warnings)
        if row.verdict in ("failed", "inconclusive", "excluded"):
            lines += [f"{row.verdict}: {reason}" for reason in row.reasons or ["no reason was given"]]
        if lines:
            found.append((row.name, "; ".join(lines)))
    return found


def disturbed(run: Run) -> list[str]:
    """The budgets that were measured while other work took the processor."""
    return [row.name for row in run.candidates if any(line.startswith("contention") for line in row.warnings)]


def busy_words(run: Run) -> str:
    """That in one sentence; nothing where there was no such work."""
    names = disturbed(run)
    if not names:
        return ""
    which = "every budget" if len(names) == len(run.candidates) else ", ".join(names)
    return f"The machine was busy: other work took the processor while {which} was measured. On a quiet one they are faster."


def environment_of(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Headed lists of what a reader needs to measure the same again."""
    environment = run.environment
    if environment is None:
        return [("Question", _question(run)), ("Machine", [("machine", "not stated: nothing was measured")])]
    throttling = {key: text for key, text in (environment.throttling or {}).items() if text != "none" and "." not in key}
    pinned = {"affinity": ", ".join(map(str, environment.affinity))} if environment.affinity else {}
    lists = {
        "Machine": {**(environment.machine or {}), **pinned, **throttling},
        "Versions": environment.versions or {},
        "Settings": environment.settings or {},
        "Warm-up of one engine": environment.warmup or {},
    }
    shown = [(name, [(key.replace("_", " "), text) for key, text in facts.items()]) for name, facts in lists.items() if facts]
    return [("Question", _question(run)), *shown]


def _question(run: Run) -> list[tuple[str, str]]:
    environment = run.environment
    asked = {
        "target": run.target,
        "call": boundary(run),
        "limits": "; ".join(limits_words(run)) or "none",
        "precision": run.precision or "",
        "checkpoint": run.model.hash,
        "provider": (environment.provider if environment else "") or "",
        "threads": "" if environment is None or environment.threads is None else str(environment.threads),
        **{f"estimate: {name}": text for name, text in run.efficiency.items()},
    }
    return [(name, text) for name, text in asked.items() if text]
