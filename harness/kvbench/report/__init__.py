"""Reports: pure functions of ledger and verdict, one file per output."""
