"""The paper's tables, comparisons with other methods, and our studies: for a checkout, never installed with the library."""
