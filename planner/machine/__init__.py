"""The machine that is planned for: takes devices or a topology's name, gives a target and where meshes lie on it."""
