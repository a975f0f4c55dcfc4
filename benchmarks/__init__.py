"""Speed, measured as ratios within one run; never asserted in tests.

``bfloat16`` and ``compressed`` also measure quality: they say what a speed-up costs.
"""
