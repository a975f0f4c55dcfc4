"""The datasets of the experiments as arrays, each by its name and its preparation; ``opu data fetch`` brings the files."""
