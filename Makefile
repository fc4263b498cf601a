# Two commands to start with: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Of the long tests. One more than cores: many of them wait for processes.
WORKERS ?= 3

# Bytecode is written when a module is first imported, and kept: most of what is installed never is imported, and the tests
# start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile

.PHONY: demo setup test test-long test-faults chaos-quick chaos test-slow test-gpu test-light wheel-test wheel-test-learn test-flower \
    test-trackers fuzz simulate check bench docs docs-links pictures release clean

demo: $(READY)            ## run the main job
	$(BIN)/cfel demo

setup: $(VENV)/.docs      ## install what all other targets need

test: $(READY)            ## the tests, under five minutes on two cores (COVERAGE=--cov: two more, and what they cover)
	$(BIN)/pytest -m "not slow and not long" -n 2 --dist worksteal $(COVERAGE)

test-long: $(READY)       ## every item of `cfel reproduce`, killed processes, a Ray cluster; some minutes
	$(BIN)/pytest -m "long and not slow and not chaos" -n $(WORKERS) --dist worksteal

test-faults: $(READY)     ## clusters that lose nodes, drivers and memory; five minutes on two cores
	$(BIN)/pytest -m slow tests/scaleout

chaos-quick: $(READY)     ## the bounded chaos tests, as in CI; three minutes on two cores
	$(BIN)/pytest -m "chaos and not slow" -n 2 --dist worksteal tests/deployment

chaos: $(READY)           ## federations whose nodes are killed, frozen and cut off; ten minutes on two cores
	$(BIN)/pytest -m "slow or chaos" tests/deployment

test-gpu: $(READY)        ## whether engines agree on a GPU, and their speed; says so where there is none
	$(BIN)/python -m benchmarks gpu

test-slow: $(READY)       ## every test that takes minutes
	$(BIN)/pytest -m slow

wheel-test:               ## build the wheel, install it alone in a new environment, try it; a minute
	rm -rf build/wheel build/wheel-venv
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	build/wheel-venv/bin/pip install $(PIP_OPTIONS) -c constraints.txt build/wheel/cfel-*.whl
	build/wheel-venv/bin/python -I tests/wheel_trial.py build/wheel/cfel-*.whl examples/devices.csv
	rm -rf build/pages && mkdir build/pages
	cd build/pages && ../wheel-venv/bin/python -I ../../tests/page_trial.py '' $(PAGES)

# Each is played where exactly the extras that it names are installed.
PAGES := ../../README.md ../../docs/start.md $(patsubst %,../../%,$(wildcard docs/tutorials/*.md))
wheel-test-learn:         ## the same with `learn` and `report`: every command of the README and of the tutorials that name them
	rm -rf build/learn-wheel build/learn-venv build/learn-pages
	$(PYTHON) -m venv build/learn-venv
	build/learn-venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/learn-wheel .
	build/learn-venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	    "$$(echo build/learn-wheel/cfel-*.whl)[learn,report]"
	mkdir build/learn-pages
	cd build/learn-pages && ../learn-venv/bin/python -I ../../tests/page_trial.py learn,report $(PAGES)

FLWR ?= 1.41.0
test-flower:              ## the tests with Flower, which needs older packages than the dashboard: in an environment of its own
	$(PYTHON) -m venv build/flower-venv
	grep -vE '^(starlette|uvicorn|protobuf|rich|packaging)==' constraints.txt > build/flower-constraints.txt
	build/flower-venv/bin/pip install $(PIP_OPTIONS) -c build/flower-constraints.txt \
	    flwr==$(FLWR) -e '.[learn]' hypothesis pytest pytest-timeout
	build/flower-venv/bin/pytest tests/flower tests/learning/local/test_whole_run.py

TRACKER_PACKAGES := mlflow-skinny==3.17.2 wandb==0.31.0 trackio==0.43.0
test-trackers:            ## the trackers with their real packages, which need an older Pillow: in an environment of its own
	$(PYTHON) -m venv build/tracker-venv
	grep -v '^pillow==' constraints.txt > build/tracker-constraints.txt
	build/tracker-venv/bin/pip install $(PIP_OPTIONS) -c build/tracker-constraints.txt \
	    $(TRACKER_PACKAGES) -e '.[mlflow,wandb,trackio,tensorboard,report]' hypothesis pytest pytest-timeout
	build/tracker-venv/bin/pytest tests/tracking

# What these two import needs torch.
LIGHT_IGNORE := --ignore tests/control/schemes/test_guide.py --ignore tests/control/test_horizon.py
test-light:               ## what needs no torch, in an environment without it, e.g. with PYTHON=python3.13
	$(PYTHON) -m venv build/light-venv
	build/light-venv/bin/pip install $(PIP_OPTIONS) -c constraints.txt -e . cvxpy hypothesis pyarrow pytest pytest-timeout
	build/light-venv/bin/pytest -m "not slow and not long" tests/control tests/cost tests/system tests/test_durable.py \
	    tests/test_errors.py tests/test_plugins.py tests/test_scheme_names.py tests/test_seeding.py tests/test_validation.py \
	    tests/test_wording.py $(LIGHT_IGNORE)

SECONDS ?= 60
fuzz: $(READY)            ## change run directories and messages at random; SECONDS=0 runs until Ctrl-C
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

SEEDS ?= 100
simulate: $(READY)        ## whole federations under seeded schedules of faults; SEEDS=1000 takes about ten minutes
	$(BIN)/python -m tests.whole_federation --seeds $(SEEDS)

check: $(READY)           ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)           ## measure the solver, the simulation, the Ray engine and real processes
	$(BIN)/python -m benchmarks solver
	$(BIN)/python -m benchmarks simulation
	$(BIN)/python -m benchmarks scaleout
	$(BIN)/python -m benchmarks deployment
	$(BIN)/python -m benchmarks resilience

docs: $(VENV)/.docs        ## the documentation site, in build/docs; needs no network
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/docs

docs-links: $(VENV)/.docs  ## also follow the links that lead to other sites
	$(BIN)/sphinx-build -b linkcheck -q -d build/doctrees docs build/links

pictures: $(READY)         ## the pictures of the tour, from real runs, in docs/images; needs Chromium; two minutes
	$(BIN)/python -m docs.pictures

# The wheel is built from the sdist, which shows that the sdist is complete.
release:                   ## build wheel and sdist in dist, check them and the version, say what is left to do by hand
	$(PYTHON) tools/release.py version
	rm -rf dist build/release-venv build/trial-venv
	$(PYTHON) -m venv build/release-venv
	build/release-venv/bin/pip install $(PIP_OPTIONS) 'hatchling>=1.27'
	build/release-venv/bin/hatchling build --target sdist --directory dist
	build/release-venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/cfel-*.tar.gz
	$(PYTHON) -m venv build/trial-venv
	build/trial-venv/bin/pip install $(PIP_OPTIONS) -c constraints.txt dist/cfel-*.whl
	build/trial-venv/bin/python -I tests/wheel_trial.py dist/cfel-*.whl examples/devices.csv
	$(PYTHON) tools/release.py files dist

$(VENV)/.docs: $(READY)
	$(BIN)/pip install $(PIP_OPTIONS) -c constraints.txt -e '.[docs]'
	touch $(VENV)/.docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_OPTIONS) -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:                    ## delete everything that can be rebuilt
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
