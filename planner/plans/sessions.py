"""The sessions of one program: as it is written, and in every other form that is asked for."""

from __future__ import annotations

from typing import final

from planner.forms.formed import formed
from planner.program.form import Form
from planner.session import Session


@final
class Sessions:
    """A session for each form of a program, made when it is first asked for; `written` is that of the program as it is."""

    def __init__(self, written: Session) -> None:
        self.written = written
        self._made = {written.program.form: written}

    def of(self, form: Form) -> Session:
        """The session of the program in a form. Raises: ArgumentError where it cannot be computed so."""
        found = self._made.get(form)
        if found is None:
            written = self.written
            program = formed(written.program, form)
            found = Session(program=program, target=written.target, request=written.request)
            self._made[form] = found
        return found
