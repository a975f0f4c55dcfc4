"""Tables 1 and 2 of the paper, MNIST and EMNIST, with our variants of them, and the paper's figure."""
