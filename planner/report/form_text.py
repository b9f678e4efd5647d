"""How a program is computed, in words."""

from __future__ import annotations

from planner.program.form import Form


def form_words(form: Form) -> str:
    """How a program is computed, in words."""
    passes = f"{form.microbatches} microbatches" if form.microbatches > 1 else ""
    chosen = [one for one in form.saved if one is not None]
    saved = f"{sum(map(len, chosen))} values saved for the backward pass as chosen" if chosen else ""
    return ", ".join(part for part in (passes, saved) if part) or "as written"
