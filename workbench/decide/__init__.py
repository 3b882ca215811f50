"""Instruments that decide: which reward, which judge, which rung."""
