"""NAME: presets, aliases, labels, modes, hosts."""
