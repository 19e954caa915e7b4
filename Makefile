# `make run` and `make test` set up everything they need in .venv on a machine with Python 3.11 to 3.13 and a C compiler.
PYTHON ?= python3
# The version this project is tested with.  Override for another build, e.g. make run TORCH="torch==2.11.0".
TORCH ?= torch==2.13.0
BUDGET ?= 24
VENV := .venv
BIN := $(VENV)/bin
SERVER := .venv-server
TRAIN := .venv-train
PUBLISHED := .venv-published
PEERS := .venv-peers
PEERS_OUT ?= runs/peers

.PHONY: run test test-server test-published train-demo peers lint bench figures clean

run: $(VENV)/.installed
	$(BIN)/python -m evo run --budget $(BUDGET)

# On two cores two more processes work while others wait; with two threads of PyTorch each they would wait for each other.
# Files are given out in the order of tests/conftest.py.  Processes that tests start find modules compiled.
# Large tensors take large pages, where Linux gives them on request: to get small ones takes longer than to compute them.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
	  $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder tests

# The whole flow with a real server of a tiny random model, made here; nothing but packages is downloaded.
test-server: $(SERVER)/.installed
	HF_HUB_OFFLINE=1 $(SERVER)/bin/python -m analysis.benchmarks.tiny_model $(SERVER)/tiny
	OMP_NUM_THREADS=1 EVO_TEST_SERVER=$(SERVER)/bin/transformers EVO_TEST_MODEL=$(SERVER)/tiny \
	  $(BIN)/python -m pytest tests/test_real_server.py

# Each training recipe for two steps on a CPU, with a tiny random model made here; TRL is compared with the formulas.
train-demo: $(TRAIN)/.installed
	HF_HUB_OFFLINE=1 $(TRAIN)/bin/python -m analysis.benchmarks.tiny_model $(TRAIN)/tiny
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(TRAIN)/bin/python -m analysis.training.demo $(TRAIN)/tiny

# Published trainers and search engines call evo as they do; nothing but packages is downloaded (350 MB).
test-published: $(PUBLISHED)/.installed
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(PUBLISHED)/bin/python -m pytest tests/test_published.py tests/test_training_trl.py

# evo beside OpenEvolve and ShinkaEvolve with the same model, evaluator and proposals: hours on two cores; done runs stay.
peers: $(PEERS)/.installed
	OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest -m published tests/test_peers.py
	OMP_NUM_THREADS=1 $(BIN)/python -m analysis.benchmarks.peers --out $(PEERS_OUT) $(PEERS_OPTIONS)

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

# The figures of README.md, docs and runs/reference, from the committed data; a test fails if one differs.
figures: $(VENV)/.installed-dev
	$(BIN)/python -m analysis.figures

# pip compiles modules on one core, which takes half of its time; `compileall` does it on all, but for tests of packages.
# A file that it cannot compile is of another version of Python.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib >$(VENV)/compiled.log || true

# torch first and alone: asked for together with the rest, pip may pick a build with gigabytes of CUDA libraries.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else \
	  "evo needs Python 3.11 to 3.13, got %d.%d; name one: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e .
	$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e ".[dev]"
	$(COMPILE)
	@touch $(VENV)/.installed $@

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

# Packages whose dependencies ask for a GPU come alone, with what their loaders import.  OpenRLHF has wheels for some
# versions of Python only; its test is skipped without it.
$(PUBLISHED)/.installed: $(VENV)/.installed-dev
	$(call environment,$(PUBLISHED))
	$(PUBLISHED)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)" trl==1.16.0 openevolve==0.4.1 \
	  verifiers==0.4.0 hydra-core==1.3.2 omegaconf tensordict codetiming orjson aiohttp pylatexenc python-dotenv
	$(PUBLISHED)/bin/pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1 shinka-evolve==0.0.7
	-$(PUBLISHED)/bin/pip install --quiet --disable-pip-version-check --no-deps openrlhf==0.11.2
	@touch $@

# ShinkaEvolve asks for older packages than evo, which only this environment has.
$(PEERS)/.installed: $(VENV)/.installed-dev
	$(call environment,$(PEERS))
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)" openevolve==0.4.1 shinka-evolve==0.0.7
	@touch $@

clean:
	rm -rf $(VENV) $(SERVER) $(TRAIN) $(PUBLISHED) $(PEERS) build *.egg-info
