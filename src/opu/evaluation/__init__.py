"""From scores to metrics, beside a teacher and detectors that know no classes."""
