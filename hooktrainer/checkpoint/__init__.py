"""Checkpoints: a run's state as plain data, one directory a step; a kill at any moment leaves the last good one."""
