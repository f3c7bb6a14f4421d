"""What script/bench runs: servers and programs (world), measurements (measure), rows (rows)."""
