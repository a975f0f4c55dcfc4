"""What prediction and distillation cost, as ratios that are measured in one run."""
