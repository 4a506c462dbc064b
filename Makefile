# Each target creates the environment if it is missing, which takes minutes, because it installs PyTorch.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_SLOW := $(VENV)/.installed-for-slow-tests
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help demo dist test test-dist test-slow test-all test-lowest mutants gpu coverage lint format typecheck house bench bench-study docs families frozen site study study-attendout trajectories clean

# The targets, with the comments above them.
help:
	@awk '/^# /{text = text substr($$0, 2) "\n"} /^[a-z-]+:/{split($$0, name, ":"); if (text) printf "%s\n%s", name[1], text} !/^# /{text = ""}' $(MAKEFILE_LIST)

# The demonstration, `attendrop demo`: minutes.
demo: $(STAMP)
	$(BIN)/attendrop demo

# Two processes with one thread each: tiny models gain nothing from more threads. Those that tests start find the sources
# compiled, whatever the environment says.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# Real data, the real model, every family of transformers, Ray clusters, pages in a browser and code blocks; an hour. Needs
# ATTENDROP_DATA and a Chromium; without, the tests that do are skipped.
test-slow: $(STAMP_SLOW)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow -n 2 --dist worksteal

# Everything that `make test` and `make test-slow` run.
test-all: $(STAMP_SLOW)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m '' -n 2 --dist worksteal

# With the lowest versions that pyproject.toml allows, in a separate environment; PyTorch brings gigabytes of CUDA.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install -qq uv
	.venv-lowest/bin/uv pip install -q --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]'
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -q -n 2 --dist worksteal

# All that only a GPU shows, for benchmarks/RESULTS_GPU.md: under 25 minutes on one. The environment sees PYTHON's own
# packages: its PyTorch and pip stay as they are, and what is missing is installed beside them. With BIN=FOLDER, nothing is
# installed, and the interpreter in that folder is taken as it is.
GPU_VENV ?= .venv-gpu
ifeq ($(origin BIN),command line)
gpu:
	$(BIN)/python benchmarks/gpu.py
else
gpu: $(GPU_VENV)/.installed
	$(GPU_VENV)/bin/python benchmarks/gpu.py
endif

SITE := import sysconfig; print(sysconfig.get_path("purelib"))
PACKAGES := import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")
$(GPU_VENV)/.installed: pyproject.toml benchmarks/gpu.py
	$(PYTHON) -m venv --without-pip $(GPU_VENV)
	$(PYTHON) -c '$(PACKAGES)' > "$$($(GPU_VENV)/bin/python -c '$(SITE)')/of_python.pth"
	$(GPU_VENV)/bin/python benchmarks/gpu.py --requirements > $(GPU_VENV)/requirements.txt
	$(GPU_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $(GPU_VENV)/requirements.txt
	touch $@

# Which lines and branches `make test` runs.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --cov --cov-report=term:skip-covered

# Whether the tests notice faults: plants each of tests/planted_faults, and runs the nearest tests; an hour on a core.
mutants: $(STAMP)
	$(BIN)/python tools/plant_faults.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/make_methods.py --check
	$(BIN)/python tools/make_options.py --check
	$(BIN)/python tools/make_families.py --check
	$(BIN)/python tools/make_paper_tables.py --check

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP)
	$(BIN)/mypy

# Lines, names and files of each package, words of the documents.
house: $(STAMP)
	$(BIN)/python tools/house.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

# docs/methods.md, from the registry and the benchmark's results; docs/options.md, from RunConfig; docs/models.md, from the results of `make families`;
# docs/paper_tables.md and docs/paper_twins.md, from the papers' figures, the recipes and results/.
docs: $(STAMP)
	$(BIN)/python tools/make_methods.py
	$(BIN)/python tools/make_options.py
	$(BIN)/python tools/make_families.py
	$(BIN)/python tools/make_paper_tables.py

# The documentation site, in docs/_build; a warning is an error.
site: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going -b dirhtml docs docs/_build

# Runs a tiny model of every family of transformers, for docs/models.md; minutes.
families: $(STAMP)
	$(BIN)/python tools/make_families.py --run

# The study of docs/does-it-help.md: hours on a core; resumes when started again. Needs ATTENDROP_DATA.
study: $(STAMP)
	for recipe in recipes/does_it_help/*.yaml; do \
		$(BIN)/attendrop study $$recipe --output-dir runs/does_it_help/$$(basename $$recipe .yaml) || exit; \
	done

# Updates the pinned losses of ten steps of every method, after an intended change of behaviour.
trajectories: $(STAMP)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/methods/test_trajectories.py

# Updates tests/frozen, what the commands print and write, after an intended change.
frozen: $(STAMP)
	PYTHONPATH=tests HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1 $(BIN)/python tests/test_frozen_outputs.py

# The wheel and the source distribution, in dist/.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

# Installs the wheel in a separate environment, and uses it there as a new user would, away from this repository.
test-dist: dist
	rm -rf .venv-dist
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch==2.13.0
	.venv-dist/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt "$$(echo dist/*.whl)[demo]"
	.venv-dist/bin/python tools/use_distribution.py dist

# A study of 24 small runs, beside the same runs as commands, on a quiet machine; minutes.
bench-study: $(STAMP)
	$(BIN)/python benchmarks/study_throughput.py

# What AttendOut costs, for docs/attendout.md: three hours on a core; resumes when started again. Needs ATTENDROP_DATA.
study-attendout: $(STAMP)
	$(BIN)/python benchmarks/attendout_costs.py runs/attendout_costs

clean:
	rm -rf $(VENV) .venv-lowest .venv-dist $(GPU_VENV) .coverage build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first, by far the largest package. If pip finds a CPU build (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), it is taken,
# because 2.13.0+cpu counts as newer than 2.13.0.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	touch $@

# Ray and playwright are large, and no other target needs any of these.
$(STAMP_SLOW): $(STAMP)
	$(PIP) -e '.[browser,ray,trainers]'
	touch $@
