"""Tables 3 and 4 of the paper: Bayesian logistic regression and Gaussian processes on Pima and Spambase."""
