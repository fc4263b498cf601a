# Two commands to start with: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-long test-faults chaos-quick chaos test-slow wheel-test test-flower fuzz check bench docs docs-links pictures clean

demo: $(READY)            ## run the main job
	$(BIN)/cfel demo

test: $(READY)            ## the tests, under five minutes on two cores (COVERAGE=--cov: two more, and what they cover)
	$(BIN)/pytest -m "not slow and not long" -n 2 --dist worksteal $(COVERAGE)

test-long: $(READY)       ## every item of `cfel reproduce`, killed processes, a Ray cluster; some minutes
	$(BIN)/pytest -m "long and not slow and not chaos" -n 2 --dist worksteal

test-faults: $(READY)     ## clusters that lose nodes, drivers and memory; five minutes on two cores
	$(BIN)/pytest -m slow tests/scaleout

chaos-quick: $(READY)     ## the bounded chaos tests, as in CI; three minutes on two cores
	$(BIN)/pytest -m "chaos and not slow" -n 2 --dist worksteal tests/deployment

chaos: $(READY)           ## federations whose nodes are killed, frozen and cut off; ten minutes on two cores
	$(BIN)/pytest -m "slow or chaos" tests/deployment

test-slow: $(READY)       ## every test that takes minutes
	$(BIN)/pytest -m slow

wheel-test:               ## build the wheel, install it alone in a new environment, try it; a minute
	rm -rf build/wheel build/wheel-venv
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	build/wheel-venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build/wheel/cfel-*.whl
	build/wheel-venv/bin/python -I tests/wheel_trial.py build/wheel/cfel-*.whl examples/devices.csv

FLWR ?= 1.41.0
test-flower:              ## the tests with Flower, which needs older packages than the dashboard: in an environment of its own
	$(PYTHON) -m venv build/flower-venv
	grep -vE '^(starlette|uvicorn|protobuf|rich|packaging)==' constraints.txt > build/flower-constraints.txt
	build/flower-venv/bin/pip install --quiet --disable-pip-version-check -c build/flower-constraints.txt \
	    flwr==$(FLWR) -e '.[learn]' hypothesis pytest pytest-timeout
	build/flower-venv/bin/pytest tests/flower tests/learning/local/test_whole_run.py

SECONDS ?= 60
fuzz: $(READY)            ## change run directories and messages at random; SECONDS=0 runs until Ctrl-C
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

check: $(READY)           ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)           ## measure the solver, the simulation, the Ray engine and real processes
	$(BIN)/cfel bench solver
	$(BIN)/cfel bench simulation
	$(BIN)/cfel bench scaleout
	$(BIN)/cfel bench deployment
	$(BIN)/cfel bench resilience

docs: $(VENV)/.docs        ## the documentation site, in build/docs; needs no network
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/docs

docs-links: $(VENV)/.docs  ## also follow the links that lead to other sites
	$(BIN)/sphinx-build -b linkcheck -q -d build/doctrees docs build/links

pictures: $(READY)         ## the pictures of the tour, from real runs, in docs/images; needs Chromium; two minutes
	$(BIN)/python -m docs.pictures

$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(VENV)/.docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:                    ## delete everything that can be rebuilt
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
