# Every target sets itself up in .venv and is quick when that is there already.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Two busy processes with two threads each starve one another, so tests that run side by side take one each.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# The extra "laplace", without the torchvision that it asks for and never uses: a CUDA build, which a CPU build of torch
# cannot load.
LAPLACE := laplace-torch asdfghjkl backpack-for-pytorch curvlinops-for-pytorch einconv einops lightning-utilities \
	opt_einsum torchmetrics tqdm unfoldNd

.PHONY: setup demo test test-long test-fast lint format docs bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,plot,data,blr,gp,tables,onnx,docs]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(LAPLACE)
	touch $(STAMP)

demo: setup
	$(BIN)/opu demo --overwrite

test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

test-long: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist load -m long

test-fast: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A folder of plain files that loads nothing from elsewhere.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean

# Writes under runs/; with --record a benchmark writes to results/.
bench: setup
	$(BIN)/python -m benchmarks.objectives

clean:
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
