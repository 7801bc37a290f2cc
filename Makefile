# make demo   a real model answers from a compressed cache, beside the same answer from the full one
# make test   everything the tests need, then the tests
# make lint | types | compat | clean
#
# PYTHON=python3.12     the interpreter that builds the environment (3.11 or newer)
# TORCH_INDEX=URL       another package index for PyTorch, e.g. https://download.pytorch.org/whl/cpu
# PYTEST_ARGS="-k x"    handed to pytest
# WORKERS=2             processes that share the tests

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PYTEST_ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TORCH := $(shell grep '^torch==' constraints.txt)
OLDEST := 5.16.0
OVERLAY := $(VENV)/compat-5.16
# transformers 5.16 wants huggingface_hub 1.x, which speaks through httpx; everything else is shared with .venv.
OVERLAY_PINS := transformers==$(OLDEST) huggingface_hub==1.33.0 httpx==0.28.1 httpcore==1.0.9 h11==0.16.0

.PHONY: demo test lint types compat clean model

demo: $(VENV)/.installed
	$(BIN)/rocketkv demo

test: $(VENV)/.installed-dev model
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

compat: $(VENV)/.installed-dev $(OVERLAY)/.installed
	PYTHONPATH=$(OVERLAY) $(BIN)/python -c "import transformers as t; assert t.__version__ == '$(OLDEST)', t.__version__"
	PYTHONPATH=$(OVERLAY) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m law $(PYTEST_ARGS) tests

# Does nothing when the model has been imported before.
model: $(VENV)/.installed
	$(BIN)/rocketkv import smollm2

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# PyTorch goes in first and by its exact version: a looser request may pull gigabytes of another build.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; \
	  v >= (3, 11) or sys.exit('rocketkv needs Python 3.11 or newer, $(PYTHON) is %d.%d: set PYTHON=' % v)"
	@echo "creating $(VENV) and installing $(TORCH) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "installing rocketkv and its pinned dependencies"
	@$(PIP) install -c constraints.txt -e '.[gguf]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests, lint and types need"
	@$(PIP) install -c constraints.txt -e '.[gguf,plots,test,dev]'
	@touch $@

$(OVERLAY)/.installed: Makefile $(VENV)/.installed-dev
	@echo "installing transformers $(OLDEST) beside the pinned one"
	@rm -rf $(OVERLAY)
	@$(PIP) install --no-deps --target $(OVERLAY) $(OVERLAY_PINS)
	@touch $@
