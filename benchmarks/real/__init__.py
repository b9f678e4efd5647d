"""Public programs as their codebases write them: one module per codebase, each a table of builders."""
