"""AdamW, Muon, schedules and clipping, one tensor at a time."""
