# `make run` and `make test` set up everything they need in .venv on a machine with Python 3.11 to 3.13 and a C compiler.
PYTHON ?= python3
# The version this project is tested with.  Override for another build, e.g. make run TORCH="torch==2.11.0".
TORCH ?= torch==2.13.0
BUDGET ?= 24
VENV := .venv
BIN := $(VENV)/bin
SERVER := .venv-server
TRAIN := .venv-train

.PHONY: run test test-server train-demo test-train lint bench clean

run: $(VENV)/.installed
	$(BIN)/python -m evo run --budget $(BUDGET)

# Two processes with two threads of PyTorch each would wait for each other on two cores.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests

# The whole flow with a real server of a tiny random model, made here; nothing but packages is downloaded.
test-server: $(SERVER)/.installed
	HF_HUB_OFFLINE=1 $(SERVER)/bin/python -m analysis.benchmarks.tiny_model $(SERVER)/tiny
	OMP_NUM_THREADS=1 EVO_TEST_SERVER=$(SERVER)/bin/transformers EVO_TEST_MODEL=$(SERVER)/tiny \
	  $(BIN)/python -m pytest tests/test_real_server.py

# The recipes for training: two steps each on a CPU, of a tiny random model made here, compared with their formulas.
train-demo: $(TRAIN)/.installed
	HF_HUB_OFFLINE=1 $(TRAIN)/bin/python -m analysis.benchmarks.tiny_model $(TRAIN)/tiny
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(TRAIN)/bin/python -m analysis.training.demo $(TRAIN)/tiny

test-train: $(TRAIN)/.installed $(VENV)/.installed-dev
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(TRAIN)/bin/python -m pytest -m train tests

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python -m analysis.benchmarks.bench_engine
	$(BIN)/python -m analysis.benchmarks.bench_evaluator
	$(BIN)/python -m analysis.benchmarks.bench_llm
	$(BIN)/python -m analysis.benchmarks.bench_export --trials 20000

# torch first and alone: asked for together with the rest, pip may pick a build with gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else \
	  "evo needs Python 3.11 to 3.13, got %d.%d; name one: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

# These have environments of their own, which see the packages of $(VENV), torch among them, and add to them.
define environment
$(BIN)/python -m venv $(1)
$(BIN)/python -c 'import sysconfig as s; own, added = s.get_path("purelib"), s.get_path("purelib", vars={"base": \
  "$(1)"}); open(added + "/packages.pth", "w").write(own)'
endef

$(SERVER)/.installed: $(VENV)/.installed-dev
	$(call environment,$(SERVER))
	$(SERVER)/bin/pip install --quiet --disable-pip-version-check "transformers[serving]>=5,<6" "$(TORCH)"
	@touch $@

$(TRAIN)/.installed: $(VENV)/.installed
	$(call environment,$(TRAIN))
	$(TRAIN)/bin/pip install --quiet --disable-pip-version-check -e ".[train]" "$(TORCH)"
	@touch $@

clean:
	rm -rf $(VENV) $(SERVER) $(TRAIN) build *.egg-info
