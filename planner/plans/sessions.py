"""The sessions of one program: as it is written, and in every other form that is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import final

from planner.forms.batch import Refused, batch_of
from planner.forms.formed import formed
from planner.program.batch_parts import Batch
from planner.program.form import Form
from planner.session import Session


@final
class Sessions:
    """A session for each form of a program, made when it is first asked for; `written` is that of the program as it is."""

    def __init__(self, written: Session) -> None:
        self.written = written
        self._made = {written.program.form: written}

    @cached_property
    def batch(self) -> Batch | Refused:
        """How the program may be computed batch part by batch part, or why it cannot be."""
        return batch_of(self.written.program)

    def of(self, form: Form) -> Session:
        """The session of the program in a form. Raises: ArgumentError where it cannot be computed so."""
        found = self._made.get(form)
        if found is None:
            written = self.written
            program = formed(written.program, form)
            found = Session(program=program, target=written.target, request=written.request)
            self._made[form] = found
        return found
