"""`kvbench selftest`: every fault model against every check, on the fake engine.

A check that never fired on its fault counts as not existing; a check that fires on a healthy run is
worse. Both are shown here, in one matrix.
"""
